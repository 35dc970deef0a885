"""The publishing example on the newest Prefect: its flow as a plain call, and its demo, which kills a flow run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import prefect
import pytest

# the oldest Prefect's environment has not what the pipeline needs
pytest.importorskip("createrepo_c", reason="the example runs on the newest Prefect")

from examples.publishing.build import Recipe, build
from examples.publishing.gcs import GcsBucket
from examples.publishing.oracle import Entry, judge
from examples.publishing.runner import FORMATS
from examples.publishing.signing import Signer, generate_key
from lockstead.testing.gcs_server import GcsServer
from tests.examples.publishing.test_processes import environment, running_with
from tests.servers.prefect import ROOT, PrefectServer, told

# in one group: each looks for what the others would leave
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("prefect demo")]

HOMES = ROOT / "build" / "demo-prefect"
COMMAND = [sys.executable, "-m", "examples.publishing", "demo-prefect"]


def homes() -> set[Path]:
    return set(HOMES.glob("*"))


def test_the_flow_publishes_as_a_plain_call_and_leaves_no_lock_behind(server: PrefectServer, tmp_path: Path) -> None:
    key = generate_key("Tests <tests@example.invalid>")
    (tmp_path / "key.asc").write_text(key)
    package = build(Recipe("alpha"), "deb", tmp_path)
    with GcsServer(buckets=["b"]) as bucket_server:
        done = subprocess.run(
            [sys.executable, "-m", "examples.publishing.prefect_flow", str(package)],
            env={
                **os.environ,
                **told(tmp_path / "home", server.url),
                "STORAGE_EMULATOR_HOST": bucket_server.url,
                "PUBLISHING_REPO": "gs://b/mine",
                "PUBLISHING_SECRET_KEY": key,
            },
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        bucket = GcsBucket("b", endpoint=bucket_server.url)
        found = FORMATS["apt"].inspect(package)
        entry = Entry(found.name, found.version, found.arch, found.sha256)
        verdict = judge(bucket, "mine/apt/", "apt", Signer.from_armor(key).public_key, [entry], [entry])
        assert (verdict.version, verdict.is_good) == (1, True), str(verdict)
        # The pointer was fenced by the lease that spans the four tasks, and its lock is free again.
        fence = bucket.stat("mine/apt/latest_version.txt").metadata["lockstead-fence"]
        assert f'"what": "holds", "phase": "", "number": {fence.partition(":")[0]}' in done.stdout
        locks = [one.name for one in bucket.list("mine/locks")]
        bucket.close()
    assert [name for name in locks if ".lockstead" not in name] == [], "a lock is still held"
    # Of the other repository nothing was staged: its lock was not even asked for.
    assert locks
    assert not [name for name in locks if "yum" in name]


def test_the_demo_on_prefect_shows_what_it_claims(tmp_path: Path) -> None:
    mark, before = uuid.uuid4().hex, homes()
    done = subprocess.run(
        COMMAND,
        env=environment(MARK=mark, TMPDIR=str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for claim in (
        f"Prefect {prefect.__version__} runs",
        "killed: SIGKILL to process",
        "AwaitingLock: waiting for 'apt', held by 'prefect:",
        "the killed run was followed by another, which an automation started: tools Crashed",
        "cleared away",
        "Verdict: nothing lost",
    ):
        assert claim in done.stdout, done.stdout
    assert not done.stderr.strip()
    assert not running_with(mark)
    assert not list(tmp_path.iterdir())
    assert homes() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_on_prefect_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    mark, before = uuid.uuid4().hex, homes()
    process = subprocess.Popen(
        # who is started in the background by a shell ignores SIGINT, and hands that on
        ["env", "--default-signal=INT", *COMMAND],
        env=environment(MARK=mark, TMPDIR=str(tmp_path), PYTHONUNBUFFERED="1"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert any("starting a server" in line for line in process.stdout)
        ends_at = time.monotonic() + 300
        while len(running_with(mark)) < 2 and time.monotonic() < ends_at:
            time.sleep(0.1)
        process.send_signal(number)
        said = process.stdout.read()
    assert process.wait(60) != 0, said
    assert not running_with(mark)
    assert not list(tmp_path.iterdir())
    assert homes() <= before
