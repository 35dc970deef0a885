"""The commands of the page on stuck locks run as printed, while another process holds the lock that they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

import lockstead
from tests.cli.conftest import until

PAGE: Final = Path(__file__).parents[2] / "docs/operating.md"
BLOCKS: Final = [
    textwrap.dedent(block)
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_commands_of_the_page_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock = lockstead.Lock("sqlite:///locks.db#apt", ttl="5s", expected="1ms", purpose="publish APT packages")
    lease = lock.acquire()
    look, wait, broken, after, watch = BLOCKS
    assert "publish APT packages" in shell(look)
    assert "publish APT packages" in shell(wait)
    assert shell(watch).startswith("apt is overdue: ")
    assert "apt is removed" in shell(broken)
    shell(after)
    until(lambda: not lease.is_held, "the holder is told", 60)
    assert shell(watch) == ""
    with lock.hold(timeout=60) as next_one:
        assert next_one.previous_lease.ending is lockstead.LeaseOutcome.CLEAN


def shell(commands: str) -> str:
    """Run them in a shell that stops at the first failure; give all that they said."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}"
    return done.stdout
