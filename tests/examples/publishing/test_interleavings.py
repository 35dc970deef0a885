"""Two publishers, paused, killed and resumed everywhere: no reader harmed, no success lost, stale runs rejected.

The leases here never notice that they are lost, which is the worst case of a paused process.
"""

from __future__ import annotations

import contextlib

import pytest

import lockstead
from examples.publishing.errors import OutcomeUnknown, PublishingError, Superseded
from examples.publishing.pipeline import PHASES, Phases
from tests.examples.publishing.memory import MemoryBucket
from tests.examples.publishing.world import HandMadeLease, Hooked, Shelf, World, finish

pytestmark = pytest.mark.parametrize("kind", ["apt", "yum"])

STOPS = (*PHASES, "end")


class Killed(BaseException):
    """The process is gone: nothing in it can catch this."""


@pytest.fixture
def world(kind: str, shelf: Shelf) -> World:
    """A repository with two versions, so that there is something to copy, to carry and to prune."""
    world = World(MemoryBucket(), kind, shelf)
    world.publish(1, "seed")
    world.publish(2, "gamma")
    return world


def advance(phases: Phases, stop: str) -> None:
    """Run until phase `stop` is next; every step before it must succeed."""
    for phase in phases:
        if phase == stop:
            return


def carry_on(phases: Phases) -> None:
    """Run to the end; a rejection is also an end."""
    with contextlib.suppress(PublishingError):
        for _ in phases:
            pass


def settle(world: World, token: int) -> None:
    """A third publisher must succeed, whatever happened before; then the oracle judges."""
    assert world.judge().is_good, str(world.judge())
    world.publish(token, "delta")
    verdict = world.judge()
    assert verdict.is_good, str(verdict)


@pytest.mark.parametrize("second", STOPS)
@pytest.mark.parametrize("first", STOPS)
def test_two_publishers_paused_after_every_pair_of_phases(world: World, first: str, second: str) -> None:
    """The first is paused, its lease expires; the second takes over and is paused; both are resumed, the first one
    first."""
    stale, successor = world.start(3, "alpha"), world.start(4, "beta")
    advance(stale, first)
    advance(successor, second)
    assert world.judge().is_good, str(world.judge())
    carry_on(stale)
    assert world.judge().is_good, str(world.judge())
    carry_on(successor)
    settle(world, 5)
    assert "beta" in world.names(), "the holder of the lease must succeed, whatever the stale one does"


@pytest.mark.parametrize("stop", PHASES)
def test_a_stale_publisher_is_rejected_after_its_successor(world: World, stop: str) -> None:
    stale = world.start(3, "alpha")
    advance(stale, stop)
    world.publish(4, "beta")
    if stop == "prune":
        carry_on(stale)
        assert "alpha" in world.names()
    else:
        with pytest.raises(PublishingError):
            finish(stale)
        assert "alpha" not in world.names()
    settle(world, 5)


def test_a_stale_publisher_is_rejected_before_it_reads(world: World) -> None:
    world.publish(9, "beta")
    with pytest.raises(Superseded, match="token 9"):
        world.publish(8, "alpha")


def test_a_stale_commit_is_refused_once_its_successor_has_fenced(world: World) -> None:
    stale, successor = world.start(3, "alpha"), world.start(4, "beta")
    advance(stale, "commit")
    advance(successor, "plan")
    with pytest.raises(Superseded, match="token 4"):
        finish(stale)
    finish(successor)
    settle(world, 5)
    assert world.names() == ["beta", "delta", "gamma", "seed"]


@pytest.mark.parametrize("is_fenced", [False, True])
def test_after_the_commit_only_the_pointer_decides(world: World, is_fenced: bool) -> None:
    lease = HandMadeLease(3)
    paused, successor = world.start(3, "alpha", lease=lease), world.start(4, "beta")
    advance(paused, "commit")
    lease.lost = lockstead.LeaseLost()
    if is_fenced:
        advance(successor, "plan")
        with pytest.raises(Superseded, match="this run holds token 3"):
            finish(paused)
    else:
        assert finish(paused).number == 3
    finish(successor)
    settle(world, 5)
    assert ("alpha" in world.names()) is not is_fenced


def writes_of(world: World) -> int:
    """Count the writes of one publication, on a copy of the world."""
    bucket = MemoryBucket()
    assert isinstance(world.bucket, MemoryBucket)
    bucket.objects.update(world.bucket.objects)
    hooked = Hooked(bucket)
    twin = World(bucket, world.kind, world.shelf)
    twin.publish(3, "alpha", bucket=hooked)
    return hooked.writes


def test_killed_before_and_after_every_write_harms_nobody(kind: str, shelf: Shelf, world: World) -> None:
    writes = writes_of(world)
    assert writes > 10
    for when in ("before", "after"):
        for stop in range(1, writes + 1):
            world = World(MemoryBucket(), kind, shelf)
            world.publish(1, "seed")
            world.publish(2, "gamma")

            def kill(number: int, what: str, stop: int = stop) -> None:
                if number == stop:
                    raise Killed(what)

            hooked = Hooked(world.bucket, before=kill) if when == "before" else Hooked(world.bucket, after=kill)
            with pytest.raises(Killed):
                world.publish(3, "alpha", bucket=hooked)
            assert world.judge().is_good, f"{when} write {stop}: {world.judge()}"
            world.publish(4, "beta")
            settle(world, 5)


def test_superseded_before_every_write_harms_nobody(kind: str, shelf: Shelf, world: World) -> None:
    """The finest interleaving: at each single write of a stale publisher, another one runs from beginning to end."""
    writes = writes_of(world)
    for stop in range(1, writes + 1):
        world = World(MemoryBucket(), kind, shelf)
        world.publish(1, "seed")
        world.publish(2, "gamma")

        def overtake(number: int, what: str, stop: int = stop, world: World = world) -> None:
            if number == stop:
                world.publish(4, "beta")
                assert world.judge().is_good, f"before write {stop} ({what}): {world.judge()}"

        carry_on(world.start(3, "alpha", bucket=Hooked(world.bucket, before=overtake)))
        assert "beta" in world.names()
        settle(world, 5)


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "never-sent"])
@pytest.mark.parametrize("followers", [0, 1, 2])
def test_a_lost_commit_answer_is_found_out(world: World, landed: bool, followers: int) -> None:
    """Also when others have published on top of it before it could be read again."""
    lost: list[str] = []

    def lose(_: int, what: str) -> None:
        if what.startswith("replace") and bucket.writes > 1 and not lost:
            lost.append(what)
            if landed:
                for follower in range(followers):
                    world.publish(4 + follower, ("beta", "delta")[follower])
            raise OutcomeUnknown(what)

    bucket = Hooked(world.bucket, after=lose) if landed else Hooked(world.bucket, before=lose)
    assert world.publish(3, "alpha", bucket=bucket).added
    assert lost
    assert "alpha" in world.names()
    settle(world, 9)


def test_a_lost_lease_does_not_hide_a_commit_that_took_effect(world: World) -> None:
    lease = HandMadeLease(3)

    def lose(_: int, what: str) -> None:
        if what.startswith("replace") and bucket.writes > 1:
            lease.lost = lockstead.LeaseLost()
            raise OutcomeUnknown(what)

    bucket = Hooked(world.bucket, after=lose)
    outcome = world.publish(3, "alpha", bucket=bucket, lease=lease)
    assert (outcome.number, outcome.pruned) == (3, None)
    settle(world, 4)


def test_lost_answers_to_every_write_are_found_out(kind: str, shelf: Shelf, world: World) -> None:
    writes = writes_of(world)
    for stop in range(1, writes + 1):
        world = World(MemoryBucket(), kind, shelf)
        world.publish(1, "seed")
        world.publish(2, "gamma")

        def lose(number: int, what: str, stop: int = stop) -> None:
            if number == stop:
                raise OutcomeUnknown(what)

        world.publish(3, "alpha", bucket=Hooked(world.bucket, after=lose))
        assert "alpha" in world.names()
        settle(world, 4)


def test_a_silent_bucket_at_the_commit_is_outcome_unknown(world: World) -> None:
    def silent(_: int, what: str) -> None:
        if what.startswith("replace") and bucket.writes > 1:
            raise OutcomeUnknown(what)

    bucket = Hooked(world.bucket, before=silent)
    with pytest.raises(OutcomeUnknown, match="not known"):
        world.publish(3, "alpha", bucket=bucket)
    settle(world, 4)
