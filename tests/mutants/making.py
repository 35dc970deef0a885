"""The small changes that can be made to a module of the engine: lists them, and makes one of them.

Pure: text in, text out. A name tells what is changed and where, without a line number, so it stays the same when
something else in the file moves.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_ORDER: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BOUNDARIES: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_OPPOSITE: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}

Change = Callable[[Any], Any]
"""Changes a node in place, or returns its replacement. It is called on a copy of the tree."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. name: unique in its module, and the same as long as the place reads the same."""

    name: str
    line: int
    path: tuple[tuple[str, int | None], ...]
    change: Change


def mutations(source: str) -> list[Mutation]:
    """Return all changes that a module can suffer, in the order of the text."""
    found: list[Mutation] = []
    seen: Counter[str] = Counter()
    for path, where, node in _nodes(ast.parse(source), (), ""):
        for change, after in _changes(node):
            before = _short(ast.unparse(node))
            name = f"{where or 'module'}: {before} -> {after}"
            seen[name] += 1
            line = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
            found.append(Mutation(name if seen[name] == 1 else f"{name} #{seen[name]}", line, path, change))
    return found


def mutated(source: str, mutation: Mutation) -> ast.Module:
    """Return the module with one change made."""
    tree = ast.parse(source)
    parent: Any = tree
    for field, index in mutation.path[:-1]:
        parent = getattr(parent, field) if index is None else getattr(parent, field)[index]
    field, index = mutation.path[-1]
    place = getattr(parent, field)
    changed = mutation.change(place if index is None else place[index])
    if index is None:
        setattr(parent, field, changed)
    elif changed is None:
        del place[index]
    else:
        place[index] = changed
    return ast.fix_missing_locations(tree)


def _short(text: str) -> str:
    first, *more = text.splitlines()
    text = first if not more else f"{first} ..."
    return text if len(text) <= 90 else f"{text[:87]}..."


Path = tuple[tuple[str, "int | None"], ...]


def _nodes(node: ast.AST, path: Path, where: str) -> Iterator[tuple[Path, str, Any]]:
    """Yield every node that may be changed: neither annotations, nor decorators, messages, or what types alone see."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.JoinedStr | ast.Raise):
        if isinstance(node, ast.Raise):
            yield path, where, node
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}" if where else node.name
    if isinstance(node, ast.expr | ast.stmt | ast.match_case) and path:
        yield path, where, node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords", "pattern"):
            continue
        if isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield from _nodes(one, (*path, (field, index)), where)
        elif isinstance(value, ast.AST):
            inner = _nodes(value, (*path, (field, None)), where)
            if field == "test" and isinstance(value, ast.Compare) and not isinstance(value.ops[0], _BOUNDARIES):
                next(inner)  # the other way round it does no more than a test that is always true or always false
            yield from inner
    if isinstance(node, ast.Call):
        for index, keyword in enumerate(node.keywords):
            yield from _nodes(keyword.value, (*path, ("keywords", index), ("value", None)), where)


def _changes(node: Any) -> Iterator[tuple[Change, str]]:
    match node:
        case ast.Compare(ops=ops):
            yield from _comparisons(node, ops)
        case ast.BoolOp():
            yield _set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield (lambda one: one.operand), _short(ast.unparse(node.operand))
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield _set(node, "op", _ARITHMETIC[type(op)]())
        case ast.Constant(value=bool(value)):
            yield (lambda _: ast.Constant(not value)), str(not value)
        case ast.Constant(value=int() | float() as number):
            yield (lambda _: ast.Constant(number + 1)), str(number + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _OPPOSITE:
            yield _set(node, "func", ast.Name(_OPPOSITE[name], ast.Load()))
        case ast.Call(keywords=[_, *_] as keywords):
            for index, keyword in enumerate(keywords):
                if keyword.arg is not None:
                    yield _without(index), f"without {keyword.arg}"
        case ast.If() | ast.While() | ast.IfExp():
            for value in (True, False) if not isinstance(node, ast.While) else (False,):
                yield _test(value), f"if {value}"
        case ast.comprehension(ifs=[_, *_]):
            yield _emptied("ifs"), "without its condition"
        case ast.match_case():
            yield (lambda _: None), "no such case"
        case ast.Raise() | ast.AugAssign() | ast.Delete():
            yield (lambda _: ast.Pass()), "nothing"
        case ast.Expr(value=value) if not isinstance(value, ast.Constant):
            yield (lambda _: ast.Pass()), "nothing"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple()]):
            yield (lambda _: ast.Pass()), "nothing"
        case ast.Break():
            yield (lambda _: ast.Continue()), "continue"
        case ast.Continue():
            yield (lambda _: ast.Break()), "break"
        case _:
            return


def _comparisons(node: ast.Compare, ops: list[ast.cmpop]) -> Iterator[tuple[Change, str]]:
    for index, op in enumerate(ops):
        for other in _ORDER[type(op)]:
            changed = copy.deepcopy(node)
            changed.ops[index] = other()

            def change(one: Any, index: int = index, other: type[ast.cmpop] = other) -> Any:
                one.ops[index] = other()
                return one

            yield change, _short(ast.unparse(changed))


def _set(node: Any, field: str, value: Any) -> tuple[Change, str]:
    changed = copy.deepcopy(node)
    setattr(changed, field, value)

    def change(one: Any) -> Any:
        setattr(one, field, value)
        return one

    return change, _short(ast.unparse(changed))


def _test(value: bool) -> Change:
    def change(one: Any) -> Any:
        one.test = ast.Constant(value)
        return one

    return change


def _without(index: int) -> Change:
    def change(one: Any) -> Any:
        del one.keywords[index]
        return one

    return change


def _emptied(field: str) -> Change:
    def change(one: Any) -> Any:
        setattr(one, field, [])
        return one

    return change
