"""The pipeline in steps, as an orchestrator runs it: from lines of JSON, any of them again, stale ones in vain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from examples.publishing.errors import Refused, Superseded
from examples.publishing.events import Event, EventKind
from examples.publishing.gcs import GcsBucket, Place
from examples.publishing.oracle import Entry, Verdict, judge
from examples.publishing.runner import FORMATS, Job
from examples.publishing.signing import Signer
from examples.publishing.steps import Steps
from gcs_emulator import GcsServer
from tests.examples.publishing.world import KINDS, HandMadeLease, Shelf

BOTH = pytest.mark.parametrize("kind", ["apt", "yum"])


def handed_on(line: Any) -> Any:
    """Return what an orchestrator's database returns."""
    return json.loads(json.dumps(line))


@dataclass
class Run:
    """One run on one repository; the result of a step goes to the next one as text."""

    steps: Steps
    lease: HandMadeLease
    line: dict[str, Any] = field(default_factory=dict)

    def stage(self) -> None:
        self.line["staged"] = handed_on(self.steps.stage())

    def fence(self) -> None:
        self.line["fenced"] = handed_on(self.steps.fence(self.lease))

    def build(self) -> None:
        self.line["built"] = handed_on(self.steps.build(self.lease, self.line["staged"], self.line["fenced"]))

    def commit(self) -> int:
        return self.steps.commit(self.lease, self.line["fenced"], self.line["built"])

    def prune(self) -> list[int]:
        return self.steps.prune(self.lease, self.line["built"])

    def whole(self) -> None:
        for step in (self.stage, self.fence, self.build, self.commit, self.prune):
            step()


@dataclass
class Yard:
    """A repository on a server, and the events of all who publish to it."""

    server: GcsServer
    kind: str
    shelf: Shelf
    events: list[Event] = field(default_factory=list)

    def run(self, token: int, *names: str) -> Run:
        files = tuple(self.shelf.paths[KINDS[self.kind][1], name] for name in names)
        job = Job(f"run-{token}", Place("b", "mine/"), self.shelf.key, files, lock=None)
        return Run(Steps(job, self.kind, self.events.append), HandMadeLease(token))

    def said(self, what: EventKind) -> list[Event]:
        return [event for event in self.events if event.what is what]

    def judge(self, *names: str) -> Verdict:
        found = [FORMATS[self.kind].inspect(self.shelf.paths[KINDS[self.kind][1], name]) for name in names]
        reported = [Entry(one.name, one.version, one.arch, one.sha256) for one in found]
        bucket = GcsBucket("b", endpoint=self.server.url)
        try:
            key = Signer.from_armor(self.shelf.key).public_key
            return judge(bucket, f"mine/{self.kind}/", self.kind, key, reported, reported)
        finally:
            bucket.close()


@pytest.fixture
def yard(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Yard]]:
    with GcsServer(buckets=["b"]) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield lambda kind: Yard(server, kind, shelf)


@BOTH
def test_steps_one_after_the_other_publish_and_report(yard: Callable[[str], Yard], kind: str) -> None:
    there = yard(kind)
    there.run(1, "seed").whole()
    there.run(2, "alpha", "beta").whole()
    verdict = there.judge("seed", "alpha", "beta")
    assert verdict.is_good, str(verdict)
    assert [(one.number, one.text) for one in there.said(EventKind.PUBLISHED)] == [(1, "seed"), (2, "alpha, beta")]


@BOTH
def test_every_step_may_be_done_twice_and_the_half_version_goes(yard: Callable[[str], Yard], kind: str) -> None:
    there = yard(kind)
    run = there.run(1, "alpha")
    for step in (run.stage, run.fence, run.build):
        step()
        step()
    assert run.line["built"]["number"] == 2
    assert [run.commit(), run.commit()] == [2, 2]
    assert [run.prune(), run.prune()] == [[1], []]
    verdict = there.judge("alpha")
    assert verdict.is_good, str(verdict)


@BOTH
@pytest.mark.parametrize("late", ["build", "commit"])
def test_a_superseded_publisher_changes_nothing_for_readers(yard: Callable[[str], Yard], kind: str, late: str) -> None:
    there = yard(kind)
    there.run(1, "seed").whole()
    stale = there.run(2, "alpha")
    for step in (stale.stage, stale.fence) if late == "build" else (stale.stage, stale.fence, stale.build):
        step()
    there.run(3, "beta").whole()
    if late == "build":
        stale.build()
    with pytest.raises(Superseded, match="this run holds token 2"):
        stale.commit()
    assert [one.run for one in there.said(EventKind.REFUSED)] == ["run-2"]
    verdict = there.judge("seed", "beta")
    assert verdict.is_good, str(verdict)


@BOTH
def test_without_news_there_is_nothing_to_build(yard: Callable[[str], Yard], kind: str) -> None:
    there = yard(kind)
    there.run(1, "seed").whole()
    again = there.run(2, "seed")
    again.stage()
    again.fence()
    again.build()
    assert again.line["built"] is None
    assert there.said(EventKind.PUBLISHED)[-1].text == "nothing new"
    assert there.judge("seed").version == 1


@BOTH
def test_a_run_without_packages_does_not_request_the_lock(yard: Callable[[str], Yard], kind: str) -> None:
    there = yard(kind)
    run = there.run(1)
    run.stage()
    assert run.line["staged"] == []
    assert there.events == []


@BOTH
def test_what_was_staged_and_is_gone_or_damaged_is_refused(yard: Callable[[str], Yard], kind: str) -> None:
    there = yard(kind)
    run = there.run(1, "alpha")
    run.stage()
    run.fence()
    bucket = GcsBucket("b", endpoint=there.server.url)
    name = f"mine/{kind}/incoming/{run.line['staged'][0]}"
    content = bucket.read(name)
    bucket.replace(name, b"?" + content[1:], generation=bucket.stat(name).generation)
    with pytest.raises(Refused, match="is damaged"):
        run.build()
    bucket.delete(name, generation=bucket.stat(name).generation)
    with pytest.raises(Refused, match="has vanished"):
        run.build()
    bucket.close()
    assert len(there.said(EventKind.FAILED)) == 2
