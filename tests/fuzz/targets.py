"""A target for each parser of external input: it never fails otherwise than documented, is bounded, and reads our
own output.

A target takes any text and any map of text. It may return, or raise what its parser documents; any other exception
is a fault. SEEDS are inputs that once failed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias
from uuid import UUID

from hypothesis import strategies as st

from airflow_lockstead.grants import Grant
from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Create, Extend, List, Listing, Read, Remove, Snapshot
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.members import MEMBERS_MAX, check_count
from lockstead.protocol.record import decode, encode
from lockstead.reading import EPOCH_MAX, RECORD_BYTES_MAX, clean
from lockstead.settings import Settings
from lockstead.stores import paging
from lockstead.stores import url as urls
from lockstead.stores.bounds import Bounds
from lockstead.stores.cassandra import rows as cassandra
from lockstead.stores.etcd import encoding as etcd
from lockstead.stores.etcd.client import Client
from lockstead.stores.etcd.members import Members
from lockstead.stores.etcd.store import EtcdStore
from lockstead.stores.etcd.url import target_of as etcd_target
from lockstead.stores.gcs import encoding as gcs
from lockstead.stores.http import Answer
from lockstead.stores.kept import map_of_text
from lockstead.stores.memory import MemoryStore
from lockstead.stores.postgres import encoding as postgres
from lockstead.stores.redis import encoding as redis
from lockstead.stores.redis.listing import _begin as redis_begin
from lockstead.stores.redlock import scripts as redlock
from lockstead.stores.sqlite.store import TRAITS
from lockstead.stores.zookeeper import encoding as zookeeper
from lockstead.unclean import Unclean, origin
from lockstead.values import LeaseOutcome, LeaseTicket, Name, PreviousLease, Sequencer, Space
from lockstead.views import audited, listing
from prefect_lockstead import attached, children, places
from prefect_lockstead.spec import LockSpec, place_of

Fields: TypeAlias = "Mapping[str, str]"
Target: TypeAlias = "Callable[[str, Fields], None]"

TERMS: Final = ProtocolContext(TRAITS, Settings())
APT: Final = Name("apt")
ETCD: Final = etcd_target("etcd://h:1/x")
WORDS: Final = (
    *("v", "identity", "ttl", "owner", "acquired_at", "expires_at", "expected", "alert_at", "token", "pid", "closing"),
    *("ended", "revoked", "labels", "lock_delay", "purpose", "progress", "backtrace", "at", "by", "reason", "damage"),
    *("ticket", "key", "holder", "waited", "unclean"),
)
ATOMS: Final = (
    *("", "0", "1", "-1", "\u00b2", "\u0663", "1_0", "nan", "inf", "1e400", "1e300", "1795246030383", "9" * 5000, "\0"),
    *("\ud800", "x" * 100, "[", "[" * 3000, "{}", "[]", "null", '{"by":1,"reason":2}', '{"a":' + "9" * 5000 + "}"),
    *(
        "true",
        "1.0.0",
        "1.x\x1b[2J",
        "2",
        '{"v":"1"}',
        '{"v":"\\ud800"}',
        "y" * (RECORD_BYTES_MAX + 1),
        "\x1b[2J\u202e",
    ),
)

texts: Final = st.one_of(st.sampled_from(ATOMS), st.text(max_size=40))
maps: Final = st.dictionaries(st.one_of(st.sampled_from(WORDS), texts), texts, max_size=8)
SEEDS: Final = [(atom, {"v": "1", "identity": "x/1", "ttl": "60", word: atom}) for atom in ATOMS for word in WORDS[:6]]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def record(text: str, fields: Fields) -> None:
    for foreign in (False, True):
        with suppress(StoreRefused):
            read = decode(APT, {"identity": text, **fields}, foreign=foreign)
            assert clean(read.owner + read.holder) == read.owner + read.holder
            assert all(at is None or 0 <= at <= EPOCH_MAX for at in (read.acquired_at, read.alert_at))
            # our output is read again unchanged; unknown fields are kept
            if not foreign and not read.unknown and sum(map(len, fields.values())) < 1000:
                assert decode(APT, encode(read)) == read


def member(text: str, fields: Fields) -> None:
    shown = listing(Name("apt", Space.MEMBER, text), Snapshot(fields, text, text, 1.0, 2.0, 1), TERMS)
    assert shown is None or clean(shown.owner) == shown.owner


def members(text: str, fields: Fields) -> None:
    entries = [(Name(text, Space.MEMBER, part), Snapshot({part: said}, part, said)) for part, said in fields.items()]
    for times in (1, MEMBERS_MAX):
        read = Listing(tuple(entries * times))
        try:
            check_count(Name(text), read)
        except StoreRefused as refused:
            said = str(refused)
        else:
            said = ""
        assert bool(said) is (len(read.entries) > MEMBERS_MAX)
        assert "\n" not in said


def listed(text: str, fields: Fields) -> None:
    shown = listing(Name(text), Snapshot(fields, "1", "1", 1.0, 2.0, 1), TERMS)
    assert shown is None or (
        clean(shown.key) == shown.key and (shown.acquired_at is None or shown.acquired_at.year > 0)
    )


def audit(text: str, fields: Fields) -> None:
    entry = audited(Name(text, Space.AUDIT, text), Snapshot(fields, "1", "1"))
    assert entry.at is None or entry.at.year < 10_000
    assert clean(entry.reason + entry.by) == entry.reason + entry.by


def unclean(text: str, fields: Fields) -> None:
    last = Unclean("apt", "me", LeaseOutcome.REVOKED)
    said = [*fields.values(), text, str(Unclean("apt", clean(text), LeaseOutcome.EXPIRED))]
    for reason in said:
        entry = audited(APT, Snapshot({"holder": "me/1", "by": "me/1", "reason": reason}, "1", "1"))
        found = origin(last, PreviousLease(LeaseOutcome.REVOKED, "me", "me/1"), [entry])
        assert found == last or str(found) == entry.reason


def ticket(text: str, fields: Fields) -> None:
    packed = base64.urlsafe_b64encode(_bytes(json.dumps([text, *fields.values(), 60]))).decode().rstrip("=")
    for one in (text, f"lockstead1.{text}", f"lockstead1.{packed}"):
        with suppress(ValueError):
            read = LeaseTicket.parse(one)
            assert LeaseTicket.parse(str(read)) == read


def sequencer(text: str, fields: Fields) -> None:
    for one in (text, f"7:exclusive:{text}", f"7:{text}:apt", f"{text}:exclusive:apt", *fields):
        with suppress(ValueError):
            read = Sequencer.parse(one)
            assert Sequencer.parse(str(read)) == read


def url(text: str, fields: Fields) -> None:
    behind = "&".join(f"{name}={value}" for name, value in fields.items())
    for begin in (
        "sqlite:///x#",
        "redis://h/0?",
        "etcd://h/x?",
        "gs://b/p#",
        "zk://",
        "cassandra://h/k#",
        "postgresql:",
        "",
    ):
        for one in (begin + text, f"{begin}{text}?{behind}", f"{begin}{behind}#{text}"):
            with suppress(ValueError, TypeError):
                urls.parse_lock(one)


def cursor(text: str, fields: Fields) -> None:
    memory = MemoryStore()
    memory.perform(Create(APT, {}), 1.0)
    bucket = gcs.BucketPath.at("bucket", "locks")
    for said in (text, json.dumps([*fields]), *(json.dumps(["lock", None, "", *[text] * count]) for count in range(5))):
        asked = List(Space.LOCK, page=1, cursor=said)
        for read in (
            lambda asked: memory.perform(asked, 1.0),
            lambda asked: next(gcs.exchange(asked, bucket)),
            lambda asked: etcd.first_key(asked, "x/lock/", "x/lock0"),
            lambda asked: redis_begin(asked, [("h", 1)], text),
            lambda asked: paging.place(asked, 2),
            lambda asked: "".join(paging.text_place(asked, 2) or ()).encode(),
        ):
            with suppress(StoreRefused):
                read(asked)


def kept(text: str, fields: Fields) -> None:
    for written in (text, _bytes(text), json.dumps(dict(fields))):
        read = map_of_text(written)
        "".join([*read, *read.values()]).encode()  # no half characters, which no store takes back
    plain = {clean(name): clean(value) for name, value in fields.items()}
    if sum(map(len, json.dumps(plain))) < RECORD_BYTES_MAX:
        assert map_of_text(json.dumps(plain)) == plain


def on_redis(text: str, fields: Fields) -> None:
    body = _bytes(" ".join(fields) + "\n" + text)
    for command in (Read(APT), Remove(APT, "1"), Extend(APT, {}, None), Create(APT, {})):
        for word in (
            b"ok ",
            b"absent 1",
            b"conflict 1",
            b"foreign 1 damaged-1 1",
            b"spent 1",
            b"",
            b"ok 1 ab 1 1 1 1\n",
        ):
            # after the header anything may follow; and a server may send anything
            for said in (word, word + body, word + b" ".join(_bytes(one) for one in (text, *fields.values()))):
                with suppress(StoreError):
                    redis.answer(command, said)
    redis.Keys().name(_bytes(text))


class _EtcdThatSays(Client):
    """A client whose server answers three requests with one and the same body, and no more."""

    def __init__(self, body: bytes) -> None:
        super().__init__(Members(ETCD, None, "etcd://h:1/x"))
        self._answers = iter([etcd.Response(200, body, 1.0, "h:1")] * 3)

    def exchange(self, bounds: Bounds, request: etcd.Request, only: str | None = None) -> etcd.Response:
        for answer in self._answers:
            return answer
        raise StoreUnavailable("it answers no more")


def on_etcd(text: str, fields: Fields) -> None:
    item: dict[str, Any] = {"create_revision": "1", "mod_revision": "1"}
    for value in (text, json.dumps({"fields": dict(fields), "min_retention": text}), json.dumps({"fields": [text]})):
        item |= {"key": etcd.b64("x/lock/apt:a"), "value": base64.b64encode(_bytes(value)).decode()}
        assert isinstance(etcd.kv_of(item).snapshot(), Snapshot)
    for space in Space:
        etcd.Root.at("x").name_of(f"x/{space.value}/{text}", space)
    # a server may send anything instead of numbers, or omit requested fields
    number = fields.get("v", text)
    for said in (
        {"header": {"revision": number}, "kvs": [{**item, "create_revision": number}], "count": number},
        {"succeeded": True, "responses": [{"response_range": {"kvs": [{"key": number}]}}], "header": number},
        {"responses": number, "ID": number, "TTL": number, "error": number},
        {"result": {"ID": number, "TTL": number, "header": {"raft_term": number}}},
        [number],
        number,
    ):
        body = _bytes(json.dumps(said))
        for command in (
            Read(APT),
            Create(APT, {}, 60.0, "", 60.0),
            Remove(APT, "7"),
            Extend(APT, {}, "7"),
            List(Space.LOCK),
        ):
            with suppress(StoreError):
                store = EtcdStore(ETCD, "etcd://h:1/x")
                store._driver = _EtcdThatSays(body)
                store.perform(command, 1.0)


def on_redlock(text: str, fields: Fields) -> None:
    flat = [_bytes(said) for name, value in fields.items() for said in (f".{name}", value)]
    head = [b"i", b"ab", b"n", b"1", b"x", b"0", b"s", b"1"]
    # the header comes from our own script, the rest from other programs
    one = redlock.seen([1, [*head, *flat]])
    assert (one.incarnation, one.count) == ("ab", 1)
    "".join([*one.fields(), *one.fields().values()]).encode()
    assert sum(map(len, one.fields().values())) <= RECORD_BYTES_MAX
    for inner, seen in redlock.listed([[[_bytes(text), [*head, *flat]], [_bytes(text), []]], b""]).found.items():
        redlock.outer_name(Space.MEMBER, inner)
        seen.fields()
    # and a server may say anything
    for said in (
        _bytes(text),
        [1, flat],
        [0, [b"i", _bytes(text), b"n", _bytes(text), b"x", b"0"]],
        [flat],
        [[[_bytes(text), flat]], _bytes(text)],
        flat,
        text,
        1,
    ):
        for read in (redlock.seen, redlock.listed):
            with suppress(ValueError):
                read(said)
    key, place = Name(text, Space.MEMBER, "a/b"), _bytes(redlock.inner_name(Name(text, Space.MEMBER, "a/b")))
    if clean(text) == text:
        assert redlock.outer_name(Space.MEMBER, place) == key


def on_cassandra(text: str, fields: Fields) -> None:
    drawn = UUID(int=7)
    for map_of in (dict(fields), None, text, {text: None}, {1: 2}):
        for granted in (1, -1, 2**70, text, None, float("nan")):
            row = {"held": True, "granted": granted, "incarnation": drawn, "revision": drawn, "fields": map_of}
            for one in (row, {**row, "held": None}, {**row, "held": text}, {**row, "incarnation": text}, {}):
                read = cassandra.Row.of(one)
                seen = read.snapshot(Space.LOCK)
                assert sum(map(len, seen.fields.values())) <= RECORD_BYTES_MAX
                said = cassandra.expected(seen.incarnation)
                # who removes it names the very row
                assert said is not None
                assert (said.held, said.incarnation) == (read.held, read.incarnation) or read.held is False
    cassandra.expected(text)
    cassandra.expected_revision(text)


def on_gcs(text: str, fields: Fields) -> None:
    place = gcs.BucketPath("b", "p")
    for space in Space:
        for begin in ("p/", "p/.lockstead/member/", ""):
            place.name_of(begin + text, space)
    resource = {
        "metageneration": "1",
        "generation": "1",
        "updated": text,
        "timeCreated": text,
        "metadata": dict(fields),
    }
    for body in (_bytes(text), _bytes(json.dumps(resource))):
        for status in (200, 404, 403, 500):
            with suppress(StoreError):
                gcs.answer_to(Read(APT), Answer(status, {b"date": _bytes(text)}, body), place)


def on_zookeeper(text: str, fields: Fields) -> None:
    for data in (
        text,
        json.dumps({"incarnation": "0" * 32, "fields": dict(fields)}),
        json.dumps({"incarnation": text}),
    ):
        zookeeper.decode_record(_bytes(data))
    for space in Space:
        zookeeper.decode_name(space, text)
    assert set(zookeeper.in_order([text, *fields])) <= {text, *fields}


def on_postgres(text: str, fields: Fields) -> None:
    for said in (None, text, json.dumps(dict(fields))):
        assert isinstance(postgres.snapshot(["1", "1", "1", "1", said]), Snapshot)
        assert isinstance(postgres.snapshot(["1", "1", None, None, said]), Snapshot)
        for row in ([text, text, text, text, said], [text, text, None, None, said]):
            with suppress(StoreError):
                postgres.snapshot(row)
            with suppress(StoreError):
                postgres.snapshot(row, {})


def handed_over(text: str, fields: Fields) -> None:
    for said in (dict(fields), {**fields, "ticket": text, "token": text, "key": text, "holder": text}):
        for number in (text, float("inf"), None, []):
            with suppress(ValueError):
                Grant.read({**said, "token": number})


def prefect_template(text: str, fields: Fields) -> None:
    for value in (text, f"{text}%41?ttl=7#"):
        for template in ("memory:x#apt-{value}", text, f"memory:x#{text}{{value}}"):
            with suppress(ValueError, TypeError):
                spec = LockSpec(lock=template, purpose=text or None).named({**fields, "value": value})
                place_of(str(spec.lock))
                # any value is only a part of the key
                if template.endswith("apt-{value}"):
                    assert urls.parse_lock(str(spec.lock)).key == f"apt-{value}"


def prefect_block(text: str, fields: Fields) -> None:
    behind = "&".join(f"{name}={value}" for name, value in fields.items())
    for begin in ("redis://u:p@h/0", "postgresql://h/x?password=", "gs://b/p", "sqlite:///x", ""):
        for url in (begin + text, f"{begin}{text}?{behind}", f"{begin}?{behind}#{text}"):
            for check in (places.check_lock, places.check_store):
                with suppress(ValueError, TypeError):
                    check(url)
                    # saved in a form that everyone may see
                    assert not urls.has_password(url)


def prefect_ticket(text: str, fields: Fields) -> None:
    for key in (clean(text), *map(clean, fields)):
        forged = LeaseTicket("redis://elsewhere/0", key, "o/1", "1", 60.0)
        for said in (text, str(forged), f"lockstead1.{text}"):
            children._brings_ticket([said, fields])
            with suppress(ValueError):
                brought = attached(said, store="memory:ours")
                place = brought._known(brought._named())
                assert place is not None
                assert place.url.startswith("memory:ours#"), "the store of a ticket"


TARGETS: Final[dict[str, Target]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(record, member, members, listed, audit, unclean, ticket, sequencer, url, cursor, kept, handed_over),
        *(prefect_template, prefect_block, prefect_ticket),
        *(on_redis, on_redlock, on_cassandra, on_etcd, on_gcs, on_zookeeper, on_postgres),
    )
}
