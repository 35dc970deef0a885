"""The same pipeline without a lock, a fence, or any comparison.

It shows what the other pipeline is for. Each step by itself is correct.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from examples.publishing.bucket import Bucket
from examples.publishing.errors import NotFound, PreconditionFailed
from examples.publishing.layout import number_of
from examples.publishing.packages import Index
from examples.publishing.pipeline import Outcome, Phases
from examples.publishing.repository import Repository
from examples.publishing.signing import Verifier
from examples.publishing.staging import Staged


def publishing_naively(bucket: Bucket, repository: Repository, staged: Iterable[Staged]) -> Phases[Outcome]:
    """Publish on top of the version that the pointer names now."""
    layout, staged = repository.layout, tuple(staged)

    yield "plan"
    try:
        number = number_of(bucket.read(layout.pointer), layout.pointer)
    except NotFound:
        number = 0
    base, prefix = Index((), datetime.now(UTC)), layout.version(number)
    if number:
        verifier = Verifier.from_armor(repository.signer.public_key)
        base = repository.format.read_index(lambda path: bucket.read(prefix + path), verifier)
    packages = {package.identity: package for package in base.packages}
    packages |= {one.package.identity: one.package for one in staged}

    yield "copy"
    for package in base.packages:
        _write(bucket, layout.version(number + 1, package.path), bucket.read(prefix + package.path))
    for one in staged:
        _write(bucket, layout.version(number + 1, one.package.path), bucket.read(one.source.name))

    yield "metadata"
    index = repository.format.write_index(
        packages.values(), repository.signer, datetime.now(UTC).replace(microsecond=0)
    )
    for path, content in index.items():
        _write(bucket, layout.version(number + 1, path), content)

    yield "commit"
    _write(bucket, layout.pointer, f"{number + 1}".encode())
    return Outcome(number + 1, tuple(one.package.name for one in staged), ())


def _write(bucket: Bucket, name: str, content: bytes) -> None:
    while True:
        try:
            generation = bucket.stat(name).generation
        except NotFound:
            generation = 0
        try:
            bucket.replace(name, content, generation=generation)
        except PreconditionFailed:
            continue
        return
