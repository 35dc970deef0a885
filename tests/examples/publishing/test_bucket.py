"""The bucket's contract, on the real protocol and on the one in memory that replaces it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.publishing.bucket import Bucket, RetryingBucket, crc32c
from examples.publishing.errors import NotFound, OutcomeUnknown, PreconditionFailed
from examples.publishing.gcs import GcsBucket, Place
from gcs_emulator import GcsServer
from tests.examples.publishing.memory import MemoryBucket


@pytest.fixture(params=["memory", "gcs"])
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    if request.param == "memory":
        yield MemoryBucket()
        return
    with GcsServer(buckets=["b"]) as server:
        opened = GcsBucket("b", endpoint=server.url)
        yield opened
        opened.close()


def test_create_writes_only_what_is_absent(bucket: Bucket) -> None:
    created = bucket.create("a/é ?#+", b"one", colour="red")
    assert (created.size, created.crc32c) == (3, crc32c(b"one"))
    with pytest.raises(PreconditionFailed):
        bucket.create("a/é ?#+", b"two")
    assert bucket.read("a/é ?#+") == b"one"
    assert bucket.stat("a/é ?#+").metadata == {"colour": "red"}


def test_replace_compares_and_swaps(bucket: Bucket) -> None:
    first = bucket.replace("p", b"1", generation=0)
    second = bucket.replace("p", b"2", generation=first.generation, token="7")
    assert second.generation != first.generation
    with pytest.raises(PreconditionFailed):
        bucket.replace("p", b"3", generation=first.generation)
    with pytest.raises(PreconditionFailed):
        bucket.replace("absent", b"3", generation=first.generation)
    assert bucket.read("p") == b"2"
    with pytest.raises(NotFound):
        bucket.read("p", generation=first.generation)


def test_copy_takes_that_generation_onto_an_absent_name(bucket: Bucket) -> None:
    old = bucket.create("source", b"content")
    copied = bucket.copy(old, "target")
    assert (copied.name, copied.crc32c, bucket.read("target")) == ("target", old.crc32c, b"content")
    with pytest.raises(PreconditionFailed):
        bucket.copy(old, "target")
    bucket.replace("source", b"other", generation=old.generation)
    with pytest.raises(NotFound):
        bucket.copy(old, "elsewhere")


def test_lists_objects_and_folders(bucket: Bucket) -> None:
    for name in ("v/1/a", "v/1/b", "v/10/a", "v/x", "w"):
        bucket.create(name, name.encode())
    assert [found.name for found in bucket.list("v/1/")] == ["v/1/a", "v/1/b"]
    assert list(bucket.folders("v/")) == ["1", "10"]


def test_delete_removes_that_generation(bucket: Bucket) -> None:
    old = bucket.create("a", b"1")
    new = bucket.replace("a", b"2", generation=old.generation)
    with pytest.raises(PreconditionFailed):
        bucket.delete("a", generation=old.generation)
    bucket.delete("a", generation=new.generation)
    for verb in (lambda: bucket.delete("a", generation=new.generation), lambda: bucket.stat("a")):
        with pytest.raises(NotFound):
            verb()


def test_patient_finds_its_own_lost_answers(bucket: Bucket) -> None:
    patient = RetryingBucket(bucket, pause=lambda _: None)
    first = patient.create("a", b"1")
    assert patient.create("a", b"1") == first
    with pytest.raises(PreconditionFailed):
        patient.create("a", b"2")
    patient.copy(first, "b")
    patient.copy(first, "b")
    patient.delete("b", generation=bucket.stat("b").generation)
    patient.delete("b", generation=1)


@pytest.mark.parametrize("action", ["fail", "lose_answer", "fail_after_commit", "lose_request"])
def test_patient_outlasts_what_passes(action: str) -> None:
    with GcsServer(buckets=["b"]) as server:
        opened = GcsBucket("b", endpoint=server.url)
        patient = RetryingBucket(opened, pause=lambda _: None)
        for kind in ("insert", "rewrite", "list", "media", "delete"):
            server.faults.inject(action, kind=kind)
        source = patient.create("a", b"1")
        copied = patient.copy(source, "b")
        assert [found.name for found in patient.list("")] == ["a", "b"]
        assert patient.read("b") == b"1"
        patient.delete("b", generation=copied.generation)
        assert [found.name for found in patient.list("")] == ["a"]
        opened.close()


def test_patient_gives_up_and_asks_before_each_repetition() -> None:
    with GcsServer(buckets=["b"]) as server:
        opened = GcsBucket("b", endpoint=server.url)
        server.faults.inject("fail", times=None)
        asked: list[int] = []
        patient = RetryingBucket(opened, lambda: asked.append(1), patience=1.0, pause=lambda _: None)
        with pytest.raises(OutcomeUnknown):
            patient.create("a", b"1")
        assert len(asked) == server.requests.count() - 1 > 2
        opened.close()


def test_places_are_read_from_urls() -> None:
    assert Place.parse("gs://b") == Place.parse("gs://b/") == Place("b", "")
    assert Place.parse("gs://b/a/c/") == Place("b", "a/c/")
    for wrong in ("s3://b", "gs://", "b/c", "gs://b/c#d"):
        with pytest.raises(ValueError, match="gs://bucket/prefix"):
            Place.parse(wrong)
