"""The blocking modules: they are what the awaiting ones make, and nothing awaiting is left in them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import blocking

ROOT = Path(__file__).parents[2]
GENERATED = [(source, source.with_name(source.name.removeprefix("aio_"))) for source in blocking.sources()]


@pytest.mark.parametrize(
    ("awaiting", "made"),
    [
        ("async def acquire(self) -> AsyncLease:", "def acquire(self) -> Lease:"),
        ("lease = await (await lock.take()).release()", "lease = (lock.take()).release()"),
        ("async with AsyncHold(a), b:", "with Hold(a), b:"),
        ("async for lease in batch.iter_as_acquired():", "for lease in batch.iter_as_acquired():"),
        ("def each(self) -> AsyncIterator[AsyncLease]:", "def each(self) -> Iterator[Lease]:"),
        (
            "def f(a: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:",
            "def f(a: Callable[P, R]) -> Callable[P, R]:",
        ),
        ("from lockstead.aio_lease import AsyncLease", "from lockstead.lease import Lease"),
        ("from lockstead.runtime.awaiting import pause", "from lockstead.runtime.blocking import pause"),
        ("await self.__aexit__(kind, error, trace)", "self.__exit__(kind, error, trace)"),
        ('"""An `AsyncLock` for an `async with` block."""', '"""A `Lock` for a `with` block."""'),
        ("class _AsyncPart(AsyncBase):", "class _Part(Base):"),
        ("# is awaited, asynchronous, awaits", "# is awaited, asynchronous, awaits"),
    ],
)
def test_a_line_becomes_its_blocking_twin(awaiting: str, made: str) -> None:
    assert blocking.blocking(awaiting, "aio_x.py").splitlines()[1:] == [made]


def test_an_edited_generated_module_or_source_fails_the_check(tmp_path: Path) -> None:
    """In a copy: the script finds its folders beside itself."""
    folder = tmp_path / blocking.FOLDERS[0]
    (tmp_path / "scripts").mkdir()
    for name in blocking.FOLDERS:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    script = tmp_path / "scripts/blocking.py"
    script.write_text(Path(blocking.__file__).read_text())
    source, target = folder / "aio_hold.py", folder / "hold.py"
    source.write_text("import asyncio\n\n\nasync def hold() -> None:\n    await other()\n")

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stderr

    assert run("--check")[0] == 1
    assert run() == (0, f"wrote {blocking.FOLDERS[0]}/hold.py\n")
    assert "await" not in target.read_text()
    assert "asyncio" not in target.read_text()
    assert run("--check") == (0, "")
    target.write_text(target.read_text().replace("other()", "another()"))
    code, said = run("--check")
    assert (code, "-    another()" in said, "run `make blocking`" in said) == (1, True, True)
    run()
    source.write_text(source.read_text().replace("other", "third"))
    assert run("--check")[0] == 1


@pytest.mark.parametrize("target", [target for _, target in GENERATED], ids=lambda path: path.name)
def test_nothing_awaiting_is_left_in_a_generated_module(target: Path) -> None:
    text = target.read_text()
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)] == []
    assert re.findall(r"\bAsync[A-Z]\w*|\baio_\w+|\basyncio\b|__a(?:enter|exit)__", text.split("\n", 1)[1]) == []


def test_every_awaiting_module_has_a_blocking_counterpart() -> None:
    """So that a name that one of the two lacks is found before the module that imports it."""
    for folder in blocking.FOLDERS:
        for source in (ROOT / folder).glob("aio_*.py"):
            twin = source.with_name(source.name.removeprefix("aio_"))
            assert twin.exists(), source
            if source.name in blocking.BY_HAND:
                assert _public(twin) == {name.removeprefix("Async") for name in _public(source)}, source
    runtime = ROOT / blocking.FOLDERS[1]
    assert _public(runtime / "blocking.py") <= _public(runtime / "awaiting.py")


def _public(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith("_")}
