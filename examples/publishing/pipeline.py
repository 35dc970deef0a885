"""The pipeline under the lock: fence, plan, claim, copy, metadata, seal, commit, prune.

`publishing` is a generator: it checks the lease before every phase and then yields the phase's name, before it does the
work of that phase. So its caller can see how far it is, and a test can stop it at the worst moment: the lease was valid
at the last check, and may belong to another holder before the next write.

It has four parts, which may run in four processes under one lease, each repeatedly: what one passes to the next fits on
one line.

Its promises hold even if it is stopped, killed, or resumed too late: readers see either a complete version or the
previous one; what was reported as published stays published; a stale run changes nothing that readers see. Not
promised: that a killed run leaves nothing behind; the next run removes it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar

import lockstead
from examples.publishing import plan as plans
from examples.publishing.bucket import Bucket, RetryingBucket, Stat, crc32c
from examples.publishing.errors import BucketError, NotFound, PreconditionFailed, Refused
from examples.publishing.layout import CLAIM, MANIFEST, Layout, next_number, numbers_of, prunable
from examples.publishing.lease import Lease
from examples.publishing.manifest import FileFacts, Manifest, differences, facts_by_path
from examples.publishing.packages import Index
from examples.publishing.pointer import Pointer, commit, fence
from examples.publishing.repository import Repository
from examples.publishing.signing import Verifier
from examples.publishing.staging import Staged

Answer = TypeVar("Answer")

PHASES = ("fence", "plan", "claim", "copy", "metadata", "seal", "commit", "prune")


@dataclass(frozen=True, slots=True)
class Work:
    """One publication. restore: publish the content of this old version again, plus the staged packages."""

    bucket: Bucket
    repository: Repository
    lease: Lease
    staged: tuple[Staged, ...] = ()
    restore: int | None = None

    @property
    def patient(self) -> RetryingBucket:
        """Return the bucket; requests are repeated only while the lease is valid."""
        return RetryingBucket(self.bucket, self.lease.check, pause=self.repository.pause)

    def begin(self, phase: str) -> str:
        """Check the lease and return the phase's name."""
        self.lease.check()
        return phase


@dataclass(frozen=True, slots=True)
class Built:
    """A complete version that readers are not sent to yet. chain: its ancestors, the nearest first.

    added: names of packages that its base does not have.
    """

    number: int
    chain: tuple[int, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a publication. number: the version that readers are sent to; it has all requested packages.

    added: names of packages that were not there before; empty if there was nothing to do. pruned: versions removed;
    None if the lease was lost or the bucket unavailable after the commit, so that the next run prunes.
    """

    number: int
    added: tuple[str, ...]
    pruned: tuple[int, ...] | None


Phases: TypeAlias = Generator[str, None, Answer]


@dataclass(frozen=True, slots=True)
class Base:
    """The verified version to build upon; number 0 is the empty repository before the first version."""

    manifest: Manifest
    objects: Mapping[str, Stat]
    index: Index | None


def publishing(work: Work) -> Phases[Outcome]:
    """Publish staged packages on top of the current version, phase by phase.

    Raises what `lease.check()` raises, Superseded, Refused, BadSignature, BucketError: then nothing was published;
    OutcomeUnknown: then it may have been published.
    """
    fenced = yield from fencing(work)
    built = yield from building(work, fenced)
    if built is None:
        return Outcome(fenced.number, (), ())
    yield from committing(work, fenced, built)
    return Outcome(built.number, built.added, (yield from pruning(work, built)))


def fencing(work: Work) -> Phases[Pointer]:
    """Run the phase `fence`; the other parts build upon its result."""
    yield work.begin("fence")
    return fence(work.patient, work.repository.layout, work.lease.sequencer(), work.lease.check)


def building(work: Work, fenced: Pointer) -> Phases[Built | None]:
    """Run the phases `plan` to `seal`: create the next version, with a number of its own; None if there is nothing to
    do.

    A repetition takes another number; what the first attempt wrote stays until it is pruned.
    """
    repository, patient = work.repository, work.patient
    layout, ours = repository.layout, work.lease.sequencer()

    yield work.begin("plan")
    base = _base(patient, repository, fenced.number if work.restore is None else work.restore)
    decided = plans.plan(
        base.index.packages if base.index else (),
        base.manifest.files,
        base.manifest.index_ages,
        [one.package for one in work.staged],
        overwrite=repository.overwrite,
    )
    if decided.is_idle and work.restore is None:
        return None
    sources = {one.package.sha256: one.source for one in work.staged}
    signed_at = plans.signing_instant(repository.now(), _last_signed(patient, repository, fenced, base))

    yield work.begin("claim")
    number, claim, claimed = _claim(patient, layout, fenced, ours.token)
    since = time.monotonic()

    yield work.begin("copy")
    # Signed here but sent in the next phase: files that the new index replaces need not be copied.
    index = repository.format.write_index(decided.packages, repository.signer, signed_at)
    copies = [(base.objects[path], path) for path in plans.to_copy(decided, index)]
    copies += [(sources[package.sha256], package.path) for package in decided.added]
    _copy_all(patient, repository, number, copies)

    yield work.begin("metadata")
    if repository.format.revalidated is not None and fenced.number:
        last_at = _written_at(patient, layout.version(fenced.number, repository.format.revalidated))
        repository.pause(plans.wait_before_index(last_at, claimed.created_at + time.monotonic() - since))
    for path, content in index.items():
        patient.create(layout.version(number, path), content)

    yield work.begin("seal")
    index_facts = {path: FileFacts(len(content), crc32c(content)) for path, content in index.items()}
    added = {one.path: FileFacts(sources[one.sha256].size, sources[one.sha256].crc32c) for one in decided.added}
    meant = plans.meant_files(decided, index_facts, added, claim)
    chain = _chain(patient, layout, fenced, base)
    _seal(patient, layout, Manifest(number, chain, plans.ages(decided, index), meant))
    return Built(number, chain, tuple(package.name for package in decided.added))


def committing(work: Work, fenced: Pointer, built: Built) -> Phases[None]:
    """Run the phase `commit`: send readers to the version that was built upon the fenced pointer."""
    # Before the check: from here on only the pointer tells the outcome, and a lost lease has no sequencer.
    ours = work.lease.sequencer()
    yield work.begin("commit")
    commit(work.patient, work.repository.layout, fenced, built.number, ours)


def pruning(work: Work, built: Built) -> Phases[tuple[int, ...] | None]:
    """Run the phase `prune`: remove unneeded versions; None if the lease is lost or the bucket unavailable.

    The version is published by then; what could not be removed is left to the next run.
    """
    try:
        yield work.begin("prune")
        return _prune(work.patient, work.repository, built.number, built.chain)
    except (lockstead.LeaseLost, BucketError):
        return None


def _base(bucket: RetryingBucket, repository: Repository, number: int) -> Base:
    if number == 0:
        return Base(Manifest(0, (), {}, {}), {}, None)
    layout = repository.layout
    prefix, where = layout.version(number), layout.version(number, MANIFEST)
    try:
        manifest = Manifest.from_bytes(bucket.read(where), where)
    except NotFound:
        raise Refused(f"version {number} was never finished: it has no manifest") from None
    objects = {found.name.removeprefix(prefix): found for found in bucket.list(prefix)}
    wrong = differences(manifest.files, facts_by_path(objects.values(), prefix))
    if wrong or manifest.number != number:
        raise Refused(
            f"version {number} is not what was published: {'; '.join(wrong[:3]) or 'its manifest is of another'}."
            " Publish an older one again with `rollback`"
        )

    def read(path: str) -> bytes:
        if path not in objects:
            raise Refused(f"version {number} has no {path}")
        return bucket.read(objects[path].name, generation=objects[path].generation)

    verifier = Verifier.from_armor(repository.signer.public_key)
    return Base(manifest, objects, repository.format.read_index(read, verifier))


def _last_signed(bucket: RetryingBucket, repository: Repository, fenced: Pointer, base: Base) -> datetime | None:
    if base.manifest.number == fenced.number:
        return base.index.signed_at if base.index else None
    try:
        current = _base(bucket, repository, fenced.number)
    except Refused:
        # a damaged current version is the usual reason for a rollback
        return None
    return current.index.signed_at if current.index else None


def _chain(bucket: RetryingBucket, layout: Layout, fenced: Pointer, base: Base) -> tuple[int, ...]:
    if fenced.number == 0:
        return ()
    manifest = base.manifest
    if manifest.number != fenced.number:
        where = layout.version(fenced.number, MANIFEST)
        try:
            manifest = Manifest.from_bytes(bucket.read(where), where)
        except (NotFound, Refused):
            return (fenced.number, manifest.number, *manifest.chain)
    return (fenced.number, *manifest.chain)


def _written_at(bucket: RetryingBucket, name: str) -> float:
    try:
        return bucket.stat(name).created_at
    except NotFound:
        return 0.0


def _claim(bucket: RetryingBucket, layout: Layout, fenced: Pointer, token: int) -> tuple[int, FileFacts, Stat]:
    number = next_number(fenced.number, numbers_of(bucket.folders(layout.versions)))
    while True:
        # The nonce distinguishes our own claim, whose response was lost, from another publisher's.
        fields = {"version": number, "base": fenced.number, "token": token, "nonce": uuid.uuid4().hex}
        text = json.dumps(fields).encode()
        try:
            claimed = bucket.create(layout.version(number, CLAIM), text)
        except PreconditionFailed:
            number += 1
        else:
            return number, FileFacts(len(text), crc32c(text)), claimed


def _copy_all(bucket: RetryingBucket, repository: Repository, number: int, copies: list[tuple[Stat, str]]) -> None:
    def copy(source: Stat, path: str) -> None:
        try:
            bucket.copy(source, repository.layout.version(number, path))
        except NotFound:
            raise Refused(f"{source.name} has vanished; run again to stage it anew") from None

    if repository.workers == 1:
        for source, path in copies:
            copy(source, path)
        return
    with ThreadPoolExecutor(repository.workers, thread_name_prefix="copy") as pool:
        for done in [pool.submit(copy, source, path) for source, path in copies]:
            try:
                done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _seal(bucket: RetryingBucket, layout: Layout, manifest: Manifest) -> None:
    prefix = layout.version(manifest.number)
    wrong = differences(manifest.files, facts_by_path(bucket.list(prefix), prefix))
    if wrong:
        raise Refused(f"version {manifest.number} did not become what was meant: {'; '.join(wrong[:3])}")
    bucket.create(prefix + MANIFEST, manifest.to_bytes())


def _prune(bucket: RetryingBucket, repository: Repository, number: int, chain: tuple[int, ...]) -> tuple[int, ...]:
    layout = repository.layout
    doomed = prunable(numbers_of(bucket.folders(layout.versions)), number, chain, repository.keep)
    for old in doomed:
        prefix = layout.version(old)
        found = {one.name: one for one in bucket.list(prefix)}
        # The manifest is deleted first: an incomplete version must never look complete.
        for name in sorted(found, key=lambda name: (name != prefix + MANIFEST, name == prefix + CLAIM, name)):
            bucket.delete(name, generation=found[name].generation)
    return doomed
