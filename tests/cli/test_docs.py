"""docs/command-line.md: its CI jobs run as printed, and it names every command, key and state."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import lockstead
from gcs_emulator import GcsServer
from lockstead.cli.format import FACTS
from lockstead.cli.main import COMMANDS
from lockstead.stores.redis.encoding import FOR_EVER as KEPT_BY_REDIS_MS
from lockstead.stores.redlock.scripts import FOREVER_MS as KEPT_BY_REDLOCK_MS
from tests.cli.shell import PROGRAM

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "command-line.md").read_text()
DAY_MS: Final = 86_400_000


def job(heading: str) -> dict[str, Any]:
    """Return the job `publish` that is shown below a heading."""
    found = re.search(rf"^### {heading}\n.*?^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    shown = yaml.safe_load(found[1])
    shown = shown.get("jobs", shown)["publish"]
    assert isinstance(shown, dict)
    return shown


GITHUB, GITLAB = job("In GitHub Actions"), job("In GitLab CI")


FETCHES: Final = ("git", "pip", "pipx")
"""Replaces a program that contacts other machines: it only writes down its arguments."""


class Runner:
    """Runs the steps of a job, each in its own shell, with the settings of the page and of a CI machine."""

    def __init__(self, where: Path, set_by_the_page: dict[str, str]) -> None:
        self.where = where
        self.set = set_by_the_page
        self.given = where / "environment"
        self.given.touch()
        (where / "publish.sh").write_text(
            "#!/bin/sh\nlockstead inspect --exit-code gs://my-bucket/locks/apt; test $? = 75\n"
        )
        (where / "make").write_text("#!/bin/sh\ntest $1 = packages\n")
        for name in FETCHES:
            (where / name).write_text(f"#!/bin/sh\necho {name} $* >> fetched\n")
        for name in ("publish.sh", "make", *FETCHES):
            (where / name).chmod(0o755)

    def step(self, script: str) -> int:
        """Run one step; give its exit code."""
        given = dict(line.split("=", 1) for line in self.given.read_text().splitlines())
        environment = {
            **os.environ,
            **self.set,
            **given,
            "PATH": f"{self.where}:{PROGRAM.parent}:{os.environ['PATH']}",
            "GITHUB_ENV": str(self.given),
            "GITHUB_REPOSITORY": "team/packages",
            "GITHUB_RUN_ID": "7",
            "CI_PROJECT_PATH": "team/packages",
            "CI_JOB_ID": "7",
            "CI_JOB_TOKEN": "s3cret",
            "CI_SERVER_HOST": "gitlab.example",
        }
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        return subprocess.run(command, cwd=self.where, env=environment, timeout=100, check=False).returncode


def on_github(where: Path) -> Runner:
    return Runner(where, GITHUB["env"])


def on_gitlab(where: Path) -> Runner:
    return Runner(where, GITLAB["variables"])


def steps_on_github() -> list[str]:
    return [step["run"] for step in GITHUB["steps"] if "run" in step]


def steps_on_gitlab(name: str) -> str:
    return "\n".join(GITLAB[name])


def is_held(server: GcsServer) -> bool:
    return "locks/apt" in server.objects("my-bucket")


def test_the_job_for_github_holds_the_lock_through_its_steps(server: GcsServer, tmp_path: Path) -> None:
    runner, (install, take, *work, give_back) = on_github(tmp_path), steps_on_github()
    assert (len(work), give_back) == (3, "lockstead release")
    assert runner.step(install) == 0
    assert (tmp_path / "fetched").read_text() == "pipx install ./lockstead/core[cli,gcs]\n"
    assert runner.step(take) == 0
    assert is_held(server)
    assert [runner.step(script) for script in work] == [0, 0, 0]
    assert is_held(server)
    assert runner.step(give_back) == 0
    assert not is_held(server)
    # it is free now, so this is the step at which a job that lost its lease fails
    assert runner.step(work[1]) == 76


def test_the_gitlab_job_releases_the_lock_even_if_it_fails(server: GcsServer, tmp_path: Path) -> None:
    runner, script, after = on_gitlab(tmp_path), steps_on_gitlab("script"), steps_on_gitlab("after_script")
    assert runner.step(steps_on_gitlab("before_script")) == 0
    assert (tmp_path / "fetched").read_text().endswith("/OWNER/lockstead.git\npip install ./lockstead/core[cli,gcs]\n")
    assert runner.step(script) == 0
    assert is_held(server)
    assert runner.step(after) == 0
    assert not is_held(server)
    assert runner.step(script.replace("make packages", "false")) != 0
    assert is_held(server)
    assert runner.step(after) == 0
    assert not is_held(server)


def test_a_job_that_does_not_get_the_lock_gives_nothing_back(server: GcsServer, tmp_path: Path) -> None:
    first, second = on_github(tmp_path), tmp_path / "second"
    second.mkdir()
    assert first.step(steps_on_github()[1]) == 0
    other = on_gitlab(second)
    assert other.step(steps_on_gitlab("script").replace("--timeout 1h", "--timeout 0")) == 75
    assert other.step(steps_on_gitlab("after_script")) == 0
    assert is_held(server)


def test_the_job_for_github_says_where_all_of_it_comes_from() -> None:
    used = [step["uses"] for step in GITHUB["steps"] if "uses" in step]
    assert [name.partition("@")[0] for name in used] == ["actions/checkout"] * 2 + ["google-github-actions/auth"]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)


def test_the_pages_say_for_how_long_it_is_kept_who_broke_what() -> None:
    """On these two every key has a ttl; on the others `prune` removes it, by default at the same age."""
    redis, redlock = KEPT_BY_REDIS_MS // DAY_MS, KEPT_BY_REDLOCK_MS // DAY_MS
    year = inspect.signature(lockstead.Client.prune).parameters["history_older_than"].default
    assert f"{redis}d" == f"{redlock}d" == year
    assert f"Redis and Redlock drop them after {redis} days" in PAGE
    assert f"| an audit entry | {redis} days |" in (DOCS / "stores/redis.md").read_text()
    assert f"the history is kept for {redlock} days" in (DOCS / "stores/redlock.md").read_text()


@pytest.mark.parametrize("word", [*COMMANDS, *FACTS])
def test_the_page_names_every_command_and_key(word: str) -> None:
    assert re.search(rf"`{word}\b", PAGE)
