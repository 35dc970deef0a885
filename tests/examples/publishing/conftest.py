"""Keys and packages, built once; real clients, which on the project's own checks must not be missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from examples.publishing import clients
from examples.publishing.build import Recipe, build
from examples.publishing.signing import generate_key
from tests.examples.publishing.world import Shelf


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """A signing key and a few packages of both kinds, on disk."""
    folder = tmp_path_factory.mktemp("shelf")
    key = generate_key("Tests <tests@example.invalid>")
    (folder / "key.asc").write_text(key)
    paths: dict[tuple[str, str], Path] = {}
    for kind in ("deb", "rpm"):
        for name in ("seed", "alpha", "beta", "gamma", "delta"):
            paths[kind, name] = build(Recipe(name), kind, folder, folder / "key.asc")
        other = folder / "other"
        paths[kind, "alpha-other"] = build(Recipe("alpha", text="other bytes\n"), kind, other, folder / "key.asc")
        paths[kind, "alpha-2"] = build(Recipe("alpha", version="2.0"), kind, folder, folder / "key.asc")
    return Shelf(key, generate_key("Stranger <stranger@example.invalid>"), paths)


def _client(kind: str, *besides: str) -> None:
    absent = [*clients.missing(kind), *(program for program in besides if shutil.which(program) is None)]
    if absent and os.environ.get("CI") == "true":
        pytest.fail(f"not here: {', '.join(absent)}")
    if absent:
        pytest.skip(f"not here: {', '.join(absent)}")


@pytest.fixture
def apt_get() -> None:
    """The real apt-get is here."""
    _client("apt")


@pytest.fixture
def dnf() -> None:
    """The real dnf and rpm are here."""
    _client("yum", "rpmkeys")
