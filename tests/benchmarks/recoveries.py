"""How it is measured what becomes of a section whose holder is killed; ours and theirs at the same time.

The minutes are waited for by all at once: those that nothing else happens to, and those whose servers, too, are killed
and started again. Must not know how a section is kept.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.benchmarks.figures import Row, paired
from tests.benchmarks.processes import Process, Site, site
from tests.benchmarks.stays import THEIRS, lines
from tests.benchmarks.stays import recoveries as recovered

PATIENCE: Final = 240.0
"""Seconds after the kill until a section is given up."""

SECTIONS: Final = 3
"""Of each kind: they recover at one moment or another."""

APART: Final = 2.5
"""Seconds between their leases: Prefect's server looks now and then for those that are over, ours end at any time."""

SETTLED: Final = 1.0
"""Seconds for which the last one has been waited for at the kill. No lease of either has been renewed until then."""

Found = Sequence[float | None]


class Trial:
    """One kind: a process that holds some sections, and one that waits for each of them."""

    def __init__(self, here: Site, kind: str, processes: Sequence[Process], name: str) -> None:
        self._holder, self._follower = processes
        self._places = [here.place(kind, f"{name}-{number}") for number in range(SECTIONS)]
        self._notes = here.notes(kind, name)
        self._struck_at = 0.0
        words = {"notes": str(self._notes), "kind": kind, "places": self._places}
        self._holder.order("hold", **words, apart=APART)
        self._follower.order("follow", **words)

    def hear(self) -> None:
        """Wait until nothing is missing but the sections."""
        self._follower.hear("ready")
        self._holder.hear("ready")

    def begin(self) -> None:
        """Have the sections entered, and each waited for from then on."""
        self._follower.say("go")
        self._holder.say("go")

    @property
    def is_waited_for(self) -> bool:
        """Whether all are held, and waited for."""
        return sum(line["what"] == "asks" for line in lines(self._notes)) == 2 * SECTIONS

    def strike(self) -> None:
        """Kill the holders."""
        self._struck_at = time.monotonic()
        self._holder.kill()

    @property
    def recovered(self) -> Found:
        """The seconds from the kill until each was entered again."""
        return recovered(lines(self._notes), self._places, self._struck_at)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be seen."""
        return None not in self.recovered or time.monotonic() > self._struck_at + PATIENCE


def recoveries(here: Site, processes: list[Process], directory: Path, ours: Sequence[str], there: str) -> Iterator[Row]:
    """Kill the holders, here and on servers that are then started again; wait for all of them."""
    kinds = (THEIRS, *ours)
    with site("SQLite", directory / "restarted") as other:
        more = [other.process() for _ in range(2 * len(kinds))]
        for process in more:
            process.hear("started")
        killed = [Trial(here, kind, processes[2 * at : 2 * at + 2], "killed") for at, kind in enumerate(kinds)]
        restarted = [Trial(other, kind, more[2 * at : 2 * at + 2], "restarted") for at, kind in enumerate(kinds)]
        trials = (*killed, *restarted)
        for trial in trials:
            trial.hear()
        for trial in trials:  # all at once: leases of the same age end at the same time
            trial.begin()
        while not all(trial.is_waited_for for trial in trials):
            time.sleep(0.05)
        time.sleep(SETTLED)
        for trial in trials:
            trial.strike()
        other.restart()
        while not all(trial.is_over for trial in trials):
            time.sleep(0.2)
        yield from beside("holder killed", kinds, [one.recovered for one in killed], there)
        what = "holder killed, servers restarted"
        yield from beside(what, kinds, [one.recovered for one in restarted], there)


def beside(what: str, kinds: Sequence[str], found: Sequence[Found], there: str) -> Iterator[Row]:
    """Put ours beside theirs. Where theirs did not recover, it is enough that ours did."""
    theirs = _whole(found[0])
    for kind, each in zip(kinds[1:], found[1:], strict=True):
        words = f"`@locked` on {kind}: {what}: until the next enters"
        mine = _whole(each)
        ours = statistics.median(mine) if mine else math.inf
        if not theirs:
            yield Row(words, ours, "s", PATIENCE, f"{there}: not within {PATIENCE:g} s")
        elif not mine:
            yield Row(words, ours, "s", 1.0, there, statistics.median(theirs), math.inf, of_ratio=True)
        else:
            pair = paired(mine, theirs)
            spread = f"{pair.low:.2f}-{pair.high:.2f}"
            yield Row(words, ours, "s", 1.0, there, pair.theirs, pair.ratio, spread, of_ratio=True)


def _whole(found: Found) -> list[float]:
    """Return all of them, or none if one is missing."""
    seconds = [one for one in found if one is not None]
    return seconds if len(seconds) == len(found) else []
