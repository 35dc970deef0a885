"""Whether a run of `tests.processes.sharing_run` kept the promise: nothing changed under anybody who may believe."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tests.processes.journal import Event, Journal

ROOT = Path(__file__).parents[2]


def start(url: str, folder: Path, seconds: float, *words: str) -> subprocess.Popen[str]:
    """Start a run; its seed is in its arguments."""
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-m", "tests.processes.sharing_run", url, str(folder), "--seed", f"{seed}"]
    return subprocess.Popen([*command, "--seconds", f"{seconds}", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)


def end(run: subprocess.Popen[str], folder: Path) -> list[Event]:
    """Wait for the end of a run, and return its journal."""
    _out, errors = run.communicate(timeout=240)
    assert run.returncode == 0, f"{run.args!r}: {errors}"
    with Journal(folder / "journal") as journal:
        return journal.events()


def faults(events: Sequence[Event], *, tells_unclean: bool) -> list[str]:
    """Return every broken promise. tells_unclean: the store reports how the previous lease ended."""
    return [
        *(f"{one.holder} saw under its lease: {one.word}" for one in events if one.what == "changed"),
        *(f"{one.holder} was refused while it held: {one.word}" for one in events if one.what == "refused"),
        *_half_written(events, tells_unclean=tells_unclean),
        *_unjust_losses(events),
        *_lost_writes(events),
        *(f"nobody got in at last to {mode}" for mode in _never(events)),
    ]


def _half_written(events: Sequence[Event], *, tells_unclean: bool) -> Iterator[str]:
    """A half-written page has a writer that was cut off, and whoever sees it was told so."""
    pids = {one.holder: one.pid for one in events if one.what == "began"}
    killed = {one.pid for one in events if one.what == "killed"}
    cut_off = {one.holder for one in events if one.what in ("lost", "silent")}
    for one in events:
        if one.what == "half":
            if pids[one.holder] not in killed and one.holder not in cut_off:
                yield f"process {one.pid} saw what {one.holder} had half written, and was not cut off"
            if tells_unclean and one.word != "EXPIRED":
                yield f"process {one.pid} saw what {one.holder} had half written, and was told {one.word}"


def _unjust_losses(events: Sequence[Event]) -> Iterator[str]:
    for one in events:
        if one.what == "lost" and one.word in ("TAKEN", "GONE", "REVOKED") and one.at < one.until:
            yield f"{one.holder} lost its lease ({one.word}) {one.until - one.at:.3f} s before its time"


def _lost_writes(events: Sequence[Event]) -> Iterator[str]:
    by_value: dict[int | None, str] = {}
    for one in events:
        # in no order: one that is stopped after its last change notes it late
        if one.what == "wrote" and one.value in by_value:
            yield f"{one.holder} wrote {one.value}, as {by_value[one.value]} did: a change was lost"
        if one.what == "wrote":
            by_value[one.value] = one.holder


def _never(events: Sequence[Event]) -> set[str]:
    return {"exclusive", "shared"} - {one.word for one in events if one.what == "finally"}


def tally(events: Sequence[Event]) -> dict[str, int]:
    """Count what a run was made of, to see that it showed something."""
    count = {
        what: sum(one.what == what for one in events)
        for what in ("killed", "stops", "continued", "lost", "half", "wrote", "silent")
    }
    last: dict[str, Event] = {one.holder: one for one in events if one.what == "reads"}
    reads = sorted(last.values(), key=lambda one: one.at)
    together = sum(after.at < before.until and after.pid != before.pid for before, after in pairwise(reads))
    return {**count, "reads": len(reads), "together": together}
