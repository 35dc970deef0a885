"""Where Ctrl-C would leave a lock of ours held forever, by how the compiler lays out loops."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import lockstead

HARMLESS = {
    "Keeper._renew_next": "in the crew",
    "Keeper._renew_many": "in the crew",
    "Workers._next": "in the crew",
    "Listener._take_locks": "in the thread that listens to PostgreSQL",
    "Listener._take_fresh": "in the thread that listens to PostgreSQL",
    "Listener._lost": "in the thread that listens to Redis",
    "_Stream.run": "in the thread that listens to etcd",
    "_keep_alive": "holds nothing: it suppresses errors",
    "cancel": "holds nothing: it suppresses errors",
    "Queue.shown": "holds nothing: it suppresses errors",
    "Changes._look": "in the thread that looks at SQLite's file",
}
"""Functions in whose `with` statements a Ctrl-C leaves nothing held: most are run by threads of ours alone, and signals
are handled in the main thread."""


def functions(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from functions(one)


def skips_a_with(code: CodeType) -> Iterator[int]:
    """Return the lines from which a jump goes into a `with` statement, and which that statement does not cover."""
    entries: list[Any] = vars(dis.Bytecode(code))["exception_entries"]
    steps = {one.offset: one for one in dis.get_instructions(code)}
    after = dict(zip(steps, [*steps][1:], strict=False))

    def handlers(at: int) -> Iterator[int]:
        seen: set[int] = set()
        while (entry := next((one for one in entries if one.start <= at < one.end), None)) is not None:
            if entry.target in seen:
                return
            seen.add(entry.target)
            yield entry.target
            at = entry.target

    for jump in steps.values():
        if jump.opname != "JUMP_BACKWARD":
            continue
        covering = {at for at in handlers(jump.argval) if steps[after[at]].opname == "WITH_EXCEPT_START"}
        if covering - set(handlers(jump.offset)):
            yield jump.positions.lineno or 0 if jump.positions else 0


@pytest.mark.skipif(sys.version_info < (3, 13), reason="up to 3.12 signals are handled after a jump back")
def test_no_loop_inside_a_with_jumps_back_from_outside_of_it() -> None:
    """A Ctrl-C at such a jump skips `__exit__`: a lock stays held, and every thread that wants it waits forever."""
    root = Path(lockstead.__file__).parent
    found = {
        f"{path.relative_to(root)}:{line} {code.co_qualname}"
        for part in ("runtime", "stores", ".")
        for path in (root / part).glob("**/*.py" if part != "." else "*.py")
        for code in functions(compile(path.read_text(), str(path), "exec"))
        for line in skips_a_with(code)
        if code.co_qualname not in HARMLESS
    }
    assert found == set()
