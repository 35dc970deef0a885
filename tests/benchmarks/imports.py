"""What it costs a program to import lockstead and to name a lock: a DAG file does both, every few seconds."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.figures import Row, Size, paired

ROUNDS_MAX = 25

BARE = "pass"
IMPORT = "import lockstead"
NAME = "import lockstead; lockstead.Lock('gs://bucket/locks/apt')"


def run(code: str) -> float:
    """Run code in a new Python; return its CPU time in seconds, which other processes do not lengthen."""
    # the first run leaves the compiled files for the others
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports(size: Size) -> Iterator[Row]:
    """Measure three programs in turn."""
    taken: dict[str, list[float]] = {BARE: [], IMPORT: [], NAME: []}
    for code in taken:
        run(code)
    for _ in range(min(size.rounds, ROUNDS_MAX)):
        for code, seconds in taken.items():
            seconds.append(run(code))
    imported = paired(taken[IMPORT], taken[BARE])
    named = paired(taken[NAME], taken[IMPORT])
    more = (imported.ours - imported.theirs) * 1e3
    yield Row("`import lockstead`, above bare Python", more, "ms", 50, "bare Python", imported.theirs * 1e3)
    more = (named.ours - named.theirs) * 1e3
    yield Row("naming a `gs:` lock, above the import", more, "ms", 5, "`import lockstead`", named.theirs * 1e3)
