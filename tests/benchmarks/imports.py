"""What it costs a program to import lockstead and to name a lock: a DAG file does both, every few seconds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from tests.benchmarks.figures import Row, Size, each, paired

ROUNDS_MAX = 25

BARE = "pass"
IMPORT = "import lockstead"
NAME = "import lockstead; lockstead.Lock('gs://bucket/locks/apt')"


def run(code: str) -> None:
    """Run code in a Python of its own."""
    subprocess.run([sys.executable, "-c", code], check=True)


def imports(size: Size) -> Iterator[Row]:
    """Measure three programs in turn."""
    programs = {code: partial(run, code) for code in (BARE, IMPORT, NAME)}
    taken: dict[str, list[float]] = {code: [] for code in programs}
    for number in range(min(size.rounds, ROUNDS_MAX) + 1):
        for code, work in programs.items():
            took = each(work, 1)
            if number > 0:  # the first may compile
                taken[code].append(took)
    imported = paired(taken[IMPORT], taken[BARE])
    named = paired(taken[NAME], taken[IMPORT])
    more = (imported.ours - imported.theirs) * 1e3
    yield Row("`import lockstead`, above bare Python", more, "ms", 50, "bare Python", imported.theirs * 1e3)
    more = (named.ours - named.theirs) * 1e3
    yield Row("naming a `gs:` lock, above the import", more, "ms", 5, "`import lockstead`", named.theirs * 1e3)
