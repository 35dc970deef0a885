"""An earlier version that knows no readers, run beside this one on one key: it never writes under a believing reader.

Its code is taken from this repository's history and runs in processes of its own, with the drivers of this one.
"""

from __future__ import annotations

import itertools
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import Client, Lease, LeaseLost, Sequencer
from tests.runtime.faulty import quiet, until
from tests.runtime.processes import Child
from tests.servers.redis import RedisPlace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("redis")]

EXCLUSIVE_ONLY = "785cf09"
"""The last commit at which every lease was exclusive."""

_SPACES = itertools.count()
ROOT = Path(__file__).parents[2]
ENOUGH = 60.0
SETTINGS: dict[str, Any] = {
    "ttl": 2,
    "renew_every": 0.4,
    "request_timeout": 0.35,
    "max_failures": 3,
    "abort_margin": 0.2,
    "backoff_max": 0.2,
}

WRITER = f"""
from pathlib import Path
halves = [Path(os.environ["PAGE"]) / half for half in ("first", "second")]
client = lockstead.connect(URL, listener=lambda event: None)
lock = client.lock("page", **{SETTINGS})
hear()
while True:
    with lock.hold(timeout=60) as lease:
        token = lease.sequencer().token
        for half in halves:
            lease.check()
            if lease.time_left > 0.5:  # what follows is not fenced
                half.write_text(str(token))
            time.sleep(0.03)
        lease.check()
        say(token)
"""


@pytest.fixture(scope="session")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the earlier version's package."""
    packed = subprocess.run(["git", "archive", EXCLUSIVE_ONLY, "core/src"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"the history of this checkout has no {EXCLUSIVE_ONLY}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "core" / "src"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    running = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield running
    running.stop()


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db"
    place: RedisPlace = request.getfixturevalue("redis")
    return place.url(f"v{next(_SPACES)}")


def old(script: str, url: str, code: Path, **environment: str) -> Child:
    """Start a process of the earlier version."""
    return Child(script, url, PYTHONPATH=str(code), **environment)


class Page:
    """Two files that a writer changes one after the other."""

    def __init__(self, folder: Path) -> None:
        self.halves = (folder / "first", folder / "second")
        for half in self.halves:
            half.write_text("0")

    def read(self, lease: Lease) -> tuple[str, ...]:
        """Return both; LeaseLost if the lease was not held all the time."""
        found = tuple(half.read_text() for half in self.halves)
        lease.check()
        return found


def read_a_while(client: Client, page: Page, faults: list[str]) -> int:
    """Look at the page as a reader, and return how often."""
    looks = 0
    try:
        with client.lock("page", **SETTINGS).hold(timeout=ENOUGH, mode="shared") as lease:
            first = page.read(lease)
            if len(set(first)) > 1:
                faults.append(f"half written: {first}")
            ends_at = time.monotonic() + 0.7
            while time.monotonic() < ends_at:
                looks += 1
                again = page.read(lease)
                if again != first:
                    faults.append(f"{first} became {again}")
    except LeaseLost:
        pass  # on a busy machine; it was found out before it was believed
    return looks


def test_m06_writers_of_a_version_without_readers_change_nothing_under_a_reader(
    url: str, old_code: Path, tmp_path: Path
) -> None:
    page, faults, said = Page(tmp_path), list[str](), list[int]()
    looks = [0]

    def listen(writer: Child) -> None:
        assert writer.process.stdout is not None
        said.extend(int(line) for line in writer.process.stdout)

    with ExitStack() as stack:
        clients = [stack.enter_context(lockstead.connect(url, listener=quiet)) for _ in range(3)]
        writers = [stack.enter_context(old(WRITER, url, old_code, PAGE=str(tmp_path))) for _ in range(2)]
        for writer in writers:
            writer.say("go")
            threading.Thread(target=listen, args=(writer,), daemon=True).start()
        for _burst in range(4):
            before = len(said)
            until(lambda before=before: len(said) > before + 1, ENOUGH)  # type: ignore[misc]

            def read(client: Client) -> None:
                looks[0] += read_a_while(client, page, faults)

            readers = [threading.Thread(target=read, args=(client,)) for client in clients]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(2 * ENOUGH)
            # a writer of this version among them, which ends the group at once
            with clients[0].lock("page", **SETTINGS).hold(timeout=ENOUGH) as lease:
                assert lease.token is not None
        assert all(writer.process.poll() is None for writer in writers)
    assert faults == []
    assert looks[0] > 100
    assert len(said) > 8
    assert said == sorted(set(said)), "tokens do not grow"


BESIDE = """
client = lockstead.connect(URL, listener=lambda event: None)
lock = client.lock("page", ttl=2, owner=os.environ["OWNER"])
say(lock.try_acquire() is None, lock.try_acquire(reclaim=True) is None)
for spoken in iter(hear, "break"):
    try:
        lock.attach(spoken)
        say("attached")
    except ValueError as error:
        say("refused", error)
lock.break_lease(reason="a test", now=False)
with lock.hold(timeout=60) as lease:
    say(lease.sequencer())
"""


def test_m06_m07_it_neither_reclaims_nor_joins_a_group_and_breaks_it_for_all(url: str, old_code: Path) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(lockstead.connect(url, listener=quiet)) for _ in range(2))
        leases = [client.lock("page", **SETTINGS).acquire(ENOUGH, mode="shared") for client in (one, other)]
        group = leases[0]._lease_state.lease.holder
        beside = stack.enter_context(old(BESIDE, url, old_code, OWNER=group.rpartition("/")[0]))
        assert beside.hear() == "True True"
        beside.say(str(leases[0].share()))
        assert beside.hear().startswith("refused")
        for lease in leases:
            lease.check()
        beside.say("break")
        said = Sequencer.parse(beside.hear())
        assert [lease.is_held for lease in leases] == [False, False]
        assert {lease.lost_reason for lease in leases} <= {lockstead.LossReason.REVOKED, lockstead.LossReason.EXPIRED}
        assert said.token > (leases[0].token or 0)
        assert beside.end() == 0


GUARD = """
guard = lockstead.FenceGuard()
for spoken in iter(hear, ""):
    try:
        guard.admit(spoken)
        say("admitted")
    except (lockstead.LeaseLost, ValueError) as error:
        say(type(error).__name__)
"""


def test_m07_its_guard_orders_readers_and_writers_but_tells_them_not_apart(old_code: Path) -> None:
    """As the page on versions says: so update the resources first."""
    with old(GUARD, "", old_code) as guard:
        for sequencer, outcome in (
            ("6:exclusive:index", "admitted"),
            ("7:shared:index", "admitted"),
            ("6:exclusive:index", "LeaseLost"),
            ("7:exclusive:index", "admitted"),
            ("8:permit/2:index", "ValueError"),
        ):
            guard.say(sequencer)
            assert guard.hear() == outcome, sequencer
