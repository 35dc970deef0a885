"""docs/command-line.md: its CI jobs run as they stand there, and it names every command, key and state."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from lockstead.cli.main import COMMANDS
from lockstead.cli.showing import FACTS
from lockstead.testing.gcs_server import GcsServer
from tests.cli.shell import PROGRAM

PAGE = (Path(__file__).parents[2] / "docs/command-line.md").read_text()


def job(heading: str) -> str:
    """Give the job that is shown below a heading."""
    found = re.search(rf"^### {heading}\n.*?^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


class Runner:
    """Runs the steps of a job, each in a shell of its own, as a CI machine does."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.given = where / "environment"
        self.given.touch()
        (where / "publish.sh").write_text(
            "#!/bin/sh\nlockstead inspect --exit-code gs://my-bucket/locks/apt; test $? = 75\n"
        )
        (where / "make").write_text("#!/bin/sh\ntest $1 = packages\n")
        for name in ("publish.sh", "make"):
            (where / name).chmod(0o755)

    def step(self, script: str) -> int:
        """Run one step; give its exit code."""
        given = dict(line.split("=", 1) for line in self.given.read_text().splitlines())
        environment = {
            **os.environ,
            **given,
            "PATH": f"{self.where}:{PROGRAM.parent}:{os.environ['PATH']}",
            "LOCK": "gs://my-bucket/locks/apt",
            "GITHUB_ENV": str(self.given),
            "GITHUB_REPOSITORY": "team/packages",
            "GITHUB_RUN_ID": "7",
            "CI_PROJECT_PATH": "team/packages",
            "CI_JOB_ID": "7",
        }
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        return subprocess.run(command, cwd=self.where, env=environment, timeout=100, check=False).returncode


def steps_on_github() -> list[str]:
    blocks = re.findall(r"^ +(?:- )?run: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", job("In GitHub Actions"), re.MULTILINE)
    return [textwrap.dedent(block) or line for block, line in blocks]


def steps_on_gitlab(name: str) -> str:
    found = re.search(rf"^  {name}:\n((?:    - .*\n)+)", job("In GitLab CI"), re.MULTILINE)
    assert found is not None
    return found[1].replace("    - ", "")


def is_held(server: GcsServer) -> bool:
    return "locks/apt" in server.objects("my-bucket")


def test_the_job_for_github_holds_the_lock_through_its_steps(server: GcsServer, tmp_path: Path) -> None:
    runner, (take, *work, give_back) = Runner(tmp_path), steps_on_github()
    assert (len(work), give_back) == (3, "lockstead release")
    assert runner.step(take) == 0
    assert is_held(server)
    assert [runner.step(script) for script in work] == [0, 0, 0]
    assert is_held(server)
    assert runner.step(give_back) == 0
    assert not is_held(server)
    # it is free now, so this is the step at which a job that lost its lease fails
    assert runner.step(work[1]) == 76


def test_the_job_for_gitlab_gives_the_lock_back_whether_it_fails_or_not(server: GcsServer, tmp_path: Path) -> None:
    runner, script, after = Runner(tmp_path), steps_on_gitlab("script"), steps_on_gitlab("after_script")
    assert runner.step(script) == 0
    assert is_held(server)
    assert runner.step(after) == 0
    assert not is_held(server)
    assert runner.step(script.replace("make packages", "false")) != 0
    assert is_held(server)
    assert runner.step(after) == 0
    assert not is_held(server)


def test_a_job_that_does_not_get_the_lock_gives_nothing_back(server: GcsServer, tmp_path: Path) -> None:
    first, second = Runner(tmp_path), tmp_path / "second"
    second.mkdir()
    assert first.step(steps_on_github()[0]) == 0
    other = Runner(second)
    assert other.step(steps_on_gitlab("script").replace("--timeout 1h", "--timeout 0")) == 75
    assert other.step(steps_on_gitlab("after_script")) == 0
    assert is_held(server)


@pytest.mark.parametrize("word", [*COMMANDS, *FACTS])
def test_the_page_names_every_command_and_key(word: str) -> None:
    assert re.search(rf"`{word}\b", PAGE)
