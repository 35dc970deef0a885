"""A store is registered in one place, and found there by all: the tests, the docs, the extras."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from pathlib import Path
from typing import Final

import pytest

from lockstead.stores.url import OURS
from tests.inventory import STORES, folder

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = sorted({folder(scheme) for scheme in OURS})
SHARED: Final = {
    # its masters are Redis servers: how one is reached, and what its errors mean, is known once
    "lockstead.stores.redlock": ("redis.access", "redis.connection", "redis.errors", "redis.resp", "redis.url"),
}


def test_the_tests_know_every_store_that_is_registered() -> None:
    assert sorted(map(folder, STORES)) == FOLDERS, "each folder of a store has an entry in STORES of tests/inventory.py"


def test_every_store_has_its_page_and_every_page_its_store() -> None:
    pages = {path.stem for path in (ROOT / "docs/stores").glob("*.md")}
    assert {known.page for known in STORES.values()} == pages, "each store has a page in docs/stores"


def test_every_extra_is_that_of_a_store_or_of_the_core_itself() -> None:
    extras = tomllib.loads((ROOT / "core/pyproject.toml").read_text())["project"]["optional-dependencies"]
    everything = extras.pop("all")
    others = {"cli", "dashboard", "otel", "prometheus", "reaper", "times"}
    assert set(extras) == others | {known.extra for known in STORES.values() if known.extra}
    assert everything == [f"lockstead[{','.join(sorted(extras))}]"]


@pytest.mark.parametrize("store", FOLDERS)
def test_stores_do_not_import_one_another(store: str) -> None:
    allowed = (f"{store}.", *(f"lockstead.stores.{module}" for module in SHARED.get(store, ())))
    spec = importlib.util.find_spec(store)
    assert spec is not None
    assert spec.origin is not None
    imported = {name for path in Path(spec.origin).parent.rglob("*.py") for name in imports(path)}
    others = tuple(f"{other}." for other in FOLDERS if other != store)
    assert sorted(name for name in imported if f"{name}.".startswith(others) and not name.startswith(allowed)) == []


def imports(path: Path) -> list[str]:
    """Return what a module imports, each name that is taken from another module with that module's."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path  # an absolute import always names its module
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found
