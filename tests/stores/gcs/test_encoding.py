"""How commands look as requests to Cloud Storage, and what its answers mean: without a network."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.gcs.encoding import (
    OBJECT_NAME_BYTES_MAX,
    PREFIX_BYTES_MAX,
    BucketPath,
    answer_to,
    escape,
    exchange,
    request_for,
)
from lockstead.stores.http import Answer
from lockstead.testing.conformance.names import ODD_KEYS
from lockstead.values import KEY_BYTES_MAX, Name, Space, checked_key

APT = Name("apt")
PLACE = BucketPath.at("bucket", "locks")
DATE = "Sat, 21 Nov 2026 05:00:01 GMT"

OBJECT = {
    "name": "locks/apt",
    "generation": "1763701200123456",
    "metageneration": "3",
    "timeCreated": "2026-11-21T05:00:00.123Z",
    "updated": "2026-11-21T05:00:00.500Z",
    "metadata": {"identity": "me"},
}


def answered(status: int, body: object = None, date: str | None = DATE) -> Answer:
    text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Answer(status, {} if date is None else {b"date": date.encode()}, text)


def refusal(status: int, message: str, reason: str = "") -> Answer:
    return answered(status, {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}})


COMMANDS: list[Command[Any]] = [
    Create(APT, {"identity": "me"}),
    Read(APT),
    Extend(APT, {"n": "1"}, "7", "2"),
    Replace(APT, {"identity": "next"}, "7", "2"),
    Remove(APT, "7", "2"),
]


@pytest.mark.parametrize(
    ("command", "method", "path", "expected"),
    [
        (Create(APT, {}), "POST", "/upload/storage/v1/b/bucket/o", {"ifGenerationMatch": "0"}),
        (Read(APT), "GET", "/storage/v1/b/bucket/o/locks%2Fapt", {}),
        (Extend(APT, {}, "7"), "PATCH", "/storage/v1/b/bucket/o/locks%2Fapt", {"ifGenerationMatch": "7"}),
        (
            Extend(APT, {}, "7", "2"),
            "PATCH",
            "/storage/v1/b/bucket/o/locks%2Fapt",
            {"ifGenerationMatch": "7", "ifMetagenerationMatch": "2"},
        ),
        (Extend(APT, {}, None), "PATCH", "/storage/v1/b/bucket/o/locks%2Fapt", {}),
        (
            Replace(APT, {}, "7", "2"),
            "POST",
            "/upload/storage/v1/b/bucket/o",
            {"ifGenerationMatch": "7", "ifMetagenerationMatch": "2"},
        ),
        (Remove(APT, "7"), "DELETE", "/storage/v1/b/bucket/o/locks%2Fapt", {"ifGenerationMatch": "7"}),
        (
            Remove(APT, "7", "2"),
            "DELETE",
            "/storage/v1/b/bucket/o/locks%2Fapt",
            {"ifGenerationMatch": "7", "ifMetagenerationMatch": "2"},
        ),
    ],
)
def test_h02_each_command_is_one_request_with_its_expectation(
    command: Command[Any], method: str, path: str, expected: dict[str, str]
) -> None:
    request = request_for(command, PLACE)
    split = urlsplit(request.target)
    query = {name: values[0] for name, values in parse_qs(split.query).items()}
    assert (request.method, split.path) == (method, path)
    assert {name: value for name, value in query.items() if name.startswith("if")} == expected


def test_a_record_is_an_uncacheable_empty_object_with_metadata() -> None:
    request = request_for(Create(APT, {"identity": "me", "expires_at": "17", "purpose": 'g"rün\r\n--x'}), PLACE)
    boundary = re.fullmatch(r"multipart/related; boundary=(.+)", request.headers["Content-Type"])
    assert boundary is not None
    _, about, body, end = request.content.split(f"--{boundary[1]}".encode())
    assert json.loads(about.partition(b"\r\n\r\n")[2]) == {
        "name": "locks/apt",
        "metadata": {"identity": "me", "expires_at": "17", "purpose": 'g"rün\r\n--x'},
        "cacheControl": "no-store",
        "contentType": "application/octet-stream",
    }
    assert body.partition(b"\r\n\r\n")[2].strip() == b""
    assert end == b"--\r\n"


# --- names -------------------------------------------------------------------------------------------------------


def test_plain_keys_stand_where_other_implementations_look_for_them() -> None:
    assert PLACE.object_name(Name("apt")) == "locks/apt"
    assert PLACE.object_name(Name("My_key-1.0~x")) == "locks/My_key-1.0~x"
    assert BucketPath.at("bucket", "").object_name(Name("apt")) == "apt"


@given(st.text(min_size=1, max_size=600))
def test_h23_an_escaped_key_has_no_slash_or_leading_dot(key: str) -> None:
    try:
        checked_key(key)
    except ValueError:
        return
    written = escape(key)
    assert "/" not in written
    assert not written.startswith(".")
    assert len(written.encode()) <= 684
    assert PLACE.name_of(f"locks/{written}", Space.LOCK) == Name(key)


def test_h23_no_two_odd_keys_are_written_alike() -> None:
    assert len({escape(key) for key in ODD_KEYS}) == len(ODD_KEYS) == len(set(ODD_KEYS))


@pytest.mark.parametrize("key", [*(c * (KEY_BYTES_MAX // len(c.encode())) for c in "a/é. %😀="), "=" + "a" * 511])
def test_h23_the_longest_keys_fit_below_the_longest_prefix(key: str) -> None:
    place = BucketPath.at("bucket", "p" * PREFIX_BYTES_MAX)
    for name in (Name(key), Name(key, Space.COMPANION), Name(key, Space.MEMBER, f"{2**63}/{'0' * 32}")):
        written = place.object_name(name)
        assert len(written.encode()) <= OBJECT_NAME_BYTES_MAX
        assert place.name_of(written, name.space) == name


@pytest.mark.parametrize(
    "path", ["", "a/b", "a b", "%61pt", "%2fapt", "a%", "%FF", "=", "=YXB0", "=%", "=YXB0=", ".lockstead", ".x"]
)
def test_h23_an_object_whose_name_is_no_key_is_no_record(path: str) -> None:
    assert PLACE.name_of(f"locks/{path}", Space.LOCK) is None


@pytest.mark.parametrize("path", ["", "apt/", "/x", "a pt/1", "%61pt", "apt/%2F"])
def test_h23_a_foreign_object_among_reserved_names_is_no_record(path: str) -> None:
    assert PLACE.name_of(f"locks/.lockstead/member/{path}", Space.MEMBER) is None


@pytest.mark.parametrize(
    ("bucket", "prefix", "says"),
    [
        ("buc/ket", "locks", "not a valid bucket name"),
        ("", "locks", "not a valid bucket name"),
        ("bucket", "locks/.lockstead/member", "reserved names of another store"),
        ("bucket", "a\nb", "printable"),
        ("bucket", "p" * 201, "at most 200 bytes"),
    ],
)
def test_a_place_where_locks_cannot_be_is_told(bucket: str, prefix: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BucketPath.at(bucket, prefix)


# --- answers -----------------------------------------------------------------------------------------------------


def test_an_object_has_the_stores_times_and_a_growing_number() -> None:
    seen = answer_to(Read(APT), answered(200, OBJECT), PLACE)
    assert seen == Snapshot(
        fields={"identity": "me"},
        incarnation="1763701200123456",
        revision="3",
        updated_at=1795237200.5,
        store_now=1795237201.0,
        token=1795237200123 + 3,
    )


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_an_answer_without_a_date_says_no_time(date: str | None) -> None:
    seen = answer_to(Read(APT), answered(200, OBJECT, date), PLACE)
    assert seen.store_now is None
    assert seen.updated_at is not None


def test_an_object_without_metadata_has_no_fields() -> None:
    foreign = {name: value for name, value in OBJECT.items() if name != "metadata"}
    assert answer_to(Read(APT), answered(200, foreign), PLACE).fields == {}


NO_OBJECT = refusal(404, "No such object: bucket/locks/apt", "notFound")
NO_BUCKET = refusal(404, "The specified bucket does not exist.", "notFound")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_clear_answers(command: Command[Any]) -> None:
    is_insert = isinstance(command, Create | Replace)
    if not isinstance(command, Read):
        assert answer_to(command, refusal(412, "pre-condition", "conditionNotMet"), PLACE) == Conflict()
    if not is_insert:
        assert answer_to(command, NO_OBJECT, PLACE) == Absent(1795237201.0)
    if isinstance(command, Remove):
        assert answer_to(command, answered(204), PLACE) == Removed(1795237201.0)
    else:
        assert isinstance(answer_to(command, answered(200, OBJECT), PLACE), Snapshot)


@pytest.mark.parametrize(
    "said", ["No such object: bucket/a bucket does not exist", "Not Found: bucket/apt", "Not Found"]
)
def test_a_name_containing_bucket_is_not_a_missing_bucket(said: str) -> None:
    assert answer_to(Read(APT), refusal(404, said, "notFound"), PLACE) == Absent(1795237201.0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize(
    ("response", "kind", "says"),
    [
        (NO_BUCKET, StoreRefused, "the bucket gs://bucket does not exist; create it"),
        (refusal(401, "Invalid Credentials", "authError"), StoreRefused, "set up application default credentials"),
        (
            refusal(403, "me@x does not have storage.objects.get access", "forbidden"),
            StoreRefused,
            "Storage Object User",
        ),
        (
            refusal(403, "Object is subject to bucket's retention policy", "retentionPolicyNotMet"),
            StoreRefused,
            "without",
        ),
        (refusal(403, "Object is under active hold", "objectUnderActiveHold"), StoreRefused, "without"),
        (refusal(400, "Invalid argument", "invalid"), StoreRefused, "refused .* with 400: Invalid argument"),
        (refusal(403, "Rate Limit Exceeded", "rateLimitExceeded"), OutcomeUnknown, "403"),
        (refusal(429, "slow down", "rateLimitExceeded"), OutcomeUnknown, "429"),
        (refusal(500, "We encountered an internal error", "backendError"), OutcomeUnknown, "500"),
        (refusal(503, "We encountered an internal error", "backendError"), OutcomeUnknown, "503"),
        (refusal(408, "Request timeout", ""), OutcomeUnknown, "408"),
        (refusal(409, "conflict", "conflict"), OutcomeUnknown, "409"),
        (answered(404, b"<html>not found</html>"), OutcomeUnknown, "404"),
        (answered(404), OutcomeUnknown, "404"),
        (answered(302), OutcomeUnknown, "302"),
        (answered(418), OutcomeUnknown, "418"),
    ],
)
def test_h25_what_is_no_clear_answer_may_have_been_applied(
    command: Command[Any], response: Answer, kind: type[StoreError], says: str
) -> None:
    with pytest.raises(kind, match=says) as told:
        answer_to(command, response, PLACE)
    assert type(told.value) is kind
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"generation": "1"}', b"\xff"])
def test_h24_an_answer_that_is_no_object_is_no_answer(body: bytes) -> None:
    for command in COMMANDS[:4]:
        with pytest.raises(OutcomeUnknown):
            answer_to(command, answered(200, body), PLACE)
    with pytest.raises(OutcomeUnknown):
        answer_to(Read(APT), answered(200, {**OBJECT, "updated": "soon"}), PLACE)


def test_a_listing_goes_on_to_its_last_page() -> None:
    steps = exchange(List(Space.LOCK), PLACE)
    first = next(steps)
    assert parse_qs(urlsplit(first.target).query)["prefix"] == ["locks/"]
    second = steps.send(answered(200, {"items": [OBJECT, {"name": "locks/a b"}], "nextPageToken": "on/+"}))
    assert parse_qs(urlsplit(second.target).query)["pageToken"] == ["on/+"]
    with pytest.raises(StopIteration) as stopped:
        steps.send(answered(200, {"items": [{**OBJECT, "name": "locks/%2E"}]}))
    listing: Listing = stopped.value.value
    assert [name for name, _ in listing.entries] == [APT, Name(".")]


def test_a_listing_whose_second_page_fails_fails() -> None:
    steps = exchange(List(Space.LOCK), PLACE)
    next(steps)
    steps.send(answered(200, {"nextPageToken": "on"}))
    with pytest.raises(OutcomeUnknown):
        steps.send(answered(503))


def test_a_page_has_one_request_and_the_next_one_goes_on_from_its_token() -> None:
    steps = exchange(List(Space.LOCK, page=2), PLACE)
    assert parse_qs(urlsplit(next(steps).target).query)["maxResults"] == ["2"]
    with pytest.raises(StopIteration) as stopped:
        steps.send(answered(200, {"items": [OBJECT], "nextPageToken": "on/+"}))
    first: Listing = stopped.value.value
    assert first.next_cursor is not None
    assert len(first.entries) == 1
    steps = exchange(List(Space.LOCK, page=5000, cursor=first.next_cursor), PLACE)
    query = parse_qs(urlsplit(next(steps).target).query)
    assert (query["pageToken"], query["maxResults"]) == (["on/+"], ["1000"])
    with pytest.raises(StoreRefused, match="begin the listing again"):
        steps.send(answered(400, {"error": {"message": "Invalid page token"}}))
    cursor = first.next_cursor
    for other in (List(Space.MEMBER, page=2, cursor=cursor), List(Space.LOCK, "apt", page=2, cursor=cursor)):
        with pytest.raises(StoreRefused, match="begin the listing again"):
            next(exchange(other, PLACE))


@pytest.mark.parametrize("token", ["", 7, ["a"], {}, True, "x" * 5000])
def test_h24_a_token_that_is_none_is_no_answer(token: object) -> None:
    for page in (2, None):
        steps = exchange(List(Space.LOCK, page=page), PLACE)
        next(steps)
        with pytest.raises(OutcomeUnknown, match="names no next page"):
            steps.send(answered(200, {"items": [OBJECT], "nextPageToken": token}))
