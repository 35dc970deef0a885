"""How the code of a function is exchanged in a running process for that of its mutant."""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from lockstead.runtime import interrupt
from tests.mutants.killing import Mutant, path_of
from tests.mutants.making import mutated

_IS_FUNCTION: Final = 0x2
"""The flag of a function's code; that of a class's body has it not."""


def statement(mutant: Mutant) -> tuple[int, int]:
    """Return the first and last line of the statement that is changed, of a compound one of its head."""
    node: Any = ast.parse(path_of(mutant.file).read_text("utf-8"))
    lines = (1, 1)
    for step, index in mutant.mutation.path:
        node = getattr(node, step) if index is None else getattr(node, step)[index]
        if isinstance(node, ast.match_case):
            lines = (node.pattern.lineno, node.pattern.end_lineno or node.pattern.lineno)
        elif isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
            lines = (node.lineno, max(node.lineno, last or node.lineno))
    return lines


def functions(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the functions of a module that no other function holds, by name and line."""
    found: dict[tuple[str, int], CodeType] = {}
    for one in code.co_consts:
        if not isinstance(one, CodeType):
            continue
        if one.co_flags & _IS_FUNCTION:
            found[one.co_qualname, one.co_firstlineno] = one
        else:
            found |= functions(one)
    return found


def swapped(mutant: Mutant) -> bool:
    """Put the changed functions in place; False if something else is changed."""
    path = str(path_of(mutant.file))
    source = Path(path).read_text("utf-8")
    whole = compile(source, path, "exec", dont_inherit=True)
    other = compile(mutated(source, mutant.mutation), path, "exec", dont_inherit=True)
    before, after = functions(whole), functions(other)
    changed = [key for key in before if key in after and before[key] != after[key]]
    if len(changed) != 1 or before.keys() != after.keys() or _rest(whole) != _rest(other):
        return False
    (key,) = changed
    is_put = False
    for one in gc.get_objects():
        if type(one) is not FunctionType or one.__code__.co_filename != path:
            continue
        if (one.__code__.co_qualname, one.__code__.co_firstlineno) == key:
            if one.__code__ in interrupt._UNINTERRUPTED:
                interrupt._UNINTERRUPTED.add(after[key])
            try:
                one.__code__ = after[key]
            except ValueError:  # it refers to other variables around it
                return False
            is_put = True
    return is_put


def _rest(code: CodeType) -> list[Any]:
    """Return what a module, or a class in it, runs itself when it is imported."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType) and not one.co_flags & _IS_FUNCTION]
    plain = [one for one in code.co_consts if not isinstance(one, CodeType)]
    return [code.co_code, plain, *map(_rest, inner)]
