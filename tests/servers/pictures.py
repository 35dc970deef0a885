"""Taking the screenshots of the docs: each of one page, in one browser, of limited size.

Must not know which application's pages they are. A page must show the content that its picture is about before the
picture is taken; only pages without machine names may be shown. Check the pictures by eye all the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.servers.browser import Browser

WIDTH: Final = 1280
"""Width of every picture, in pixels."""

LARGEST: Final = 150_000
"""Maximum bytes of a picture: a reader of a page loads all of them."""

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"

Show = Callable[[Browser], None]


def destination(owner_filter: str) -> Path:
    """Parse the command line; return the directory for the pictures."""
    words = argparse.ArgumentParser(description=f"take the pictures of the docs in a real {owner_filter}")
    words.add_argument("--into", type=Path, default=PICTURES, help="the directory they go to")
    into: Path = words.parse_args().into
    return into


def take(site: str, directory: Path, into: Path, pictures: Mapping[str, Show]) -> None:
    """Take pictures, by name, of a running site. directory is for the browser's files."""
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
