"""Build small real packages, .deb and .rpm, with nfpm, for the demo and the tests.

The same arguments give the same .deb, byte for byte. A signed .rpm contains the time of its signature, so build it once
and publish that file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

EPOCH = 1_704_067_200
EPOCH_TEXT = "2024-01-01T00:00:00Z"
ARCHS = {"amd64": "x86_64", "arm64": "aarch64", "all": "noarch"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A package to build, with one text file, `/usr/share/<name>/<version>`.

    arch is Debian's name (`amd64`, `all`).
    """

    name: str
    version: str = "1.0"
    arch: str = "all"
    text: str = "hello\n"


def build(recipe: Recipe, kind: str, folder: Path, signing_key: Path | None = None) -> Path:
    """Build a package of a kind (`deb`, `rpm`) and return its path; signing_key is a secret key's file, for .rpm.

    Raises CalledProcessError if nfpm fails, FileNotFoundError if nfpm is not installed.
    """
    work = folder / f".{recipe.name}-{recipe.version}-{recipe.arch}-{kind}"
    work.mkdir(parents=True)
    content = work / "content"
    content.write_text(recipe.text)
    config: dict[str, object] = {
        "name": recipe.name,
        "version": recipe.version,
        "version_schema": "none",
        "release": "1" if kind == "rpm" else "",
        "arch": recipe.arch,
        "maintainer": "Publishing example <publishing@example.invalid>",
        "description": f"{recipe.name}, a package of the publishing example",
        "license": "Apache-2.0",
        "mtime": EPOCH_TEXT,
        "contents": [
            {
                "src": str(content),
                "dst": f"/usr/share/{recipe.name}/{recipe.version}",
                "file_info": {"mode": 0o644, "mtime": EPOCH_TEXT},
            }
        ],
    }
    if kind == "rpm":
        config["rpm"] = {"buildhost": "localhost"} | (
            {"signature": {"key_file": str(signing_key)}} if signing_key else {}
        )
    (work / "nfpm.json").write_text(json.dumps(config))
    arch = ARCHS[recipe.arch] if kind == "rpm" else recipe.arch
    target = folder / f"{recipe.name}_{recipe.version}_{arch}.{kind}"
    subprocess.run(
        [_nfpm(), "package", "--config", str(work / "nfpm.json"), "--packager", kind, "--target", str(target)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
    )
    shutil.rmtree(work)
    return target


def _nfpm() -> str:
    beside = Path(sys.executable).with_name("nfpm")
    found = str(beside) if beside.exists() else shutil.which("nfpm")
    if found is None:
        raise FileNotFoundError("nfpm is not installed; it comes with the group `publishing`")
    return found
