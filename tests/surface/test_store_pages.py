"""The lines that the pages of the stores show are those that the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = sorted((ROOT / "core/src/lockstead").rglob("*.py"))
PAGES: Final = sorted((ROOT / "docs/stores").glob("*.md"))
SHOWN: Final = re.compile(r"`([^`]+)`")


def said(tree: ast.AST) -> Iterator[str]:
    """Give every text of a source, with `…` for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [str(piece.value) if isinstance(piece, ast.Constant) else "…" for piece in node.values]
            yield "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def texts() -> str:
    return "\n".join(text for path in SOURCES for text in said(ast.parse(path.read_text("utf-8"))))


def lines(page: str) -> list[str]:
    """Give the lines that a page's section "What it says" shows in its first column."""
    _, _, section = page.partition("## What it says\n")
    rows = [row for row in section.split("\n## ")[0].splitlines() if row.startswith("| `")]
    return [line for row in rows for line in SHOWN.findall(row.split(" | ")[0])]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_line_that_a_page_shows_is_said_somewhere(path: Path, texts: str) -> None:
    missing = [
        piece
        for line in lines(path.read_text("utf-8"))
        # a line may be put together from several texts: they meet at punctuation
        for piece in (piece.strip(" .)?`").removeprefix("or ") for piece in re.split("[…:;,(]", line))
        if len(piece) > 2 and piece not in texts
    ]
    assert missing == []


def test_stores_with_a_server_show_their_lines() -> None:
    shown = {path.stem: len(lines(path.read_text("utf-8"))) for path in PAGES}
    assert min(shown[name] for name in ("redis", "redlock", "etcd", "postgresql", "zookeeper", "cassandra")) > 5
