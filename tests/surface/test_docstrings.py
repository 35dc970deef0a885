"""What a docstring explains as `name: ...` is a parameter, a field or an attribute, and not one that was renamed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = sorted([ROOT / "core/src", ROOT / "tests/simulation", *ROOT.glob("packages/*/src")])
EXPLAINED: Final = re.compile(r"(?:^|[.;)]\s+|\n\s*)((?:[a-z_][a-z_0-9]*(?:, | and ))*[a-z_][a-z_0-9]*): (?=\S)")

Documented: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef"


def names_in(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


def known_to(node: Documented, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Return the names in a function or class, and in the classes that it inherits from."""
    known = set(names_in(node))
    if isinstance(node, ast.ClassDef):
        for base in map(ast.unparse, node.bases):
            if base in classes and classes[base] is not node:
                known |= known_to(classes[base], classes)
    return known


def test_what_a_docstring_explains_is_there() -> None:
    trees = {path: ast.parse(path.read_text("utf-8")) for source in SOURCES for path in source.rglob("*.py")}
    documented = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    classes = {node.name.removesuffix("Base"): node for _path, node in documented if isinstance(node, ast.ClassDef)}
    classes |= {node.name: node for _path, node in documented if isinstance(node, ast.ClassDef)}
    explained, wrong = 0, []
    for path, node in documented:
        _summary, _, body = (ast.get_docstring(node) or "").partition("\n")
        for match in EXPLAINED.finditer(body):
            for name in re.split(r", | and ", match[1]):
                explained += 1
                if name not in known_to(node, classes):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} explains {name!r}")
    assert wrong == []
    assert explained > 250


@pytest.mark.parametrize("text", ["\nheeds: whether a change ends it.", "\n    at_least, heeds: seconds."])
def test_a_name_that_is_not_there_is_found(text: str) -> None:
    (match,) = EXPLAINED.finditer(text)
    assert match[1].endswith("heeds")
