"""Run publications: stage, wait for the lock, run the phases, and report what happens.

One run may publish to both repositories; each has its own lock and thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import lockstead
from examples.publishing.apt import Apt
from examples.publishing.bucket import Bucket
from examples.publishing.errors import PublishingError, Refused, Superseded
from examples.publishing.events import Event, EventKind
from examples.publishing.gcs import GcsBucket, Place
from examples.publishing.layout import Layout
from examples.publishing.lease import LockSettings, held
from examples.publishing.naive import publishing_naively
from examples.publishing.packages import Format
from examples.publishing.pipeline import Answer, Outcome, Phases, Work, publishing
from examples.publishing.repository import Repository
from examples.publishing.signing import Signer
from examples.publishing.staging import stage
from examples.publishing.yum import Yum

FORMATS: Mapping[str, Format] = {"apt": Apt(), "yum": Yum()}

Report: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses in seconds: before every phase, and additional ones before some phases (`yum/commit`)."""

    every: float = 0.0
    before: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, repository: str, phase: str) -> float:
        """Return the pause before a phase."""
        return self.every + self.before.get(f"{repository}/{phase}", 0.0)


@dataclass(frozen=True, slots=True)
class Job:
    """One run: what to publish, where, and under which lock (None: without a lock).

    restore: for each repository, the version whose content is published again.
    """

    run: str
    place: Place
    secret_key: str
    files: tuple[Path, ...]
    lock: LockSettings | None
    keep: int = 5
    overwrite: bool = False
    pace: Pace = field(default_factory=Pace)
    restore: Mapping[str, int] = field(default_factory=dict)


def repository_of(job: Job, kind: str) -> Repository:
    """Return the repository of this kind that the job publishes to."""
    layout = Layout(f"{job.place.prefix}{kind}/")
    signer = Signer.from_armor(job.secret_key)
    return Repository(FORMATS[kind], layout, signer, keep=job.keep, overwrite=job.overwrite)


def files_by_kind(files: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """Group package files by repository; Refused if one is neither a .deb nor an .rpm."""
    strange = [path.name for path in files if path.suffix not in {one.suffix for one in FORMATS.values()}]
    if strange:
        raise Refused(f"{strange[0]} is neither .deb nor .rpm")
    sorted_files = {kind: tuple(path for path in files if path.suffix == one.suffix) for kind, one in FORMATS.items()}
    return {kind: paths for kind, paths in sorted_files.items() if paths}


def run(job: Job, report: Report) -> dict[str, Outcome | None]:
    """Run a job on all its repositories. Return the outcome for each; None if nothing was published, which is
    reported."""
    wanted = files_by_kind(job.files) | dict.fromkeys(job.restore, ())
    bucket = GcsBucket(job.place.bucket)
    try:
        with ThreadPoolExecutor(max(1, len(wanted)), thread_name_prefix="publish") as pool:
            pending = {kind: pool.submit(_publish, bucket, job, kind, paths, report) for kind, paths in wanted.items()}
            return {kind: outcome.result() for kind, outcome in pending.items()}
    finally:
        bucket.close()


class Reporter(Protocol):
    """A callback that reports an event of one run on one repository; the arguments are fields of `Event`."""

    def __call__(
        self,
        what: EventKind,
        *,
        phase: str = "",
        number: int | None = None,
        pruned: tuple[int, ...] = (),
        text: str = "",
    ) -> None:
        """Report it."""
        ...


def reporter_for(job: Job, kind: str, report: Report) -> Reporter:
    """Return a callback that reports events of a job on one repository."""

    def say(
        what: EventKind, *, phase: str = "", number: int | None = None, pruned: tuple[int, ...] = (), text: str = ""
    ) -> None:
        report(Event(job.run, kind, what, phase, number, pruned, text))

    return say


def report_outcome(outcome: Outcome, say: Reporter) -> None:
    """Report a success."""
    added = ", ".join(outcome.added) or "nothing new"
    say(EventKind.PUBLISHED, number=outcome.number, pruned=outcome.pruned or (), text=added)


EXPECTED = (PublishingError, lockstead.LocksteadError, OSError, ValueError)
"""The errors of a failed publication; any other exception is a bug."""


def report_failure(error: Exception, say: Reporter) -> None:
    """Report why nothing was published."""
    match error:
        case Superseded():
            say(EventKind.REFUSED, text=str(error))
        case lockstead.LeaseLost():
            say(EventKind.REFUSED, text=f"the lease was lost: {error}")
        case _:
            say(EventKind.FAILED, text=f"{type(error).__name__}: {error}")


def drive(phases: Phases[Answer], job: Job, kind: str, say: Reporter) -> Answer:
    """Run all phases at the job's pace, report each before it begins, and return the result."""
    while True:
        try:
            phase = next(phases)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        say(EventKind.PHASE, phase=phase)
        time.sleep(job.pace.seconds(kind, phase))


def _publish(bucket: Bucket, job: Job, kind: str, files: tuple[Path, ...], report: Report) -> Outcome | None:
    say = reporter_for(job, kind, report)
    outcome: Outcome | None = None
    try:
        repository = repository_of(job, kind)
        say(EventKind.STAGING)
        staged = stage(bucket, repository, files)
        if job.lock is None:
            outcome = drive(publishing_naively(bucket, repository, staged), job, kind, say)
            report_outcome(outcome, say)
            return outcome
        if job.lock.ticket is None:
            say(EventKind.WAITING)
        with held(job.lock, kind, f"publish {len(files)} packages to {kind}") as lease:
            say(EventKind.HOLDS, number=lease.sequencer().token)
            work = Work(bucket, repository, lease, staged, restore=job.restore.get(kind))
            outcome = drive(publishing(work), job, kind, say)
            report_outcome(outcome, say)
    except EXPECTED as error:
        # A lease may be found lost at the end of the block, after the commit: what is published stays published.
        if outcome is None or not isinstance(error, lockstead.LeaseLost):
            report_failure(error, say)
    return outcome
