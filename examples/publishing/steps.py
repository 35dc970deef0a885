"""The pipeline in steps, for orchestrators that run and retry each step in a process of its own.

What one step passes to the next is a line of JSON: the packages wait in `incoming/`, and the version in progress is in
the bucket. Every step may be repeated; `build` then takes another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from examples.publishing.events import EventKind
from examples.publishing.gcs import GcsBucket
from examples.publishing.lease import Lease
from examples.publishing.pipeline import (
    Answer,
    Built,
    Outcome,
    Phases,
    Work,
    building,
    committing,
    fencing,
    pruning,
)
from examples.publishing.pointer import Pointer
from examples.publishing.runner import (
    EXPECTED,
    Job,
    Report,
    Reporter,
    drive,
    files_by_kind,
    report_failure,
    report_outcome,
    reporter_for,
    repository_of,
)
from examples.publishing.staging import find_staged, stage

Line: TypeAlias = Mapping[str, Any]
"""A value that fits on a line of JSON."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one job on one repository. Each reports its errors before it raises them.

    Each step gets the lease as an argument; the job's lock is not used.
    """

    job: Job
    kind: str
    report: Report

    def stage(self) -> list[str]:
        """Upload the packages, without the lock; return their digests, none if the job has no packages for this
        repository."""
        with self._bucket() as bucket:
            files = files_by_kind(self.job.files).get(self.kind, ())
            if not files:
                return []
            self._say(EventKind.STAGING)
            staged = stage(bucket, repository_of(self.job, self.kind), files)
            self._say(EventKind.WAITING)
        return [one.package.sha256 for one in staged]

    def fence(self, lease: Lease) -> Line:
        """Fence off every earlier holder; return the pointer that the other steps build upon."""
        self._say(EventKind.HOLDS, number=lease.sequencer().token)
        return asdict(self._drive(lease, fencing))

    def build(self, lease: Lease, staged: Iterable[str], fenced: Line) -> Line | None:
        """Create the next version from the fenced one and the staged packages; None if there is nothing to do."""
        below = Pointer(**fenced)
        built = self._drive(lease, lambda work: building(work, below), staged)
        if built is None:
            report_outcome(Outcome(below.number, (), ()), self._say)
            return None
        return asdict(built)

    def commit(self, lease: Lease, fenced: Line, built: Line) -> int:
        """Send readers to the new version; return its number."""
        whole = _built(built)
        self._drive(lease, lambda work: committing(work, Pointer(**fenced), whole))
        return whole.number

    def prune(self, lease: Lease, built: Line) -> list[int]:
        """Remove unneeded versions; return their numbers."""
        whole = _built(built)
        pruned = self._drive(lease, lambda work: pruning(work, whole))
        report_outcome(Outcome(whole.number, whole.added, pruned), self._say)
        return list(pruned or ())

    @property
    def _say(self) -> Reporter:
        return reporter_for(self.job, self.kind, self.report)

    def _drive(self, lease: Lease, part: Callable[[Work], Phases[Answer]], staged: Iterable[str] = ()) -> Answer:
        with self._bucket() as bucket:
            repository = repository_of(self.job, self.kind)
            work = Work(bucket, repository, lease, find_staged(bucket, repository, staged))
            return drive(part(work), self.job, self.kind, self._say)

    @contextmanager
    def _bucket(self) -> Iterator[GcsBucket]:
        bucket = GcsBucket(self.job.place.bucket)
        try:
            yield bucket
        except EXPECTED as error:
            report_failure(error, self._say)
            raise
        finally:
            bucket.close()


def _built(line: Line) -> Built:
    return Built(line["number"], tuple(line["chain"]), tuple(line["added"]))
