"""Checks a model: spin generates a verifier, a C compiler builds it, and it visits every state.

Proved means: no error, and every state visited.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

MODELS = Path(__file__).parents[2] / "docs/protocol-model"
PROGRAMS = ("spin", "gcc")
DEPTH_MAX = 2_000_000
"""Steps of the longest path. A path that would be longer is an error of the check, never a silent end."""

DEEP_DEPTH_MAX = 40_000_000
SHORT_PATHS = (150, 300)
MEMORY_MIB = 2000
DEEP_MEMORY_MIB = 6000
LIMIT = 170.0
"""Seconds that one program may take, on a machine that has other things to do."""

DEEP_LIMIT = 3600.0

_CUT_SHORT = ("Search not completed", "max search depth too small", "out of memory", "Bit statespace", "aborted")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier found.

    violated is the promise that does not hold, None if all hold. is_whole: every reachable state was visited.
    unreached: lines of the model that no path comes to, by process. seconds is of the verifier alone.
    """

    violated: str | None
    is_whole: bool
    states: int
    unreached: dict[str, list[str]]
    seconds: float
    output: str

    @property
    def is_proved(self) -> bool:
        """Whether every promise holds in every state."""
        return self.violated is None and self.is_whole


def missing() -> list[str]:
    """Name the programs that are not here."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def check(
    model: str, *switches: str, depth: int | None = None, deep: bool = False, is_progress: bool = False
) -> Verdict:
    """Visit every state of a model with some of its switches on. RuntimeError if it cannot be checked at all.

    deep: it may take an hour and 6 GB, and not minutes and 2 GB. is_progress: look for endless paths without progress.
    """
    memory, limit, longest = (DEEP_MEMORY_MIB, DEEP_LIMIT, DEEP_DEPTH_MAX) if deep else (MEMORY_MIB, LIMIT, DEPTH_MAX)
    with tempfile.TemporaryDirectory(prefix="lockstead-model-") as folder:
        _build(Path(folder), model, switches, speed="-O1", memory=memory, is_progress=is_progress)
        return _search(Path(folder), longest if depth is None else depth, limit, is_progress=is_progress)


def refute(model: str, *switches: str, is_progress: bool = False) -> Verdict:
    """Look for a path that breaks a promise: among the short ones first, which are found at once and can be read."""
    with tempfile.TemporaryDirectory(prefix="lockstead-model-") as folder:
        # it ends so soon that the compiler's time counts
        _build(Path(folder), model, switches, speed="-O0", memory=MEMORY_MIB, is_progress=is_progress)
        for depth in SHORT_PATHS:
            short = _search(Path(folder), depth, LIMIT, is_progress=is_progress)
            if short.violated is not None:
                return short
        return _search(Path(folder), DEPTH_MAX, LIMIT, is_progress=is_progress)


def _build(where: Path, model: str, switches: tuple[str, ...], *, speed: str, memory: int, is_progress: bool) -> None:
    shutil.copy(MODELS / f"{model}.pml", where / "model.pml")
    _run(where, "spin", *(f"-D{switch}" for switch in switches), "-a", "model.pml")
    how = ("-DNP", "-DNFAIR=3") if is_progress else ("-DSAFETY", "-DNOFAIR")
    _run(where, "gcc", "-w", speed, *how, f"-DMEMLIM={memory}", "-o", "pan", "pan.c")


def _search(where: Path, depth: int, limit: float, *, is_progress: bool) -> Verdict:
    started_at = perf_counter()
    # no process that could always go on is passed over for ever
    output = _run(where, "./pan", f"-m{depth}", *(("-l", "-f") if is_progress else ()), limit=limit)
    return _verdict(output, perf_counter() - started_at)


def _run(where: Path, *words: str, limit: float = LIMIT) -> str:
    done = subprocess.run(words, cwd=where, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _verdict(output: str, seconds: float) -> Verdict:
    errors = re.search(r"errors: (\d+)$", output, re.MULTILINE)
    states = re.search(r"^\s*(\d+) states, stored", output, re.MULTILINE)
    if errors is None or states is None:
        raise RuntimeError(f"the verifier did not say what it found:\n{output}")
    first = re.search(r"^pan:1: (.*?)(?: \(at depth \d+\))?$", output, re.MULTILINE)
    violated = first.group(1).strip() if first is not None else None
    if int(errors.group(1)) > 0 and violated is None:
        violated = "something that the verifier did not name"
    is_whole = "Full statespace search" in output and not any(sign in output for sign in _CUT_SHORT)
    return Verdict(violated, is_whole, int(states.group(1)), _unreached(output), seconds, output)


def _unreached(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    process = ""
    for line in output.splitlines():
        started = re.match(r"unreached in (?:proctype )?(\w+)", line)
        if started is not None:
            process = started.group(1)
            found[process] = []
        elif process and (place := re.match(r"\s+model\.pml:(\d+), state \d+, \"(.*)\"", line)) is not None:
            found[process].append(f"{place.group(1)}: {place.group(2)}")
    return found
