"""How a mutant is loaded into a process of its own, and which tests may kill it.

The process imports the engine with one module changed in memory; the files on disk do not change. Processes that the
tests start use the unchanged engine.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from tests.mutants.making import Mutation, mutated, mutations

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "core" / "src" / "lockstead"
SEEDS: Final = range(300)
LIMIT: Final = 240.0
"""Seconds for one mutant; one that hangs counts as killed. On the unchanged engine all stages take a fraction of it.
"""

PURE: Final = ("protocol/", "renewal.py")
"""What the tests of the protocol and the simulator run as it ships."""

UNIT: Final = ("tests/protocol",)
RUNTIME: Final = ("tests/runtime",)

WRAPPERS: Final = tuple(f"airflow_lockstead/{name}.py" for name in ("grants", "names", "naming", "outcomes", "wiring"))
"""The decisions of a wrapper that need no orchestrator."""

TABLES: Final = tuple(f"tests/airflow/test_{name}.py" for name in ("connection", "outcomes", "wiring"))
"""The tests of these."""


PYTEST: Final = ("-x", "-q", "-n0", "-o", "cache_dir=build/cache/mutants", "-m", "not slow", "--hypothesis-seed=0")
"""How tests are run on a mutant: the same each time, up to the first failure."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module. file is below `lockstead/`, or begins with the name of a wrapper's package."""

    file: str
    mutation: Mutation

    @property
    def name(self) -> str:
        """The name under which it is listed."""
        return f"{self.file} {self.mutation.name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a mutant. killer: the test, seed or time-out that caught it; None if it survives."""

    name: str
    line: int
    killer: str | None
    took: float


def path_of(file: str) -> Path:
    """Return where a module is, by its name in `Mutant`."""
    wrapper = next(ROOT.glob(f"packages/*/src/{file}"), None)
    return wrapper or SOURCES / file


def of_file(file: str) -> list[Mutant]:
    """Return all mutants of a module."""
    source = path_of(file).read_text("utf-8")
    return [Mutant(file, mutation) for mutation in mutations(source)]


def stages(file: str, *, is_quick: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the tests for a mutant of this module, the quickest first."""
    if file.startswith(PURE):
        yield "tests", UNIT
        yield "seeds", ()
        if not is_quick:
            yield "tests", RUNTIME
    else:
        yield "tests", TABLES if file in WRAPPERS else RUNTIME


def tried(mutant: Mutant, *, is_quick: bool = False, limit: float = LIMIT) -> Verdict:
    """Run one mutant in a process of its own, and end all processes that it has started."""
    began_at = time.monotonic()
    words = [sys.executable, "-m", "tests.mutants.killing", mutant.file, mutant.mutation.name, *["quick"] * is_quick]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True, **quiet) as process:
        try:
            said = process.communicate(timeout=limit)[0].decode()
        except subprocess.TimeoutExpired:
            said = json.dumps("it stands still")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    killer = json.loads(said) if said else f"the process ended: {process.returncode}"
    return Verdict(mutant.name, mutant.mutation.line, killer, round(time.monotonic() - began_at, 1))


def main(file: str, name: str, *quick: str) -> None:
    """Be the process of one mutant, and say its killer on the standard output, or null."""
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    mutant = next(mutant for mutant in of_file(file) if mutant.mutation.name == name)
    try:
        killer = _killer(mutant, is_quick=bool(quick))
    except BaseException as error:  # whatever it is, the mutant did not get past the tests
        killer = f"{type(error).__name__}: {error}"[:200]
    os.write(answers, json.dumps(killer).encode())
    os._exit(0)  # what the tests left running must not keep it


def _killer(mutant: Mutant, *, is_quick: bool) -> str | None:
    changed(mutant)
    for kind, places in stages(mutant.file, is_quick=is_quick):
        killer = _failed(places) if kind == "tests" else _violated()
        if killer is not None:
            return killer
    return None


def changed(mutant: Mutant) -> None:
    """Let this process import the module with the change in it."""
    path = path_of(mutant.file)
    dotted = ("" if SOURCES not in path.parents else "lockstead.") + mutant.file.removesuffix(".py").replace("/", ".")
    tree = mutated(path.read_text("utf-8"), mutant.mutation)
    sys.meta_path.insert(0, _Finder(dotted, path, tree))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, dotted: str, path: Path, tree: ast.Module) -> None:
        super().__init__(dotted, str(path))
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the changed module."""
        del fullname
        code: CodeType = compile(self._tree, self.path, "exec", dont_inherit=True)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, dotted: str, path: Path, tree: ast.Module) -> None:
        self._dotted, self._path, self._tree = dotted, path, tree

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Find the changed module, and no other."""
        del path, target
        if fullname != self._dotted:
            return None
        loader = _Loader(self._dotted, self._path, self._tree)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


def _failed(places: tuple[str, ...]) -> str | None:
    """Run tests until one fails, and give its name."""
    import pytest

    failed: list[str] = []

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                failed.append(f"{report.nodeid}: it cannot be imported")

    code = pytest.main([*PYTEST, "--timeout=60", *(str(ROOT / place) for place in places)], plugins=[Watch()])
    if code == 0:
        return None
    return failed[0] if failed else f"pytest ended with {int(code)}"


def _violated() -> str | None:
    from tests.simulation import play

    for seed in SEEDS:
        if (run := play(seed)).violation is not None:
            return f"seed {seed}: {run.violation}"[:200]
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
