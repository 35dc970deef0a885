"""The pipeline under the lock: fence, plan, claim, copy, metadata, seal, commit, prune.

`publishing` is a generator: it asks the lease before every phase and then yields the phase's name, with the work of
that phase still to be done. So whoever drives it sees where it is, and a test can hold it at the worst of moments:
the lease was good when it was last asked, and by the time of the next write it may be somebody else's.

It has four parts, which may run in four processes under one lease, each as often as it takes: what one hands to the
next fits on a line.

What it promises holds wherever it is stopped, killed, or continued too late: readers see a whole version or the one
before it; what was reported as published stays published; a stale run changes nothing readers see. It does not
promise that a killed run leaves nothing behind: the next one clears that up.
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
from examples.publishing.bucket import Bucket, Patient, Stat, crc32c
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
    """One publication: where, what, and by which right. restore: on top of the content of that old version."""

    bucket: Bucket
    repository: Repository
    lease: Lease
    staged: tuple[Staged, ...] = ()
    restore: int | None = None

    @property
    def patient(self) -> Patient:
        """The bucket, asked again only while the lease is good."""
        return Patient(self.bucket, self.lease.check, pause=self.repository.pause)

    def begin(self, phase: str) -> str:
        """Return the phase's name, with the lease asked."""
        self.lease.check()
        return phase


@dataclass(frozen=True, slots=True)
class Built:
    """A version that is whole and that nobody is sent to yet. chain: what it descends from, the nearest first.

    added: names of packages that were not there before.
    """

    number: int
    chain: tuple[int, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went. number: the version readers are sent to, with all that was asked for in it.

    added: names of packages that were not there before; empty if nothing was to do. pruned: versions removed; None if
    the lease was lost, or the bucket silent, after the commit: the next run does it.
    """

    number: int
    added: tuple[str, ...]
    pruned: tuple[int, ...] | None


Conversation: TypeAlias = Generator[str, None, Answer]


@dataclass(frozen=True, slots=True)
class Base:
    """The version to build upon, verified; number 0 is the empty repository that was there before the first."""

    manifest: Manifest
    objects: Mapping[str, Stat]
    index: Index | None


def publishing(work: Work) -> Conversation[Outcome]:
    """Publish staged packages on top of what there is, phase by phase.

    Raises what `lease.check()` raises, Superseded, Refused, BadSignature, BucketError; nothing was published then,
    but for OutcomeUnknown, where it may have been.
    """
    fenced = yield from fencing(work)
    built = yield from building(work, fenced)
    if built is None:
        return Outcome(fenced.number, (), ())
    yield from committing(work, fenced, built)
    return Outcome(built.number, built.added, (yield from pruning(work, built)))


def fencing(work: Work) -> Conversation[Pointer]:
    """Phase `fence`; what it gives is what the others build upon."""
    yield work.begin("fence")
    return fence(work.patient, work.repository.layout, work.lease.sequencer(), work.lease.check)


def building(work: Work, fenced: Pointer) -> Conversation[Built | None]:
    """Phases `plan` to `seal`: make the next version, under a number of its own; None if there is nothing to do.

    Done a second time it takes another number, and what the first time left stays until it is pruned.
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
    # Signed here, sent in the next phase: what the new index replaces need not be carried.
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


def committing(work: Work, fenced: Pointer, built: Built) -> Conversation[None]:
    """Phase `commit`: send readers to what was built upon the pointer as it was fenced."""
    # Drawn before: from here on only the pointer can tell, and a lease that is lost gives none any more.
    ours = work.lease.sequencer()
    yield work.begin("commit")
    commit(work.patient, work.repository.layout, fenced, built.number, ours)


def pruning(work: Work, built: Built) -> Conversation[tuple[int, ...] | None]:
    """Phase `prune`: remove what nobody needs any more; None if the lease is lost or the bucket silent.

    It is published then: what could not be cleared up is left to the next run.
    """
    try:
        yield work.begin("prune")
        return _prune(work.patient, work.repository, built.number, built.chain)
    except (lockstead.LeaseLost, BucketError):
        return None


def _base(bucket: Patient, repository: Repository, number: int) -> Base:
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


def _last_signed(bucket: Patient, repository: Repository, fenced: Pointer, base: Base) -> datetime | None:
    if base.manifest.number == fenced.number:
        return base.index.signed_at if base.index else None
    try:
        current = _base(bucket, repository, fenced.number)
    except Refused:
        # That is why somebody rolls back.
        return None
    return current.index.signed_at if current.index else None


def _chain(bucket: Patient, layout: Layout, fenced: Pointer, base: Base) -> tuple[int, ...]:
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


def _written_at(bucket: Patient, name: str) -> float:
    try:
        return bucket.stat(name).created_at
    except NotFound:
        return 0.0


def _claim(bucket: Patient, layout: Layout, fenced: Pointer, token: int) -> tuple[int, FileFacts, Stat]:
    number = next_number(fenced.number, numbers_of(bucket.folders(layout.versions)))
    while True:
        # The nonce tells our own claim, whose answer was lost, from somebody else's.
        fields = {"version": number, "base": fenced.number, "token": token, "nonce": uuid.uuid4().hex}
        text = json.dumps(fields).encode()
        try:
            claimed = bucket.create(layout.version(number, CLAIM), text)
        except PreconditionFailed:
            number += 1
        else:
            return number, FileFacts(len(text), crc32c(text)), claimed


def _copy_all(bucket: Patient, repository: Repository, number: int, copies: list[tuple[Stat, str]]) -> None:
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


def _seal(bucket: Patient, layout: Layout, manifest: Manifest) -> None:
    prefix = layout.version(manifest.number)
    wrong = differences(manifest.files, facts_by_path(bucket.list(prefix), prefix))
    if wrong:
        raise Refused(f"version {manifest.number} did not become what was meant: {'; '.join(wrong[:3])}")
    bucket.create(prefix + MANIFEST, manifest.to_bytes())


def _prune(bucket: Patient, repository: Repository, number: int, chain: tuple[int, ...]) -> tuple[int, ...]:
    layout = repository.layout
    doomed = prunable(numbers_of(bucket.folders(layout.versions)), number, chain, repository.keep)
    for old in doomed:
        prefix = layout.version(old)
        found = {one.name: one for one in bucket.list(prefix)}
        # The manifest first: half a version must never look like a whole one.
        for name in sorted(found, key=lambda name: (name != prefix + MANIFEST, name == prefix + CLAIM, name)):
            bucket.delete(name, generation=found[name].generation)
    return doomed
