"""The static files: those of others are what their projects published, with their licences."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

VENDOR = files("lockstead.dashboard").joinpath("static", "vendor")


def test_every_vendored_file_is_what_was_published() -> None:
    said = dict(reversed(line.split()) for line in VENDOR.joinpath("SHA256SUMS").read_text("ascii").splitlines())
    found = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in VENDOR.iterdir()}
    del found["SHA256SUMS"]
    assert found == said


def test_every_vendored_script_has_a_licence_and_a_version() -> None:
    names = [one.name for one in VENDOR.iterdir()]
    scripts = [name for name in names if name.endswith(".js")]
    assert len(scripts) == 3
    for name in scripts:
        found = re.fullmatch(r"([a-z-]+?)(?:-ext)?-\d+\.\d+\.\d+\.min\.js", name)
        assert found is not None, name
        assert any(other.startswith(found[1]) and other.endswith("LICENSE.txt") for other in names), name
