"""Real processes, a real server, real locks: killed after every write, racing, seen from the shell."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.publishing.gcs import GcsBucket
from examples.publishing.oracle import Entry, judge
from examples.publishing.runner import FORMATS
from examples.publishing.signing import Signer
from gcs_emulator import GcsServer
from tests.examples.publishing.world import Hooked, Shelf, World
from tests.servers.demos import interrupt, shown

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "examples.publishing"]


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(buckets=["b"]) as server:
        yield server


@pytest.fixture
def bucket(server: GcsServer) -> Iterator[GcsBucket]:
    bucket = GcsBucket("b", endpoint=server.url)
    yield bucket
    bucket.close()


def environment(server: GcsServer | None = None, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    return inherited | more | ({} if server is None else {"STORAGE_EMULATOR_HOST": server.url})


def publish_and_die(url: str, kind: str, shelf: Shelf, prefix: str, stop: int) -> None:
    """Publish, and be killed right after write number `stop`; return 0 if there was none."""

    def die(number: int, _: str) -> None:
        if number == stop:
            os.kill(os.getpid(), signal.SIGKILL)

    bucket = GcsBucket("b", endpoint=url)
    World(bucket, kind, shelf, prefix=prefix).publish(3, "alpha", bucket=Hooked(bucket, after=die))
    bucket.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apt", "yum"])
def test_sigkill_after_every_write_harms_nobody(kind: str, server: GcsServer, bucket: GcsBucket, shelf: Shelf) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for stop in range(1, 100):
        world = World(bucket, kind, shelf, prefix=f"{stop}/{kind}/")
        world.publish(1, "seed")
        world.publish(2, "gamma")
        world.attempted += world.entries("alpha")
        process = context.Process(target=publish_and_die, args=(server.url, kind, shelf, world.prefix, stop))
        process.start()
        process.join(60)
        assert process.exitcode in {0, -signal.SIGKILL}
        if process.exitcode == 0:
            break
        assert world.judge().is_good, f"killed after write {stop}: {world.judge()}"
        world.publish(4, "beta")
        assert world.judge().is_good, f"killed after write {stop}: {world.judge()}"
        assert "beta" in world.names()
    assert stop > 10


def test_one_change_a_second_is_waited_out(server: GcsServer, bucket: GcsBucket, shelf: Shelf) -> None:
    server.faults.one_mutation_per_second = True
    world = World(bucket, "yum", shelf, pause=time.sleep)
    for token, name in enumerate(("seed", "alpha"), start=1):
        world.publish(token, name)
    assert server.requests.count(status=429) > 0
    assert world.judge().is_good


@pytest.mark.parametrize("action", ["fail", "lose_answer", "fail_after_commit", "lose_request"])
@pytest.mark.parametrize("kind", ["apt", "yum"])
def test_a_bucket_that_fails_now_and_then_is_outlasted(
    kind: str, action: str, server: GcsServer, bucket: GcsBucket, shelf: Shelf
) -> None:
    world = World(bucket, kind, shelf)
    world.publish(1, "seed")
    for skip in range(0, 60, 4):
        server.faults.inject(action, kind="mutation,list,media,get", skip=skip)
    world.publish(2, "alpha")
    server.faults.clear()
    assert world.judge().is_good
    assert world.names() == ["alpha", "seed"]


def test_the_command_line_publishes_rolls_back_and_audits(
    server: GcsServer, bucket: GcsBucket, shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "key.asc").write_text(shelf.key)
    (tmp_path / "public.asc").write_text(Signer.from_armor(shelf.key).public_key)
    where = ["--repo", "gs://b/mine", "--key", str(tmp_path / "key.asc"), "--timeout", "60"]
    names = ("seed", "alpha", "beta")
    running = [
        subprocess.Popen(
            [*COMMAND, "publish", *where, *(str(shelf.paths[kind, name]) for kind in ("deb", "rpm"))],
            env=environment(server),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]
    for process in running:
        said, _ = process.communicate(timeout=100)
        assert process.returncode == 0, said
    for kind, suffix in (("apt", "deb"), ("yum", "rpm")):
        packages = [FORMATS[kind].inspect(shelf.paths[suffix, name]) for name in names]
        reported = [Entry(one.name, one.version, one.arch, one.sha256) for one in packages]
        verdict = judge(bucket, f"mine/{kind}/", kind, (tmp_path / "public.asc").read_text(), reported, reported)
        assert verdict.is_good, str(verdict)
        assert verdict.version == 3

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], env=environment(server), cwd=ROOT, capture_output=True, text=True, check=False
        )

    assert command("rollback", "apt", "1", *where).returncode == 0
    again = command("publish", str(shelf.paths["deb", "alpha-other"]), *where, "--overwrite")
    assert "alpha" in again.stdout
    refused = command("publish", str(shelf.paths["deb", "alpha"]), *where)
    assert (refused.returncode, "other content" in refused.stderr) == (1, True)
    audit = command("audit", "--repo", "gs://b/mine", "--public-key", str(tmp_path / "public.asc"))
    assert audit.returncode == 0, audit.stdout
    assert "apt version 5: " in audit.stdout
    stat = bucket.stat("mine/yum/versions/3/repodata/repomd.xml")
    bucket.replace(stat.name, b"<repomd/>", generation=stat.generation)
    assert command("audit", "--repo", "gs://b/mine", "--public-key", str(tmp_path / "public.asc")).returncode == 1


@pytest.mark.slow
def test_the_demo_shows_what_it_claims(tmp_path: Path) -> None:
    claims = ("was reported as published and is gone", "cleared away", "with token", "Verdict: nothing lost")
    shown([*COMMAND, "demo", "--only", "engine"], tmp_path, ROOT / "build" / "demo", claims, within=150)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    command = [*COMMAND, "demo", "--only", "engine", "--pace", "0.3"]
    interrupt(command, number, tmp_path, ROOT / "build" / "demo", line="holds, token", processes=3)
