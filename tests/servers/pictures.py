"""How the pictures of the docs are taken: each of one page, in one browser, small enough for everybody.

Must not know whose pages they are. A page has to say what its picture is there for before the picture is taken; only
pages that name nobody's machine may be shown. Look at them all the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.servers.browser import Browser

WIDTH: Final = 1280
"""Of every picture, in pixels."""

LARGEST: Final = 150_000
"""Bytes of a picture: who reads a page loads all of them."""

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"

Show = Callable[[Browser], None]


def destination(owner_filter: str) -> Path:
    """Read the command's words; give the directory that the pictures go to."""
    words = argparse.ArgumentParser(description=f"take the pictures of the docs in a real {owner_filter}")
    words.add_argument("--into", type=Path, default=PICTURES, help="the directory they go to")
    into: Path = words.parse_args().into
    return into


def take(site: str, directory: Path, into: Path, pictures: Mapping[str, Show]) -> None:
    """Take pictures, by their names, of a site that is ready for it. directory is for what the browser keeps."""
    into.mkdir(parents=True, exist_ok=True)
    with Browser(directory, site) as browser:
        browser.open("/")
        for name, show in pictures.items():
            show(browser)
            picture = browser.picture()
            if len(picture) > LARGEST:
                raise SystemExit(f"{name}: {len(picture)} bytes")
            (into / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture)} bytes")
