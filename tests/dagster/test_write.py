"""What an I/O manager writes is written under the lock, also in a process of its own."""

from __future__ import annotations

import dagster as dg

from lockstead import LockInfo
from tests.dagster.runs import apart, failure_of, metadata_of
from tests.dagster.taking import Beside, Place, taken_away, until


def test_an_output_written_in_a_step_process_is_under_the_lock(place: Place, instance: dg.DagsterInstance) -> None:
    seen: list[LockInfo | None] = []

    def look() -> None:
        until(lambda: place.has("in"), "the output is written")
        seen.append(place.lock().inspect())
        taken_away(place)()

    with Beside(look):
        result = apart(instance, "writes")
    [held] = seen
    assert held is not None
    assert not held.is_expired
    assert held.owner == f"dagster:{result.run_id}:writes:0"
    said = metadata_of(failure_of(result, "writes"))
    assert (said["lockstead/holder"], said["lockstead/reason"]) == (held.holder, "REVOKED")
    assert not place.has("written")
