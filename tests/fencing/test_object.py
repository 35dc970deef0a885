"""A Cloud Storage object as the floor of fencing tokens: admission moves the metageneration, a write expects it."""

from __future__ import annotations

import pytest
from google.cloud import storage

from gcs_emulator import GcsServer
from lockstead import FenceGuard, GcsFenceStore, LeaseLost, OutcomeUnknown, Sequencer, StoreRefused
from lockstead.fencing.object import FENCE


def admitted(bucket: storage.Bucket, token: int) -> GcsFenceStore:
    floor = GcsFenceStore(bucket.blob("index"))
    FenceGuard(floor).admit(Sequencer("apt", token))
    return floor


def test_h17_a_superseded_holder_cannot_write_again(bucket: storage.Bucket) -> None:
    early = admitted(bucket, 7)
    early.rewrite("one", "text/plain")
    late = admitted(bucket, 9)
    with pytest.raises(LeaseLost, match="token 7 of 'apt' is superseded: 9"):
        early.rewrite("two")
    late.rewrite("three")
    with pytest.raises(LeaseLost, match="superseded: 9"):
        admitted(bucket, 8)
    assert bucket.blob("index").download_as_bytes() == b"three"


def test_a_later_holder_stops_the_earlier_one_without_writing(bucket: storage.Bucket) -> None:
    early = admitted(bucket, 7)
    admitted(bucket, 9)
    with pytest.raises(LeaseLost):
        early.rewrite("one")
    assert bucket.blob("index").download_as_bytes() == b""


def test_a_holder_may_rewrite_and_its_siblings_are_admitted(bucket: storage.Bucket) -> None:
    floor = admitted(bucket, 7)
    for text in ("one", "two", "three"):
        floor.rewrite(text)
    sibling = admitted(bucket, 7)
    sibling.rewrite("four")
    assert bucket.blob("index").download_as_bytes() == b"four"


def test_a_rewrite_keeps_metadata_and_content_headers(bucket: storage.Bucket) -> None:
    blob = bucket.blob("index")
    blob.metadata = {"team": "web"}
    blob.upload_from_string("{}", content_type="application/json")
    blob.cache_control = "no-store"
    floor = GcsFenceStore(blob)
    FenceGuard(floor).admit(Sequencer("apt", 7))
    floor.rewrite('{"a": 1}', "application/json")
    seen = bucket.get_blob("index")
    assert seen.metadata == {"team": "web", FENCE: "7:exclusive:apt"}
    assert (seen.content_type, seen.cache_control) == ("application/json", "no-store")


def test_the_conditions_serve_any_write_of_the_blob(bucket: storage.Bucket) -> None:
    early = admitted(bucket, 7)
    stale = early.conditions
    assert set(stale) == {"if_generation_match", "if_metageneration_match"}
    admitted(bucket, 9)
    from google.api_core.exceptions import PreconditionFailed

    with pytest.raises(PreconditionFailed):
        bucket.blob("index").delete(**stale, retry=None)


def test_two_locks_for_one_object_have_no_order(bucket: storage.Bucket) -> None:
    admitted(bucket, 7)
    with pytest.raises(ValueError, match="fenced by 'lock:apt', not by 'lock:yum'"):
        FenceGuard(GcsFenceStore(bucket.blob("index"))).admit(Sequencer("yum", 9))


def test_who_writes_without_a_token_is_found_out(bucket: storage.Bucket) -> None:
    floor = admitted(bucket, 7)
    bucket.blob("index").upload_from_string("by hand")
    with pytest.raises(StoreRefused, match="not by a later holder: every writer must present a token"):
        floor.rewrite("two")
    assert bucket.blob("index").download_as_bytes() == b"by hand"


def test_a_write_before_admission_is_a_mistake(bucket: storage.Bucket) -> None:
    floor = GcsFenceStore(bucket.blob("index"))
    assert floor.conditions == {}
    with pytest.raises(ValueError, match=r"FenceGuard\.admit first"):
        floor.rewrite("one")


def test_damaged_fence_metadata_is_refused_and_left_alone(bucket: storage.Bucket) -> None:
    blob = bucket.blob("index")
    for text in ("many", "7:wish:apt", "7:exclusive:" + "k" * 600):
        blob.metadata = {FENCE: text}
        blob.upload_from_string("x")
        with pytest.raises(StoreRefused, match="metadata lockstead-fence is damaged"):
            admitted(bucket, 7)
        assert bucket.get_blob("index").metadata == {FENCE: text}


def test_a_missing_bucket_is_told(bucket: storage.Bucket) -> None:
    with pytest.raises(StoreRefused, match="no bucket 'nowhere'"):
        FenceGuard(GcsFenceStore(bucket.client.bucket("nowhere").blob("index"))).admit(Sequencer("apt", 1))


def test_a_lost_answer_to_an_admission_is_settled_by_looking(server: GcsServer, bucket: storage.Bucket) -> None:
    admitted(bucket, 7).rewrite("one")
    server.faults.inject("lose_answer", kind="patch", times=1)
    late = admitted(bucket, 9)
    late.rewrite("two")
    with pytest.raises(LeaseLost):
        admitted(bucket, 8)


def test_a_write_without_an_answer_is_unknown_and_not_repeated(server: GcsServer, bucket: storage.Bucket) -> None:
    floor = admitted(bucket, 7)
    sent = server.requests.count("insert")
    server.faults.inject("lose_answer", kind="insert", times=1)
    with pytest.raises(OutcomeUnknown, match="read it before you write again"):
        floor.rewrite("one")
    assert server.requests.count("insert") == sent + 1
    assert bucket.blob("index").download_as_bytes() == b"one"
    again = admitted(bucket, 7)
    again.rewrite("two")


def test_a_readers_admission_permits_no_write(server: GcsServer, bucket: storage.Bucket) -> None:
    writer = admitted(bucket, 7)
    writer.rewrite("one")
    reader = GcsFenceStore(bucket.blob("index"))
    FenceGuard(reader).admit_reader(Sequencer("apt", 9, "shared"))
    assert reader.conditions == {}
    with pytest.raises(ValueError, match="no writer was admitted yet"):
        reader.rewrite("two")
    with pytest.raises(LeaseLost, match="token 7 of 'apt' is superseded: 9"):
        writer.rewrite("three")
    assert bucket.blob("index").download_as_bytes() == b"one"
    patched = server.requests.count("patch")
    for _ in range(3):
        FenceGuard(GcsFenceStore(bucket.blob("index"))).admit_reader("9:shared:apt")
    assert server.requests.count("patch") == patched
    assert bucket.get_blob("index").metadata == {FENCE: "9:shared:apt"}


def test_a_downgraded_holder_cannot_rewrite_what_a_reader_reads(bucket: storage.Bucket) -> None:
    floor = admitted(bucket, 7)
    FenceGuard(floor).admit_reader("7:shared:apt")
    with pytest.raises(LeaseLost, match="its lease was downgraded"):
        floor.rewrite("one")
    assert bucket.blob("index").download_as_bytes() == b""


def test_an_object_belongs_to_one_slot_of_a_semaphore(bucket: storage.Bucket) -> None:
    floor = GcsFenceStore(bucket.blob("index"))
    FenceGuard(floor).admit("7:permit/2:api")
    floor.rewrite("one")
    for other in ("9:permit/1:api", "9:exclusive:api"):
        with pytest.raises(ValueError, match="fenced by 'permit/2:api', not by"):
            FenceGuard(GcsFenceStore(bucket.blob("index"))).admit(other)
