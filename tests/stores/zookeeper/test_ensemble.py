"""An ensemble of three: with one server down it works; without a majority nothing changes and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lockstead
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Absent, Create, Read, Remove, Removed, Snapshot
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.values import Name
from tests.servers.zookeeper import Ensemble, ZookeeperServer
from tests.stores.zookeeper.server import APT, LIMIT, opened, taken, until


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble") / "ensemble") as running:
        yield running


def works(store: ZookeeperStore, name: Name) -> bool:
    """Take and give back a lock, or tell that it does not go."""
    try:
        made = store.perform(Create(name, {"v": "1"}, 30.0, "somebody"), 2.0)
        if not isinstance(made, Snapshot):
            made = store.perform(Read(name), 2.0)
            return isinstance(made, Snapshot) and bool(store.perform(Remove(name, made.incarnation), 2.0))
        return isinstance(store.perform(Remove(name, made.incarnation), 2.0), Removed)
    except (StoreUnavailable, OutcomeUnknown):
        return False


def test_a_lease_outlives_the_leader_and_the_loss_of_the_majority(ensemble: Ensemble) -> None:
    url = f"zk://{ensemble.hosts}/locks"
    store = opened(f"{url}?session=4")
    down: list[ZookeeperServer] = []
    try:
        with lockstead.Client(store) as client, client.lock("apt", ttl=300).hold(timeout=60) as lease:
            token = lease.sequencer().token
            down.append(ensemble.leader())
            down[0].kill()
            until(lambda: works(store, Name("other")), 100)
            lease.check()
            down.append(next(one for one in ensemble.servers if one not in down))
            down[1].kill()
            until(lambda: not works(store, Name("other")), 100)
            with pytest.raises(StoreError):
                store.perform(Create(Name("nobody"), {}), 0.5)
            lease.check()
            for one in down:
                one.launch()
            until(lambda: works(store, Name("other")), 100)
            down.clear()
            seen = store.perform(Read(APT), LIMIT)
            assert isinstance(seen, Snapshot)
            assert seen.token == token
            lease.check()
        store = opened(url)
        later = taken(store)
        assert later.token is not None
        assert later.token > token, "tokens grow over elections"
        assert isinstance(store.perform(Remove(APT, later.incarnation), LIMIT), Removed)
    finally:
        store.close()
        for one in down:
            if not one.is_running:
                one.launch()


def test_a_lagging_server_reads_another_sessions_write_at_once(ensemble: Ensemble) -> None:
    stores = [opened(f"zk://{server.address}/locks") for server in ensemble.servers]
    names = [APT, Name("yum")]
    try:
        for turn in range(60):
            writer, readers = stores[turn % 3], stores
            made = [taken(writer, f"holder-{turn}", name) for name in names]
            for reader in readers:
                together = reader.perform_many([Read(name) for name in names], LIMIT)
                for one, seen in zip(made, [*together[:1], reader.perform(Read(names[1]), LIMIT)], strict=True):
                    assert isinstance(seen, Snapshot), "a server that is behind was believed"
                    assert seen.incarnation == one.incarnation
                assert together[1] == seen
            for name, one in zip(names, made, strict=True):
                writer.perform(Remove(name, one.incarnation), LIMIT)
            for reader in readers:
                together = reader.perform_many([Read(name) for name in reversed(names)], LIMIT)
                assert [type(seen) for seen in together] == [Absent, Absent]
    finally:
        for store in stores:
            store.close()
