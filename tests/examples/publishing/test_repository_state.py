"""What the pipeline refuses, and what it leaves behind: pointers, bases, packages and keys that are not right."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import lockstead
from examples.publishing.errors import BadSignature, PublishingError, Refused
from examples.publishing.layout import Layout
from examples.publishing.pipeline import Work, publishing
from examples.publishing.pointer import FENCE
from examples.publishing.staging import stage
from tests.examples.publishing.memory import MemoryBucket
from tests.examples.publishing.world import HandMadeLease, Shelf, World, finish

KINDS = pytest.mark.parametrize("kind", ["apt", "yum"])


@pytest.fixture
def kind() -> str:
    """The kind where it does not matter."""
    return "apt"


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def world(kind: str, shelf: Shelf, bucket: MemoryBucket) -> World:
    world = World(bucket, kind, shelf)
    world.publish(1, "seed")
    world.publish(2, "gamma")
    return world


def untouched(world: World, bucket: MemoryBucket, token: int, reason: str, *names: str, **options: object) -> None:
    """Publishing is refused for that reason, and nothing that readers can see has changed."""

    def visible() -> dict[str, bytes]:
        return {name: held.content for name, held in bucket.objects.items() if "incoming" not in name}

    before = visible()
    with pytest.raises(PublishingError, match=reason):
        world.publish(token, *names, **options)
    assert visible() == before


def numbers(bucket: MemoryBucket) -> list[str]:
    return list(bucket.folders("repo/versions/"))


def damage(bucket: MemoryBucket, name: str, content: bytes) -> None:
    bucket.put(name, content, **bucket.objects[name].stat.metadata)


def test_a_missing_pointer_is_refused_while_there_are_versions(world: World, bucket: MemoryBucket) -> None:
    del bucket.objects["repo/latest_version.txt"]
    untouched(world, bucket, 3, "missing although there are versions", "alpha")
    bucket.put("repo/latest_version.txt", b"2\n")
    world.publish(4, "alpha")
    assert world.judge().is_good


def test_a_pointer_deleted_in_mid_section_refuses_the_commit(world: World, bucket: MemoryBucket) -> None:
    phases = world.start(3, "alpha")
    for phase in phases:
        if phase == "commit":
            del bucket.objects["repo/latest_version.txt"]
            break
    with pytest.raises(PublishingError, match="gone"):
        finish(phases)


@pytest.mark.parametrize("text", [b"", b"two", b"-1", b"2 3", b"1e3", b"\xff\xfe", b"007", b"9" * 30, b"<html>"])
def test_a_pointer_that_is_no_number_is_refused(world: World, bucket: MemoryBucket, text: bytes) -> None:
    damage(bucket, "repo/latest_version.txt", text)
    untouched(world, bucket, 3, "not a version number", "alpha")


@pytest.mark.parametrize("number", [7, 3])
def test_a_pointer_to_a_version_that_was_never_finished_is_refused(
    world: World, bucket: MemoryBucket, number: int
) -> None:
    bucket.put("repo/versions/3/version.txt", b"{}")
    damage(bucket, "repo/latest_version.txt", f"{number}".encode())
    with pytest.raises(Refused, match="never finished"):
        world.publish(3, "alpha")


@KINDS
def test_every_damaged_object_of_the_base_is_refused(world: World, bucket: MemoryBucket) -> None:
    names = [name for name in bucket.objects if name.startswith("repo/versions/2/")]
    assert len(names) > 8
    for token, name in enumerate(names, start=3):
        held = bucket.objects[name]
        flipped = bytearray(held.content)
        flipped[len(flipped) // 2] ^= 1
        for content in (bytes(flipped), held.content[:-1], b""):
            damage(bucket, name, content)
            with pytest.raises((Refused, BadSignature)):
                world.publish(token, "alpha")
        del bucket.objects[name]
        with pytest.raises(Refused):
            world.publish(token, "alpha")
        bucket.objects[name] = held
    world.publish(99, "alpha")
    assert world.judge().is_good


def test_an_object_too_many_in_the_base_is_refused(world: World, bucket: MemoryBucket) -> None:
    bucket.put("repo/versions/2/pool/main/e/evil.deb", b"evil")
    untouched(world, bucket, 3, "does not belong there", "alpha")


def test_an_object_that_appears_in_the_new_version_is_not_sealed(world: World, bucket: MemoryBucket) -> None:
    phases = world.start(3, "alpha")
    for phase in phases:
        if phase == "seal":
            bucket.put("repo/versions/3/dists/stable/extra", b"?")
            break
    with pytest.raises(Refused, match="extra does not belong there"):
        finish(phases)
    assert world.judge().version == 2


@KINDS
def test_a_damaged_repository_is_rolled_back_and_goes_on(world: World, bucket: MemoryBucket) -> None:
    damage(
        bucket, next(name for name in bucket.objects if name.startswith("repo/versions/2/") and "gamma" in name), b""
    )
    with pytest.raises(Refused, match="rollback"):
        world.publish(3, "alpha")
    world.reported.clear()
    assert world.publish(4, restore=1).number == 3
    assert world.names() == ["seed"]
    world.publish(5, "alpha")
    assert world.names() == ["alpha", "seed"]


@KINDS
def test_the_same_package_again_is_nothing_to_do(world: World, bucket: MemoryBucket) -> None:
    before = {name: held.content for name, held in bucket.objects.items()}
    outcome = world.publish(3, "gamma", "seed")
    assert (outcome.number, outcome.added) == (2, ())
    assert {name: held.content for name, held in bucket.objects.items()} == before


@KINDS
def test_same_name_and_version_with_other_bytes_is_refused(world: World, bucket: MemoryBucket) -> None:
    world.publish(3, "alpha")
    with pytest.raises(Refused, match="other content"):
        world.publish(4, "alpha-other", "beta")
    world.reported = [entry for entry in world.reported if entry.name != "alpha"]
    world.publish(5, "alpha-other", overwrite=True)
    assert world.judge().is_good
    with pytest.raises(Refused, match="other content"):
        world.publish(6, "beta", "alpha")


@KINDS
def test_two_versions_of_a_package_live_together(world: World) -> None:
    world.publish(3, "alpha", "alpha-2")
    assert world.names() == ["alpha", "alpha", "gamma", "seed"]
    assert world.judge().is_good


@KINDS
def test_a_base_signed_with_another_key_is_refused(world: World, bucket: MemoryBucket, shelf: Shelf) -> None:
    untouched(world, bucket, 3, "InRelease|repomd", "alpha", key=shelf.strangers_key)


def test_another_lock_is_refused(world: World, bucket: MemoryBucket) -> None:
    with pytest.raises(Refused, match="guarded by the lock 'repo', not by 'other'"):
        world.publish(9, "alpha", lease=HandMadeLease(9, key="other"))


def test_the_fence_moves_the_generation_and_not_the_text(world: World, bucket: MemoryBucket) -> None:
    before = bucket.objects["repo/latest_version.txt"]
    phases = world.start(7, "alpha")
    next(phases)
    next(phases)
    after = bucket.objects["repo/latest_version.txt"]
    assert after.content == before.content == b"2"
    assert after.stat.generation != before.stat.generation
    assert after.stat.metadata == {FENCE: "7:repo"}


def test_the_lease_is_checked_before_every_phase(world: World) -> None:
    lost = lockstead.LeaseLost()
    for count in range(1, 7):
        lease = HandMadeLease(2 + count)
        phases = world.start(2 + count, "alpha", lease=lease)
        for _ in range(count):
            next(phases)
        lease.lost = lost
        with pytest.raises(lockstead.LeaseLost):
            finish(phases)
        assert world.judge().is_good
        assert world.judge().version == 2


def test_a_lease_lost_after_the_commit_is_still_a_success(world: World) -> None:
    lease = HandMadeLease(3)
    phases = world.start(3, "alpha", lease=lease)
    for phase in phases:
        if phase == "commit":
            lease.lost = lockstead.LeaseLost()
            break
    outcome = finish(phases)
    assert (outcome.number, outcome.pruned) == (3, None)


def test_prune_leaves_the_kept_and_everything_above_the_pointer(world: World, bucket: MemoryBucket) -> None:
    bucket.put("repo/versions/40/version.txt", b"{}")
    for token, name in enumerate(["alpha", "beta", "delta"], start=3):
        world.publish(token, name)
    assert world.judge().version == 43
    assert numbers(bucket) == ["41", "42", "43"]
    phases = world.start(10, "alpha-2")
    next(phases)
    bucket.put("repo/versions/60/version.txt", b"{}")
    outcome = finish(phases)
    assert outcome.number == 61
    assert numbers(bucket) == ["42", "43", "61"], "60 is below the pointer now, and off the chain"


def test_a_number_above_the_pointer_is_never_touched(world: World, bucket: MemoryBucket) -> None:
    phases = world.start(3, "alpha")
    for phase in phases:
        if phase == "prune":
            bucket.put("repo/versions/4/version.txt", b"{}")
    assert "4" in numbers(bucket)


def test_old_index_files_stay_readable_for_some_versions(shelf: Shelf, bucket: MemoryBucket) -> None:
    world = World(bucket, "yum", shelf)
    world.publish(1, "seed")

    def indexes(number: int) -> set[str]:
        prefix = f"repo/versions/{number}/repodata/"
        return {one.name.removeprefix(prefix) for one in bucket.list(prefix)}

    first = {name for name in indexes(1) if "-" in name}
    for number in range(2, 7):
        world.publish(number, restore=number - 1) if number > 2 else world.publish(number, "alpha")
        assert first <= indexes(number), f"version {number} must carry the first one's"
    world.publish(7, "beta")
    assert not first & indexes(7)
    manifest = json.loads(bucket.read("repo/versions/7/manifest.json"))["manifest"]
    assert manifest["chain"] == [6, 5, 4, 3, 2, 1]


def test_a_clock_that_is_wrong_by_hours_is_refused(world: World, shelf: Shelf) -> None:
    past = replace(world.repository(), now=lambda: datetime.now(UTC) - timedelta(hours=5))
    with pytest.raises(Refused, match="clocks"):
        finish(publishing(Work(world.bucket, past, HandMadeLease(3), world.staged("alpha"))))


def test_staging_resumes_and_finds_damage(world: World, bucket: MemoryBucket, shelf: Shelf) -> None:
    staged = world.staged("alpha")
    assert world.staged("alpha") == staged
    bucket.put(staged[0].source.name, b"damaged")
    with pytest.raises(Refused, match="damaged"):
        world.staged("alpha")
    del bucket.objects[staged[0].source.name]
    with pytest.raises(Refused, match=r"incoming/.* has vanished"):
        finish(publishing(Work(bucket, world.repository(), HandMadeLease(5), staged)))


@KINDS
def test_what_is_no_package_is_refused(world: World, shelf: Shelf) -> None:
    other = {"apt": "rpm", "yum": "deb"}[world.kind]
    with pytest.raises(Refused, match=r"is not an? "):
        stage(world.bucket, world.repository(), [shelf.paths[other, "alpha"]])


def test_prefixes_are_kept_apart(shelf: Shelf, bucket: MemoryBucket) -> None:
    worlds = [World(bucket, kind, shelf, prefix=prefix) for kind, prefix in (("apt", "a/apt/"), ("yum", "a/yum/"))]
    for world in worlds:
        world.publish(1, "seed")
    assert all(world.judge().is_good for world in worlds)
    assert {name.split("/")[1] for name in bucket.objects} == {"apt", "yum"}
    assert Layout("a/apt/").version(3, "x") == "a/apt/versions/3/x"
