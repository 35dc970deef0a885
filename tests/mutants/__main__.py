"""Which mutants are run, remembers what became of each, and says which of them live.

    python -m tests.mutants [--files GLOB ...] [--sample N] [--seed N] [--jobs N] [--quick] [--list]

Resumable: a verdict stays in build/mutants.jsonl until the mutant's module changes. Interrupt it at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from tests.mutants.killing import PURE, ROOT, SOURCES, TABLES, UNIT, WRAPPERS, Mutant, of_file, path_of, tried
from tests.mutants.warm import ELSEWHERE, tried_warm

RESULTS: Final = ROOT / "build" / "mutants.jsonl"
SURVIVORS: Final = Path(__file__).parent / "survivors.toml"
FOLDERS: Final = ("protocol", "runtime")
REAPER: Final = ("tests/runtime", "tests/stores/test_memory.py")
"""What runs the engine with its threads, and the protocol once more."""


def files(patterns: Sequence[str]) -> list[str]:
    """Return the modules whose names match, protocol first."""
    known = ["renewal.py"]
    known += [
        str(path.relative_to(SOURCES))
        for folder in FOLDERS
        for path in sorted((SOURCES / folder).glob("*.py"))
        if path.name != "__init__.py"
    ]
    known += WRAPPERS
    return [file for file in known if not patterns or any(fnmatch(file, pattern) for pattern in patterns)]


def chosen(mutants: Sequence[Mutant], sample: int, seed: int) -> list[Mutant]:
    """Return this many of them at random, or all for 0. The same seed gives the same, whatever else changes in a
    module."""
    if not sample:
        return list(mutants)
    lots = {mutant.name: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest() for mutant in mutants}
    return sorted(mutants, key=lambda mutant: lots[mutant.name])[:sample]


def judged() -> dict[str, dict[str, str]]:
    """Return the judgement of each mutant that no test kills: `equivalent` and why, or `open` and what is missing."""
    return {said["name"]: said for said in tomllib.loads(SURVIVORS.read_text("utf-8"))["survivor"]}


def _digest(file: str) -> str:
    return hashlib.sha256(path_of(file).read_bytes()).hexdigest()[:16]


def known() -> dict[str, dict[str, Any]]:
    """Return the verdicts so far on mutants of modules that have not changed since."""
    if not RESULTS.exists():
        return {}
    lines = (json.loads(line) for line in RESULTS.read_text("utf-8").splitlines())
    digests = {file: _digest(file) for file in files(())}
    return {line["name"]: line for line in lines if digests.get(line["file"]) == line["digest"]}


def main(arguments: Sequence[str]) -> int:
    """Run them; return 1 if one without a judgement survives."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="*", default=[], help="modules below lockstead/, as protocol/members.py")
    parser.add_argument("--sample", type=int, default=0, help="so many by lot; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the lot")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="at once")
    parser.add_argument("--quick", action="store_true", help="of the protocol: without the tests of the runtime")
    parser.add_argument("--list", action="store_true", help="name the mutants and run none")
    asked = parser.parse_args(arguments)
    mutants = chosen([mutant for file in files(asked.files) for mutant in of_file(file)], asked.sample, asked.seed)
    if asked.list:
        sys.stdout.writelines(f"{mutant.name}\n" for mutant in mutants)
        return 0
    done = known()
    left = [mutant for mutant in mutants if mutant.name not in done]
    sys.stdout.write(f"{len(mutants)} mutants, {len(mutants) - len(left)} of them known\n")
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as results:
        for mutant, killer, took in _all(left, asked.jobs, is_quick=asked.quick):
            line = {
                "file": mutant.file,
                "digest": _digest(mutant.file),
                "name": mutant.name,
                "line": mutant.mutation.line,
                "killer": killer,
                "took": took,
            }
            done[mutant.name] = line
            results.write(json.dumps(line) + "\n")
            results.flush()
            if killer is None:
                sys.stdout.write(f"{time.strftime('%H:%M:%S')} lives: {mutant.name} (line {mutant.mutation.line})\n")
                sys.stdout.flush()
    return _told([done[mutant.name] for mutant in mutants if mutant.name in done])


def _all(left: Sequence[Mutant], jobs: int, *, is_quick: bool) -> Iterable[tuple[Mutant, str | None, float]]:
    """Run them: mutants inside functions in forks of one process, each other one in a process of its own."""
    protocol = [mutant for mutant in left if mutant.file.startswith(PURE)]
    wrappers = [mutant for mutant in left if mutant.file in WRAPPERS]
    others = [mutant for mutant in left if mutant not in protocol and mutant not in wrappers]
    apart: list[Mutant] = []
    stages = [(protocol, UNIT, True), (wrappers, TABLES, False), (others, REAPER, False)]
    while stages:
        mutants, places, is_seeded = stages.pop(0)
        named = {mutant.name: mutant for mutant in mutants}
        living: list[Mutant] = []
        for said in tried_warm(mutants, jobs, places, is_seeded=is_seeded) if mutants else ():
            if "name" not in said:
                sys.stdout.write(f"{said['tests']} tests, of which these fail on the whole engine: {said['failed']}\n")
                continue
            mutant = named[said["name"]]
            if said["killer"] == ELSEWHERE:
                apart.append(mutant)
            elif said["killer"] is None and is_seeded and not is_quick:
                living.append(mutant)
            else:
                yield mutant, said["killer"], said["took"]
        if living:
            stages.append((living, REAPER, False))
    with ThreadPoolExecutor(jobs) as pool:
        tries = {pool.submit(tried, mutant, is_quick=is_quick): mutant for mutant in apart}
        try:
            for done in as_completed(tries):
                yield tries[done], done.result().killer, done.result().took
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _told(lines: Sequence[dict[str, Any]]) -> int:
    living = [line["name"] for line in lines if line["killer"] is None]
    said = judged()
    unsaid = [name for name in living if name not in said]
    killed = len(lines) - len(living)
    sys.stdout.write(f"{len(lines)} run, {killed} killed, {len(living)} live, of {len(unsaid)} nothing is said\n")
    sys.stdout.writelines(f"  {name}\n" for name in unsaid)
    return 1 if unsaid else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
