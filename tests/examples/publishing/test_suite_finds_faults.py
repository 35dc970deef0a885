"""The suite tests the suite: broken designs that look right are caught, and the oracle sees every kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.publishing import pipeline, pointer
from examples.publishing.errors import PublishingError
from examples.publishing.layout import Layout
from examples.publishing.lease import Sequencer
from examples.publishing.naive import publishing_naively
from tests.examples.publishing.memory import MemoryBucket
from tests.examples.publishing.test_interleavings import STOPS, advance, carry_on
from tests.examples.publishing.world import Shelf, World, entries_of, finish


def harmed_pairs(kind: str, shelf: Shelf) -> int:
    """Count the pairs of pauses that harm a reader, the holder of the lease, or the next publisher."""
    harmed = 0
    for first in STOPS:
        for second in STOPS:
            world = World(MemoryBucket(), kind, shelf)
            world.publish(1, "seed")
            world.publish(2, "gamma")
            stale, successor = world.start(3, "alpha"), world.start(4, "beta")
            try:
                advance(stale, first)
                advance(successor, second)
                carry_on(stale)
                is_good = world.judge().is_good
                carry_on(successor)
                is_good = is_good and world.judge().is_good
                world.publish(5, "delta")
            except PublishingError:
                is_good = False
            harmed += not (is_good and world.judge().is_good and "beta" in world.names())
    return harmed


def without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(bucket: object, layout: Layout, ours: Sequencer, check: Callable[[], None]) -> pointer.Pointer:
        found = pointer.read_pointer(bucket, layout)  # type: ignore[arg-type] # it is the real one
        return found or real(bucket, layout, ours, check)  # type: ignore[arg-type] # likewise

    real = pointer.fence
    monkeypatch.setattr(pipeline, "fence", read_only)


def with_numbers_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim_over(bucket: object, layout: Layout, fenced: pointer.Pointer, token: int) -> object:
        number = fenced.number + 1
        for found in list(bucket.list(layout.version(number))):  # type: ignore[attr-defined] # it is the real one
            bucket.delete(found.name, generation=found.generation)  # type: ignore[attr-defined] # likewise
        return real(bucket, layout, fenced, token)  # type: ignore[arg-type] # likewise

    real = pipeline._claim
    monkeypatch.setattr(pipeline, "_claim", claim_over)


def with_leftovers_above_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(numbers: object, number: int, chain: tuple[int, ...], keep: int) -> tuple[int, ...]:
        return tuple(one for one in numbers if one != number and one not in chain[:keep])  # type: ignore[attr-defined]

    monkeypatch.setattr(pipeline, "prunable", everything)


def without_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def anyway(bucket: object, layout: Layout, fenced: pointer.Pointer, number: int, ours: Sequencer) -> None:
        now = bucket.stat(layout.pointer)  # type: ignore[attr-defined] # it is the real one
        pointer._swap(bucket, layout, number, now.generation, ours)  # type: ignore[arg-type] # likewise

    monkeypatch.setattr(pipeline, "commit", anyway)


BROKEN = [without_a_fence, with_numbers_used_again, with_leftovers_above_deleted, without_a_comparison]


@pytest.mark.parametrize("break_it", BROKEN)
def test_a_broken_design_is_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert harmed_pairs("apt", shelf) > 0


def test_the_unbroken_design_passes_the_same_judgement(shelf: Shelf) -> None:
    assert harmed_pairs("apt", shelf) == 0


@pytest.mark.parametrize("kind", ["apt", "yum"])
def test_naive_publishers_lose_packages(kind: str, shelf: Shelf) -> None:
    world = World(MemoryBucket(), kind, shelf)
    world.publish(1, "seed")
    staged = world.staged("alpha", "beta")
    first = publishing_naively(world.bucket, world.repository(), staged[:1])
    second = publishing_naively(world.bucket, world.repository(), staged[1:])
    advance(first, "copy")
    advance(second, "copy")
    finish(first)
    finish(second)
    world.reported += entries_of(staged)
    verdict = world.judge(is_sealed=False)
    assert [entry.name for entry in verdict.lost] == ["alpha"]


@pytest.mark.parametrize("kind", ["apt", "yum"])
def test_the_oracle_sees_every_flipped_missing_and_added_object(kind: str, shelf: Shelf) -> None:
    bucket = MemoryBucket()
    world = World(bucket, kind, shelf)
    world.publish(1, "seed", "alpha")
    assert world.judge().is_good
    for name, held in list(bucket.objects.items()):
        if "/versions/" not in name or name.endswith("version.txt"):
            continue
        content = bytearray(held.content)
        content[len(content) // 2] ^= 1
        if not name.endswith("manifest.json"):
            bucket.put(name, bytes(content))
            assert not world.judge().is_good, f"{name} flipped"
        del bucket.objects[name]
        assert not world.judge().is_good, f"{name} missing"
        bucket.objects[name] = held
    bucket.put("repo/versions/1/pool/x.deb", b"x")
    assert "in no index" in str(world.judge())


def test_the_oracle_sees_what_nobody_published_and_what_was_lost(shelf: Shelf) -> None:
    world = World(MemoryBucket(), "apt", shelf)
    world.publish(1, "seed")
    world.attempted.clear()
    assert "nobody published seed" in str(world.judge())
    world.publish(2, "alpha")
    world.publish(3, restore=1)
    assert [entry.name for entry in world.judge().lost] == ["alpha"]
