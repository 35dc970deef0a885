"""Which record a sequencer is verified against: the group of readers, the exclusive lease, or the slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gcs_emulator import GcsServer
from lockstead import Client, FenceGuard, LeaseLost, Semaphore, Sequencer, connect
from lockstead.protocol.acquire import Grant
from lockstead.protocol.commands import Extend
from lockstead.protocol.fence import verify
from lockstead.protocol.release import remove
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name, Space
from tests.protocol.bench import APT, Bench


def test_a_readers_sequencer_names_its_group_and_not_the_reader() -> None:
    store = MemoryStore()
    with Client(store) as client, Client(store) as elsewhere:
        with client.lock("apt", mode="shared").hold() as one:
            first = one.sequencer()
            assert str(first) == f"{first.token}:shared:apt"
            with elsewhere.lock("apt").hold(mode="shared") as other:
                assert other.sequencer() == first
            assert client.verify(first)
            assert not client.verify(replace(first, mode="exclusive"))
            assert not client.verify(replace(first, token=first.token + 1))
        with client.lock("apt").hold(timeout=60) as writer:
            assert not client.verify(first)
            assert client.verify(writer.sequencer())
            assert not client.verify(replace(writer.sequencer(), mode="shared"))


def test_a_downgraded_lease_has_a_readers_sequencer_and_its_old_one_is_worth_nothing() -> None:
    with Client(MemoryStore()) as client, client.lock("apt").hold() as lease:
        guard = FenceGuard()
        writing = lease.sequencer()
        guard.admit(writing)
        lease.downgrade()
        reading = lease.sequencer()
        assert (reading.token, reading.mode) == (writing.token, "shared")
        assert client.verify(reading)
        assert not client.verify(writing)
        guard.admit_reader(reading)
        with pytest.raises(LeaseLost, match="downgraded"):
            guard.admit(writing)
        with pytest.raises(ValueError, match="a reader may not write"):
            guard.admit(reading)


def test_h17_a_members_sequencer_is_a_readers_if_the_lease_is_shared() -> None:
    with Client(MemoryStore()) as client, client.lock("apt").hold(mode="shared") as lease:
        with client.lock("apt").attach(lease.share()) as member:
            assert member.sequencer() == lease.sequencer()


def test_a_record_of_an_unknown_mode_verifies_no_sequencer() -> None:
    bench = Bench()
    grant = bench.granted("a")
    bench.store.perform(Extend(APT, {"mode": "wish"}, grant.lease.incarnation))
    for mode in ("exclusive", "shared"):
        assert not bench.session(verify(Sequencer("apt", grant.token or 0, mode), bench.context())).run()


def test_h17_a_permit_is_verified_against_its_slot() -> None:
    bench = Bench()
    key = bench.granted("k")
    grant = bench.asking(replace(bench.want("a"), name=Name("apt", Space.PERMIT, "2"))).run()
    assert isinstance(grant, Grant)
    assert grant.token is not None
    said = Sequencer.of(grant.lease.name, grant.token, "exclusive")
    assert str(said) == f"{grant.token}:permit/2:apt"

    def holds(sequencer: Sequencer) -> bool:
        return bool(bench.session(verify(sequencer, bench.context())).run())

    assert holds(said)
    assert not holds(replace(said, mode="permit/1"))
    assert not holds(replace(said, mode="exclusive"))
    assert not holds(Sequencer("apt", key.token or 0, "permit/2"))
    assert holds(Sequencer("apt", key.token or 0))
    bench.session(remove(grant.lease, bench.context())).run()
    assert not holds(said)


@pytest.mark.parametrize("url", ["memory:fencing", "gs://b/locks"])
def test_h17_holders_of_permits_are_fenced_by_slot(
    url: str, server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    guard = FenceGuard()
    with connect(url) as client:
        semaphore = Semaphore(f"{url}#api", permits=1)
        with semaphore.hold() as lease:
            first = lease.sequencer()
            assert first.mode == "permit/0"
            assert client.verify(first)
            guard.admit(first)
        assert not client.verify(first)
        with semaphore.hold() as lease:
            guard.admit(lease.sequencer())
            assert client.verify(lease.sequencer())
        with pytest.raises(LeaseLost, match="superseded"):
            guard.admit(first)
