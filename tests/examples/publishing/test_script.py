"""The script that publishes under `lockstead run`: each repository under that command's lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.publishing.gcs import GcsBucket
from examples.publishing.oracle import Entry, judge
from examples.publishing.runner import FORMATS
from examples.publishing.signing import Signer
from gcs_emulator import GcsServer
from tests.examples.publishing.test_processes import ROOT, environment
from tests.examples.publishing.world import Shelf

SCRIPT = ROOT / "examples" / "publishing" / "publish.sh"


def script(server: GcsServer, key: Path, *files: Path, **more: str) -> subprocess.CompletedProcess[str]:
    settings: Mapping[str, str] = {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
        "PUBLISHING_REPO": "gs://b/mine",
        "PUBLISHING_KEY": str(key),
        "PUBLISHING_TTL": "30",
        **more,
    }
    return subprocess.run(
        [str(SCRIPT), *map(str, files)],
        env=environment(server, **settings),
        cwd=key.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.mark.slow
def test_the_script_publishes_to_both_repositories_under_their_locks(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "key.asc").write_text(shelf.key)
    files = [shelf.paths[kind, "alpha"] for kind in ("deb", "rpm")]
    with GcsServer(buckets=["b"]) as server:
        done = script(server, tmp_path / "key.asc", *files, PUBLISHING_JSON="1")
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        bucket = GcsBucket("b", endpoint=server.url)
        for kind, file in zip(("apt", "yum"), files, strict=True):
            package = FORMATS[kind].inspect(file)
            entry = Entry(package.name, package.version, package.arch, package.sha256)
            public_key = Signer.from_armor(shelf.key).public_key
            verdict = judge(bucket, f"mine/{kind}/", kind, public_key, [entry], [entry])
            assert (verdict.version, verdict.is_good) == (1, True), str(verdict)
            # the lease is that of `lockstead run`: acquired once, and its token has reached the repository
            told = [one["what"] for one in events if one["repository"] == kind]
            assert told.count("waiting") == told.count("holds") == 1, told
            (held,) = [one for one in events if (one["repository"], one["what"]) == (kind, "holds")]
            fence = bucket.stat(f"mine/{kind}/latest_version.txt").metadata["lockstead-fence"]
            assert fence.partition(":")[0] == str(held["number"])
        locks = [one.name for one in bucket.list("mine/locks")]
        bucket.close()
    assert [name for name in locks if ".lockstead" not in name] == [], "a lock is still held"


@pytest.mark.slow
def test_a_failing_command_fails_the_script_and_releases(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "key.asc").write_text(shelf.key)
    with GcsServer(buckets=["b"]) as server:
        assert script(server, tmp_path / "key.asc", shelf.paths["deb", "alpha"]).returncode == 0
        done = script(server, tmp_path / "key.asc", shelf.paths["deb", "alpha-other"])
        assert done.returncode != 0
        assert "other content" in done.stderr
        bucket = GcsBucket("b", endpoint=server.url)
        locks = [one.name for one in bucket.list("mine/locks")]
        bucket.close()
    assert [name for name in locks if ".lockstead" not in name] == [], "a lock is still held"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (None, "LOCKSTEAD_TICKET is not set"),
        ("nonsense", "LOCKSTEAD_TICKET: "),
        ("another", "holds the lock 'other', which is not one of apt, yum"),
    ],
)
def test_without_a_lease_around_it_an_attached_command_is_refused(
    ticket: str | None, why: str, shelf: Shelf, tmp_path: Path
) -> None:
    key = tmp_path / "key.asc"
    key.write_text(shelf.key)
    command = [sys.executable, "-m", "examples.publishing", "publish", "--attached"]
    command += ["--repo", "gs://b/mine", "--key", str(key), str(shelf.paths["deb", "alpha"])]
    if ticket == "another":
        store = f"sqlite:///{tmp_path}/locks.db"
        command = [str(Path(sys.executable).with_name("lockstead")), "run", f"{store}#other", "--", *command]
    more = {} if ticket in (None, "another") else {"LOCKSTEAD_TICKET": ticket or ""}
    inherited = {name: value for name, value in environment(**more).items() if more or name != "LOCKSTEAD_TICKET"}
    done = subprocess.run(command, env=inherited, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode != 0
    assert why in done.stderr
    assert "Traceback" not in done.stderr
