"""How the shims that are preloaded into child processes are built, and what happens where they cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def preloaded(name: str, folder: Path) -> dict[str, str]:
    """Build a shim into a folder; return the environment that preloads it.

    Skips without a C compiler, which on CI is a failure: requirements/debian.list names it.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        why = "no C compiler (cc) to build the shim with"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source), "-ldl"]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode:
        # gcc alone does not do: the headers are a package of their own
        why = f"the shim could not be built: {built.stderr}"
        if os.environ.get("CI") == "true" or "No such file" not in built.stderr:
            pytest.fail(why)
        pytest.skip(why)
    return {"LD_PRELOAD": str(library)}
