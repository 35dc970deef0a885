"""The small examples that need no orchestrator run where they are copied to; each is read at a glance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lockstead
from tests.cli.shell import Shell
from tests.first_minute import DOCS, EXAMPLE_LINES_MAX, copied


def test_the_script_runs(tmp_path: Path) -> None:
    copied("script.py", "python script.py", tmp_path / "copy", Path(sys.executable).parent)


def test_the_shell_script_publishes_and_lets_a_busy_lock_be(tmp_path: Path) -> None:
    script = DOCS.parent / "examples/publish.sh"
    assert script.read_text().count("\n") <= EXAMPLE_LINES_MAX
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/locks.db")
    assert publish(script, tmp_path) == 0
    first = (tmp_path / "page").resolve()
    assert first.is_file()
    with lockstead.Lock(shell.url("page")).hold():
        assert publish(script, tmp_path) == 0
        assert (tmp_path / "page").resolve() == first
    assert publish(script, tmp_path) == 0
    assert (tmp_path / "page").resolve().name > first.name


def publish(script: Path, where: Path) -> int:
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run([script], cwd=where, env=path, timeout=60, check=False).returncode
