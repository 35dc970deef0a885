"""The lines that the pages of the stores, and of the orchestrators, show are those that the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.inventory import SERVED

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = sorted((ROOT / "core/src/lockstead").rglob("*.py"))
PAGES: Final = sorted((ROOT / "docs/stores").glob("*.md"))
ORDER: Final = (
    "Setting up",
    "What it costs",
    "Waiting",
    "When something fails",
    "What it says",
    "What the doctor looks at",
    "Limits",
    "How it is stored",
)
"""The sections that all pages of stores have; each may have others."""

WITH_A_SERVER: Final = sorted(known.page for known in SERVED.values())
SHOWN: Final = re.compile(r"`([^`]+)`")


def said(tree: ast.AST) -> Iterator[str]:
    """Return every message of a source, with `…` for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [str(piece.value) if isinstance(piece, ast.Constant) else "…" for piece in node.values]
            yield "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def all_of(sources: list[Path]) -> str:
    return "\n".join(text for path in sources for text in said(ast.parse(path.read_text("utf-8"))))


@pytest.fixture(scope="module")
def texts() -> str:
    return all_of(SOURCES)


def lines(page: str, title: str = "What it says") -> list[str]:
    """Return the lines that a page's section shows in its first column."""
    _, _, section = page.partition(f"## {title}\n")
    rows = [row for row in section.split("\n## ")[0].splitlines() if row.startswith("| `")]
    return [line for row in rows for line in SHOWN.findall(row.split(" | ")[0])]


def unsaid(shown: list[str], texts: str) -> list[str]:
    return [
        piece
        for line in shown
        # a line may be put together from several texts: they meet at punctuation
        for piece in (piece.strip(" .)?`").removeprefix("or ") for piece in re.split("[…:;,(]", line))
        if len(piece) > 2 and piece not in texts
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_line_that_a_page_shows_is_said_somewhere(path: Path, texts: str) -> None:
    assert unsaid(lines(path.read_text("utf-8")), texts) == []


def test_stores_with_a_server_show_their_lines() -> None:
    shown = {path.stem: len(lines(path.read_text("utf-8"))) for path in PAGES}
    assert min(shown[name] for name in WITH_A_SERVER) > 3


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_store_pages_have_their_sections_in_one_order(path: Path) -> None:
    sections = [title for title in re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE) if title in ORDER]
    assert sections == [title for title in ORDER if title in sections]
    if path.stem in WITH_A_SERVER:
        assert set(sections) >= {"Setting up", "When something fails", "What it says", "How it is stored"}


@pytest.mark.parametrize(
    ("title", "package"),
    [("Airflow", "airflow_provider"), ("Prefect", "prefect_block"), ("Dagster", "dagster_resource")],
)
def test_each_log_line_in_the_docs_is_said_by_its_package(title: str, package: str, texts: str) -> None:
    shown = lines((ROOT / "docs/errors.md").read_text("utf-8"), title)
    assert len(shown) > 2
    own = all_of(sorted((ROOT / "packages" / package / "src").rglob("*.py")))
    assert unsaid(shown, f"{own}\n{texts}") == []
    # what only the core says would do for any of them
    assert len(unsaid(shown, texts)) > 2
