"""Staging, before the lock: packages are uploaded to `incoming/` under their content's hash, and found there again.

This is the slow part, so it needs no lock, and a repetition resumes it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from examples.publishing.bucket import Bucket, RetryingBucket, Stat, crc32c
from examples.publishing.errors import NotFound, Refused
from examples.publishing.packages import Package
from examples.publishing.repository import Repository


@dataclass(frozen=True, slots=True)
class Staged:
    """A package in `incoming/`."""

    package: Package
    source: Stat


def stage(bucket: Bucket, repository: Repository, paths: Iterable[Path]) -> tuple[Staged, ...]:
    """Upload packages to `incoming/`.

    Raises Refused for a file that is not a package, BucketError.
    """
    patient = RetryingBucket(bucket, pause=repository.pause)
    staged = []
    for path in paths:
        package = repository.format.inspect(path)
        name = repository.layout.incoming(package.sha256)
        try:
            # The package may have a hundred megabytes: upload it only if it is not there.
            source = patient.stat(name)
        except NotFound:
            source = patient.create(name, path.read_bytes())
        if (source.size, source.crc32c) != (package.size, crc32c(path.read_bytes())):
            raise Refused(f"{name} is damaged; delete it and run again")
        staged.append(Staged(package, source))
    return tuple(staged)


def find_staged(bucket: Bucket, repository: Repository, digests: Iterable[str]) -> tuple[Staged, ...]:
    """Find staged packages by the SHA-256 of their files, on any machine.

    Raises Refused if one is gone or damaged, BucketError.
    """
    patient = RetryingBucket(bucket, pause=repository.pause)
    staged = []
    with tempfile.TemporaryDirectory() as folder:
        for digest in digests:
            name = repository.layout.incoming(digest)
            try:
                source = patient.stat(name)
                content = patient.read(name, generation=source.generation)
            except NotFound:
                raise Refused(f"{name} has vanished; stage it anew") from None
            if hashlib.sha256(content).hexdigest() != digest:
                raise Refused(f"{name} is damaged; delete it and stage it anew")
            path = Path(folder, f"{digest}{repository.format.suffix}")
            path.write_bytes(content)
            staged.append(Staged(repository.format.inspect(path), source))
            path.unlink()
    return tuple(staged)
