"""What the wrappers share: arguments are checked where they are written, sentences are alike, privates stay here."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lockstead import AsyncLock, Lease, LeaseLost, Lock, Semaphore
from lockstead.reading import date_text
from lockstead.wrapping.locks import keeps_out, labelled, leases_of, store_of, take_back, ticket_of
from lockstead.wrapping.messages import is_held, waiting_for
from lockstead.wrapping.spec import LockSpecBase, check_text, of_permits


@dataclass(frozen=True, slots=True)
class Spec(LockSpecBase):
    """The specification of a toy orchestrator."""

    lock: str = "memory:#apt"

    def __post_init__(self) -> None:
        check_text("lock", self.lock)
        self.complete()


def test_durations_become_seconds_and_defaults_stay_unset() -> None:
    spec = Spec("memory:#apt", ttl="5m", timeout="1m", labels={"team": "deb"})
    assert (spec.ttl, spec.timeout) == (300.0, 60.0)
    assert spec.settings == {"ttl": 300.0, "labels": {"team": "deb"}}
    assert Spec().settings == {}


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        ({"on_unclean": "ignore"}, ValueError, "on_unclean must be 'warn' or 'fail', not 'ignore'"),
        ({"ttl": "soon"}, ValueError, "'soon' is not a duration"),
        ({"lock": " "}, ValueError, "lock is empty"),
        ({"lock": 7}, TypeError, "lock must be text, not int"),
    ],
)
def test_invalid_arguments_raise_where_they_are_written(
    words: dict[str, object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        Spec(**words)  # type: ignore[arg-type]


def test_sentences_name_owner_since_purpose_and_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pendulum", None)  # the wrappers do not require it
    lock = Lock(f"sqlite:///{tmp_path}/locks.db#apt", owner="ci/7", purpose="publish")
    with lock.hold():
        held = lock.inspect()
        assert held is not None
        rest = f"by 'ci/7' since {date_text(held.acquired_epoch)} (purpose: publish), token {held.token}"
        assert is_held("apt", held) == f"'apt' is held {rest}"
        assert waiting_for("apt", held) == f"waiting for 'apt', held {rest}"
    assert (is_held("apt", None), waiting_for("apt", None)) == ("'apt' is held", "waiting for 'apt'")


def test_only_an_unused_grant_is_taken_back(tmp_path: Path) -> None:
    lock = labelled(Lock(f"sqlite:///{tmp_path}/locks.db#apt", labels={"team": "deb"}), {"wish": "7"})
    assert store_of(lock) == f"sqlite:///{tmp_path}/locks.db"
    lease = lock.acquire()
    held = lock.inspect()
    assert held is not None
    assert held.labels == {"team": "deb", "wish": "7"}
    take_back(lock, f"{lease.holder}-other")
    assert lock.inspect() is not None
    take_back(lock, lease.holder)
    assert lock.inspect() is None


def reader(url: str, owner: str) -> Lease:
    return Lock(url, mode="shared", owner=owner).acquire(timeout=0)


@pytest.mark.parametrize("mode", ["Shared", "write", "", "{mode}"])
def test_the_mode_is_checked_where_it_is_written(mode: str) -> None:
    with pytest.raises(ValueError, match=f"mode must be 'exclusive' or 'shared', not '{mode}'"):
        Spec(mode=mode)


def test_only_a_mode_that_was_given_overrides_the_url() -> None:
    assert Spec().settings == {}
    assert Spec(mode="shared").settings == {"mode": "shared"}


def test_a_reader_is_kept_out_by_a_writer_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db#apt"
    shared, exclusive = Lock(url, mode="shared"), Lock(url)
    assert not keeps_out(exclusive, exclusive.inspect())
    with reader(url, "ci/1"):
        held = exclusive.inspect()
        assert held is not None
        assert (keeps_out(shared, held), keeps_out(exclusive, held)) == (False, True)
        for closed in ({"wanted_by": "etl"}, {"revoked_by": "anna"}, {"closing": True}):
            assert keeps_out(shared, replace(held, **closed))
    with exclusive.hold():
        held = exclusive.inspect()
        assert (keeps_out(shared, held), keeps_out(exclusive, held)) == (True, True)
        assert held is not None
        assert not keeps_out(exclusive, replace(held, is_expired=True))


def test_the_ticket_of_one_lease_ends_that_lease(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db#apt"
    lock = Lock(url)
    first, second = reader(url, "ci/1"), reader(url, "ci/2")
    held = lock.inspect()
    assert held is not None
    assert is_held("apt", held).startswith("'apt' is held by 2 readers since ")
    one, other = leases_of(held)
    assert [one.owner, other.owner] == ["ci/1", "ci/2"]
    assert lock.release(ticket_of(lock, held, one))
    assert [left.owner for left in leases_of(lock.inspect())] == ["ci/2"]
    assert second.renew() > 0
    with pytest.raises(LeaseLost):
        first.renew()
    second.release()
    assert leases_of(lock.inspect()) == ()
    with lock.hold() as lease:
        held = lock.inspect()
        assert held is not None
        assert leases_of(held) == (held,)
        assert ticket_of(lock, held, held) == lease.share()


@pytest.mark.parametrize("permits", [0, -1, True, 2.0, "3"])
def test_the_number_of_permits_is_checked_where_it_is_written(permits: object) -> None:
    with pytest.raises((ValueError, TypeError), match=r"permits (is|must be)") as refused:
        Spec(permits=permits)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_permits_go_with_no_mode_and_no_refusal_of_an_unclean_end() -> None:
    for words in ({"mode": "shared"}, {"mode": "exclusive"}):
        with pytest.raises(ValueError, match="permits and mode exclude each other"):
            Spec(permits=3, **words)
    with pytest.raises(ValueError, match="on_unclean='fail' is for locks"):
        Spec(permits=3, on_unclean="fail")
    for lock in (Lock("memory:x#apt?mode=shared"), AsyncLock("memory:x#apt?mode=shared")):
        with pytest.raises(ValueError, match="'apt': permits and mode='shared' exclude each other"):
            Spec(permits=3).checked(lock)


def test_a_semaphore_is_kept_out_of_when_no_permit_is_free(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db#api"
    lock = of_permits(Lock(url, owner="ci/3"), 2)
    assert (lock.inspect(), keeps_out(lock, lock.inspect()), leases_of(lock.inspect())) == (None, False, ())
    one = Semaphore(url, 2, owner="ci/1").acquire(0)
    assert not keeps_out(lock, lock.inspect())
    other = lock.try_acquire(reclaim=True)
    assert other is not None
    assert {one.slot, other.slot} == {0, 1}
    held = lock.inspect()
    assert keeps_out(lock, held)
    owners = "ci/1, ci/3" if one.slot == 0 else "ci/3, ci/1"
    assert waiting_for("api", held) == f"waiting for 'api', held by {owners}"
    assert lock.try_acquire(reclaim=True) is None
    assert held is not None
    tickets = {lease.owner: ticket_of(lock, held, lease) for lease in leases_of(held)}
    assert (tickets["ci/1"].holder, tickets["ci/1"].slot) == (one.holder, one.slot)
    assert tickets["ci/3"] == other.share()
    with lock.attach(tickets["ci/3"]) as member:
        assert (member.slot, member.is_member) == (other.slot, True)
    assert lock.release(tickets["ci/1"])
    assert [left.owner for left in leases_of(lock.inspect())] == ["ci/3"]
    other.release()
    with pytest.raises(LeaseLost):
        one.renew()
    assert Semaphore(url).resize(0)
    assert keeps_out(lock, lock.inspect())
    assert is_held("api", lock.inspect()) == "'api' is held by nobody, as its limit is 0"


def test_a_semaphore_is_waited_for_until_a_permit_is_free() -> None:
    url = "memory:waited#apt"
    permits, waiting = Semaphore(url, 2), of_permits(Lock(url), 2)
    assert waiting.wait_until_free(0)
    first, second = permits.acquire(0), permits.acquire(0)
    assert not waiting.wait_until_free(0)
    releasing = threading.Timer(0.1, first.release)
    releasing.start()
    assert waiting.wait_until_free(60)
    releasing.join()
    second.release()
    permits.resize(0)
    assert not waiting.wait_until_free(0)
