"""Google's own client library takes the server for the real one."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from gcs_emulator import GcsServer

pytest.importorskip("google.cloud.storage")

from google.api_core import exceptions
from google.auth import credentials
from google.cloud import storage

KIB = 1024


@pytest.fixture
def client(endpoint: str) -> Iterator[storage.Client]:
    found = storage.Client(
        project="test",
        credentials=credentials.AnonymousCredentials(),
        client_options={"api_endpoint": endpoint},
    )
    yield found
    found.close()


@pytest.fixture
def blobs(client: storage.Client, bucket: str) -> storage.Bucket:
    return client.bucket(bucket)


def test_upload_and_download(blobs: storage.Bucket, name: str) -> None:
    blob = blobs.blob(name)
    blob.metadata = {"owner": "me"}
    blob.cache_control = "no-store"
    blob.upload_from_string(b"0123456789", content_type="text/plain", if_generation_match=0)
    again = blobs.get_blob(name)
    assert (again.generation, again.metageneration) == (blob.generation, 1)
    assert (again.metadata["owner"], again.cache_control, again.size) == ("me", "no-store", 10)
    assert again.download_as_bytes() == b"0123456789"
    assert again.download_as_bytes(start=2, end=4) == b"234"
    assert again.time_created <= again.updated


def test_a_lost_race_is_precondition_failed(blobs: storage.Bucket, name: str) -> None:
    blobs.blob(name).upload_from_string(b"", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        blobs.blob(name).upload_from_string(b"", if_generation_match=0)


def test_patch_merges_under_preconditions(blobs: storage.Bucket, name: str) -> None:
    blob = blobs.blob(name)
    blob.metadata = {"keep": "1", "drop": "2"}
    blob.upload_from_string(b"")
    blob.metadata = {"keep": "1", "drop": None, "new": "3"}
    blob.patch(if_generation_match=blob.generation, if_metageneration_match=1)
    assert blob.metageneration == 2
    assert {"keep": "1", "new": "3"}.items() <= blob.metadata.items()
    assert "drop" not in blob.metadata
    blob.metadata = {"keep": "4"}
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)


def test_delete_under_preconditions(blobs: storage.Bucket, name: str) -> None:
    blob = blobs.blob(name)
    blob.upload_from_string(b"")
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=blob.generation, if_metageneration_match=2)
    blob.delete(if_generation_match=blob.generation, if_metageneration_match=1)
    with pytest.raises(exceptions.NotFound):
        blob.reload()


def test_copy_and_rewrite_under_preconditions(blobs: storage.Bucket, name: str) -> None:
    source = blobs.blob(f"{name}/source")
    source.metadata = {"k": "v"}
    source.upload_from_string(b"content", content_type="text/html")
    copied = blobs.copy_blob(source, blobs, f"{name}/copy", if_generation_match=0)
    assert (copied.download_as_bytes(), copied.content_type) == (b"content", "text/html")
    assert copied.metadata["k"] == "v"
    with pytest.raises(exceptions.PreconditionFailed):
        blobs.copy_blob(source, blobs, f"{name}/copy", if_generation_match=0)
    rewritten = blobs.blob(f"{name}/rewritten")
    assert rewritten.rewrite(source, if_generation_match=0) == (None, 7, 7)
    assert rewritten.download_as_bytes() == b"content"
    with pytest.raises(exceptions.PreconditionFailed):
        blobs.blob(f"{name}/other").rewrite(source, if_source_generation_match=1)


def test_compose(blobs: storage.Bucket, name: str) -> None:
    parts = [blobs.blob(f"{name}/{number}") for number in range(3)]
    for number, part in enumerate(parts):
        part.upload_from_string(str(number).encode())
    whole = blobs.blob(f"{name}/whole")
    whole.content_type = "text/plain"
    whole.compose(parts)
    assert whole.download_as_bytes() == b"012"


def test_list_with_pages_prefix_and_delimiter(client: storage.Client, blobs: storage.Bucket, name: str) -> None:
    for leaf in ("a", "b", "c/1", "c/2", "d/1"):
        blobs.blob(f"{name}/{leaf}").upload_from_string(b"")
    listed = client.list_blobs(blobs, prefix=f"{name}/", page_size=2)
    assert [blob.name.removeprefix(f"{name}/") for blob in listed] == ["a", "b", "c/1", "c/2", "d/1"]
    listed = client.list_blobs(blobs, prefix=f"{name}/", delimiter="/", page_size=1)
    assert [blob.name.removeprefix(f"{name}/") for blob in listed] == ["a", "b"]
    assert listed.prefixes == {f"{name}/c/", f"{name}/d/"}


@pytest.mark.parametrize("is_size_known", [True, False])
@pytest.mark.parametrize("size", [0, 256 * KIB, 600 * KIB])
def test_resumable_upload(blobs: storage.Bucket, name: str, size: int, is_size_known: bool) -> None:
    content = bytes(range(256)) * (size // 256)
    blob = blobs.blob(name, chunk_size=256 * KIB)
    blob.upload_from_file(io.BytesIO(content), size=size if is_size_known else None, if_generation_match=0)
    assert blob.size == size
    assert blobs.blob(name).download_as_bytes() == content


def test_bucket_life(client: storage.Client, name: str) -> None:
    made = client.create_bucket("life-" + name[-20:])
    with pytest.raises(exceptions.Conflict):
        client.create_bucket(made.name)
    assert made.name in [found.name for found in client.list_buckets()]
    blob = made.blob("object")
    blob.upload_from_string(b"")
    with pytest.raises((exceptions.Conflict, exceptions.BadRequest)):
        made.delete()
    blob.delete()
    made.delete()
    assert not made.exists()


def test_a_bucket_shows_what_a_doctor_warns_about(server: GcsServer) -> None:
    server.create_bucket("versioned", versioning={"enabled": True})
    client = storage.Client(
        project="test",
        credentials=credentials.AnonymousCredentials(),
        client_options={"api_endpoint": server.url},
    )
    found = client.get_bucket("versioned")
    assert found.versioning_enabled
    assert found.soft_delete_policy.retention_duration_seconds == 7 * 24 * 3600
    assert found.test_iam_permissions(["storage.objects.create", "storage.objects.delete"]) == [
        "storage.objects.create",
        "storage.objects.delete",
    ]
    client.close()
