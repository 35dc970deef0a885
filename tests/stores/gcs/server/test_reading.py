"""Content as apt, dnf and browsers read it, listings, and uploads piece by piece."""

from __future__ import annotations

import httpx
import pytest

from gcs_emulator import GcsServer, ManualClock
from gcs_emulator.checksums import crc32c_base64, crc32c_in_python
from tests.stores.gcs.server.driver import Driver

CONTENT = b"0123456789"

RANGES = (
    ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
    ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
    ("bytes=-3", 206, b"789", "bytes 7-9/10"),
    ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
    ("bytes=-100", 206, CONTENT, "bytes 0-9/10"),
    ("bytes=10-", 416, None, None),
    ("bytes=5-3", 200, CONTENT, None),
    ("bytes=0-1,4-5", 200, CONTENT, None),
    ("lines=1-2", 200, CONTENT, None),
)


@pytest.mark.parametrize(("wanted", "status", "content", "shown"), RANGES)
def test_ranges(own: Driver, wanted: str, status: int, content: bytes | None, shown: str | None) -> None:
    own.insert("object", content=CONTENT)
    for answer in (own.plain("object", {"Range": wanted}), own.content("object", headers={"Range": wanted})):
        assert answer.status_code == status
        assert answer.headers.get("content-range") == shown
        assert content is None or answer.content == content


def test_a_plain_read_has_what_apt_and_dnf_need(own: Driver) -> None:
    generation = own.insert("dists/a+b ~1/Release", content=CONTENT).json()["generation"]
    answer = own.plain("dists/a+b ~1/Release")
    assert answer.content == CONTENT
    assert answer.headers["content-length"] == "10"
    assert answer.headers["x-goog-generation"] == generation
    assert answer.headers["x-goog-meta-keep"] == "1"
    assert {"etag", "last-modified", "date", "content-type"} <= set(answer.headers)
    head = own.plain("dists/a+b ~1/Release", method="HEAD")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")


def test_a_plain_read_of_nothing_is_404_in_xml(own: Driver) -> None:
    for answer in (own.plain("absent"), own.http.get("/no-such-bucket/object"), own.http.get("/bucket")):
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("application/xml")


def test_conditional_reads() -> None:
    clock = ManualClock()
    with GcsServer(buckets=["bucket"], clock=clock) as server, httpx.Client(base_url=server.url) as http:
        driver = Driver(http, "bucket")
        driver.insert("object", content=CONTENT)
        known = driver.plain("object").headers
        tag, date = known["etag"], known["last-modified"]
        assert driver.plain("object", {"If-None-Match": tag}).status_code == 304
        assert driver.plain("object", {"If-None-Match": f'"other", {tag}'}).status_code == 304
        assert driver.plain("object", {"If-Modified-Since": date}).status_code == 304
        assert driver.plain("object", {"If-Range": tag, "Range": "bytes=5-"}).status_code == 206
        assert driver.plain("object", {"If-Range": date, "Range": "bytes=5-"}).status_code == 206
        clock.advance(60)
        driver.insert("object", content=b"changed...")
        assert driver.plain("object", {"If-None-Match": tag}).status_code == 200
        assert driver.plain("object", {"If-None-Match": tag, "If-Modified-Since": date}).status_code == 200
        assert driver.plain("object", {"If-Modified-Since": date}).status_code == 200
        assert driver.plain("object", {"If-Range": tag, "Range": "bytes=5-"}).status_code == 200
        assert driver.plain("object", {"If-Range": date, "Range": "bytes=5-"}).status_code == 200
        assert driver.plain("object", {"If-Match": tag}).status_code == 412


LISTINGS: tuple[tuple[dict[str, str], list[str], list[str]], ...] = (
    ({}, ["a", "a!", "a/1", "a/2", "b/1", "c", "é"], []),
    ({"prefix": "a"}, ["a", "a!", "a/1", "a/2"], []),
    ({"prefix": "a/"}, ["a/1", "a/2"], []),
    ({"delimiter": "/"}, ["a", "a!", "c", "é"], ["a/", "b/"]),
    ({"delimiter": "/", "prefix": "a/"}, ["a/1", "a/2"], []),
    ({"startOffset": "a/2"}, ["a/2", "b/1", "c", "é"], []),
    ({"endOffset": "a/2"}, ["a", "a!", "a/1"], []),
    ({"startOffset": "a/1", "endOffset": "c"}, ["a/1", "a/2", "b/1"], []),
    ({"prefix": "none"}, [], []),
    ({"fields": "items(name),nextPageToken", "projection": "noAcl"}, ["a", "a!", "a/1", "a/2", "b/1", "c", "é"], []),
)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("query", "names", "prefixes"), LISTINGS)
def test_listings_page_by_page(
    own: Driver, query: dict[str, str], names: list[str], prefixes: list[str], size: int
) -> None:
    for found in ("c", "a/2", "a", "é", "b/1", "a!", "a/1"):
        own.insert(found)
    all_names: list[object] = []
    all_prefixes: list[object] = []
    token: dict[str, str] = {}
    while True:
        page = own.http.get("/storage/v1/b/bucket/o", params={**query, **token, "maxResults": str(size)}).json()
        shown = [item["name"] for item in page.get("items", [])]
        assert len(shown) + len(page.get("prefixes", [])) <= size
        all_names += shown
        all_prefixes += page.get("prefixes", [])
        if "nextPageToken" not in page:
            break
        token = {"pageToken": page["nextPageToken"]}
    assert (all_names, all_prefixes) == (names, prefixes)


def test_a_resumable_upload_can_be_asked_about_and_resumed(own: Driver) -> None:
    started = own.http.post(
        "/upload/storage/v1/b/bucket/o",
        params={"uploadType": "resumable"},
        json={"name": "big", "metadata": {"a": "b"}},
    )
    place = started.headers["location"]
    assert own.http.put(place, headers={"Content-Range": "bytes */*"}).status_code == 308
    first = own.http.put(place, content=b"01234", headers={"Content-Range": "bytes 0-4/*"})
    assert (first.status_code, first.headers["range"]) == (308, "bytes=0-4")
    assert own.http.put(place, content=b"9", headers={"Content-Range": "bytes 9-9/10"}).status_code == 400
    assert own.get("big").status_code == 404
    last = own.http.put(place, content=b"456789", headers={"Content-Range": "bytes 4-9/10"})
    assert (last.status_code, last.json()["size"], last.json()["metadata"]) == (200, "10", {"a": "b"})
    assert own.content("big").content == CONTENT
    again = own.http.put(place, headers={"Content-Range": "bytes */10"})
    assert again.json()["generation"] == last.json()["generation"]


def test_a_resumable_upload_judges_its_preconditions_at_both_ends(own: Driver) -> None:
    query = {"uploadType": "resumable", "name": "big", "ifGenerationMatch": "0"}
    place = own.http.post("/upload/storage/v1/b/bucket/o", params=query).headers["location"]
    own.insert("big")
    assert own.http.put(place, content=b"x").status_code == 412
    assert own.http.post("/upload/storage/v1/b/bucket/o", params=query).status_code == 412


def test_metadata_that_are_numbers_become_text(own: Driver) -> None:
    """Google's client for Ruby sends them as they are, and the service takes them (google-cloud-python issue 9729)."""
    assert own.insert("object", resource={"metadata": {"at": 1795246078.2033513, "n": 7}}).status_code == 200
    own.http.patch(own.path("object"), json={"metadata": {"n": 8.5}})
    assert own.http.get(own.path("object")).json()["metadata"] == {"at": "1795246078.2033513", "n": "8.5"}


def test_bad_requests_are_refused(own: Driver) -> None:
    upload = "/upload/storage/v1/b/bucket/o"
    refused = {
        "no name": own.http.post(upload, params={"uploadType": "media"}),
        "too long a name": own.http.post(upload, params={"uploadType": "media", "name": "x" * 1025}),
        "dots": own.http.post(upload, params={"uploadType": "media", "name": ".."}),
        "not a number": own.insert("object", {"ifGenerationMatch": "-1"}),
        "metadata not text": own.insert("object", resource={"metadata": {"a": [1]}}),
        "too much metadata": own.insert("object", resource={"metadata": {"a": "x" * 8192}}),
        "wrong checksum": own.insert("object", resource={"md5Hash": "AAAA"}),
        "not JSON": own.http.patch(own.path("object"), content=b"{"),
        "no parts": own.http.post(upload, params={"uploadType": "multipart"}, content=b"x"),
        "bucket name": own.http.post("/storage/v1/b", json={"name": "_Not/A/Bucket"}),
    }
    own.insert("object", content=b"")
    assert {what: answer.status_code for what, answer in refused.items()} == dict.fromkeys(refused, 400)
    assert own.http.get("/storage/v1/nothing").status_code == 404
    assert own.http.put("/storage/v1/b/bucket/o").status_code == 405
    assert own.insert("object", {"ifGenerationMatch": "0"}).json()["error"]["errors"][0]["reason"] == "conditionNotMet"


def test_a_body_may_come_in_chunks(own: Driver) -> None:
    answer = own.http.post(
        "/upload/storage/v1/b/bucket/o",
        params={"uploadType": "media", "name": "object"},
        content=iter([b"01234", b"5678", b"9"]),
    )
    assert answer.json()["size"] == "10"
    assert own.content("object").content == CONTENT


def test_copies_keep_or_replace_descriptions(own: Driver) -> None:
    own.insert("source")
    assert own.copy("source", "kept").json()["metadata"] == {"keep": "1", "drop": "2"}
    replaced = own.copy("source", "replaced", resource={"metadata": {"other": "x"}, "contentType": "a/b"}).json()
    assert (replaced["metadata"], replaced["contentType"]) == ({"other": "x"}, "a/b")
    assert "cacheControl" not in replaced
    assert own.content("replaced").content == b"content"


@pytest.mark.parametrize("content", [b"", b"123456789", bytes(range(256)) * 3])
def test_the_checksum_in_python_is_that_of_the_library(content: bytes) -> None:
    library = pytest.importorskip("google_crc32c")
    assert crc32c_in_python(content) == library.value(content)
    assert crc32c_base64(b"123456789") == "4waSgw=="
