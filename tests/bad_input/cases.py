"""Every kind of bad input, its error message, and the exit code of the shell command.

says is the message as in docs/errors.md: "…" stands for what differs from case to case.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from gcs_emulator import GcsServer
from lockstead import OutcomeUnknown, StoreRefused, StoreUnavailable
from tests.bad_input.world import World

USAGE, STORE = 64, 69


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of bad input: the URL of a lock, in a world that was prepared for it."""

    name: str
    kind: type[Exception]
    says: str
    url: Callable[[World], str]
    code: int | None = USAGE
    """What `lockstead run` ends with; None where it has another word for it."""


def plain(url: str) -> Callable[[World], str]:
    return lambda _world: url


def of_file(behind: str) -> Callable[[World], str]:
    """A lock in a file, with a key and settings that cannot be."""
    return lambda world: world.file() + behind


# --- naming ------------------------------------------------------------------------------------------------------

BUCKET = "not the URL of a bucket; write 'gs://bucket/prefix', without credentials"
FILE = "not the URL of a SQLite store; write 'sqlite:///relative.db' or 'sqlite:////absolute.db'"
NO_KEY = "the URL names no key; write the lock's name after '#', as in …"

NAMING = [
    Case("unknown scheme", ValueError, "no store has the scheme …; known: …", plain("nosuch://host/0#apt")),
    Case(
        "no scheme",
        ValueError,
        "not a store URL: it has no scheme, as in 'gs://bucket/prefix#key' or 'sqlite:///locks.db'",
        plain("locks.db#apt"),
    ),
    Case("no key", ValueError, NO_KEY, plain("sqlite:////tmp/locks.db")),
    Case("empty key", ValueError, NO_KEY, plain("sqlite:////tmp/locks.db#")),
    Case("no bucket", ValueError, BUCKET, plain("gs:///apt")),
    Case("credentials in a bucket's URL", ValueError, BUCKET, plain("gs://me:s3cret@b/locks/apt")),
    Case("odd bucket", ValueError, "… is not a valid bucket name", plain("gs://b!/locks/apt")),
    Case(
        "reserved prefix",
        ValueError,
        "the prefix … is inside the reserved names of another store; choose another",
        plain("gs://b/.lockstead/member#apt"),
    ),
    Case(
        "long prefix",
        ValueError,
        "the prefix must be printable and at most 200 bytes",
        plain("gs://b/" + "p" * 201 + "#apt"),
    ),
    Case("no file", ValueError, FILE, plain("sqlite:#apt")),
    Case("credentials in a file's URL", ValueError, FILE, plain("sqlite://me:s3cret@host/locks.db#apt")),
    Case(
        "SQLite's own memory",
        ValueError,
        "SQLite's ':memory:' is seen by one connection only; use the store 'memory:'",
        plain("sqlite:///:memory:#apt"),
    ),
    Case(
        "credentials in a memory's URL",
        ValueError,
        "not the URL of a memory store; write 'memory:', or 'memory:name' with letters, digits, '.', '_', '-'",
        plain("memory://me:s3cret@host#apt"),
        code=None,
    ),
    Case(
        "control character in the key",
        ValueError,
        "the key … has control or unprintable characters; leave them out",
        of_file("#a%00b"),
    ),
    Case(
        "key in another spelling",
        ValueError,
        "the key … is not in Unicode's form NFC; pass unicodedata.normalize('NFC', key)",
        of_file("#u%CC%88"),
    ),
    Case(
        "key too long",
        ValueError,
        "the key … is longer than 512 bytes; use a shorter one, or a digest",
        of_file("#" + "k" * 513),
    ),
    Case("key not UTF-8", ValueError, "the key in the URL is not UTF-8 once percent-decoded", of_file("#%ff")),
    Case(
        "settings without values",
        ValueError,
        "the settings of a URL are written ?name=value&name=value, percent-encoded",
        of_file("?ttl#apt"),
    ),
    Case("a setting twice", ValueError, "the URL gives the setting … twice", of_file("?ttl=60&ttl=70#apt")),
    Case(
        "mistyped setting",
        ValueError,
        "unknown setting … in the URL, did you mean …?",
        of_file("?renew_evry=5#apt"),
    ),
    Case(
        "unknown setting",
        ValueError,
        "unknown setting … in the URL; known are …",
        of_file("?password=s3cret#apt"),
    ),
    Case(
        "an argument of the call",
        ValueError,
        "… is not a setting of a lock: give it to …",
        of_file("#apt?timeout=5"),
    ),
]

# --- settings ----------------------------------------------------------------------------------------------------


def relation(name: str, settings: str, says: str, kind: type[Exception] = ValueError) -> Case:
    return Case(name, kind, says, of_file(f"?{settings}#apt"))


ROUNDS = (
    "ttl is … s, too short: (1 + max_failures) * renew_every + abort_margin is … s, above ttl * (1 - drift) = … s; "
    "renew more often, tolerate fewer failures, or use a longer ttl or a smaller abort_margin"
)
BACKOFF = "backoff_min is … s and backoff_max … s; needed is 0 < backoff_min <= backoff_max"
LIMIT = "request_timeout is … s; it must be above 0 and below renew_every (… s)"

SETTINGS = [
    relation("ttl below a second", "ttl=0.5", "ttl is … s; it must be at least 1 s"),
    relation("no failures", "max_failures=0", "max_failures is …; it must be at least 1"),
    relation("drift", "drift=0.5", "drift is …; it must be at least 0 and below 0.5"),
    relation("renewals without a pause", "renew_every=0", "renew_every must be above 0"),
    relation("renewals too rare", "renew_every=100", ROUNDS),
    relation("too many failures", "max_failures=9", ROUNDS),
    relation("abort margin too long", "abort_margin=200", ROUNDS),
    relation("request as long as the renewals", "request_timeout=40", LIMIT),
    relation("no time for a request", "request_timeout=0", LIMIT),
    relation("back-off the wrong way round", "backoff_min=9", BACKOFF),
    relation("back-off of nothing", "backoff_min=0", BACKOFF),
    relation("long lock-delay", "lock_delay=61", "lock_delay is … s; it may be at most 60 s"),
    relation("short assumption", "foreign_ttl=0.1", "foreign_ttl is … s; it must be at least 1 s"),
    relation("no duration", "ttl=soon", "… is not a duration; write seconds, '5m', '1h30m' or ISO 8601 ('PT5M')"),
    relation("negative duration", "ttl=-3", "… must be a finite, non-negative duration, not …"),
    relation("endless duration", "ttl=inf", "… must be a finite, non-negative duration, not …"),
    relation("age-long duration", "ttl=1e10", "… must be at most 100 years, not …"),
    relation("no number", "drift=much", "… must be a number, not …"),
    relation("no whole number", "max_failures=1.5", "… must be a whole number, not …"),
    relation("neither true nor false", "backtrace=maybe", "… must be true or false, not …"),
    relation("blank text", "owner=%20", "… must be printable text, not …"),
    relation("text with a line break", "purpose=a%0ab", "… must be printable text, not …"),
    relation("labels that are not JSON", "labels=a", "labels must be a JSON object, not …"),
    relation("labels of numbers", 'labels=%7B"a":1%7D', "labels must map text to text", TypeError),
]

# --- the bucket, and the way to it ---------------------------------------------------------------------------------


def in_bucket(prepare: Callable[[World, GcsServer], object], **fields: object) -> Callable[[World], str]:
    def url(world: World) -> str:
        prepare(world, world.bucket(**fields))
        return f"{world.gs}#apt"

    return url


def expired(world: World, _: GcsServer) -> None:
    """Leave a record that has expired long ago and must be overwritten."""
    world.record(world.gs, {"identity": "ruby/1", "expires_at": "1000000000"})


def missing_bucket(world: World) -> str:
    world.bucket()
    return f"gs://nosuch-{world.slug.lower()}/locks#apt"


def stopped(world: World) -> str:
    server = world.bucket()
    server.pause("refuse")
    return f"{world.gs}#apt"


def variable(name: str, value: str) -> Callable[[World], str]:
    def url(world: World) -> str:
        world.patch.setenv(name, value)
        return f"{world.gs}#apt"

    return url


def missing(module: str) -> Callable[[World], str]:
    def url(world: World) -> str:
        world.without(module)
        return f"{world.gs}#apt"

    return url


def credentials_file(text: str | None) -> Callable[[World], str]:
    def url(world: World) -> str:
        path = world.folder / "s3cret.json"
        if text is not None:
            path.write_text(text)
        world.patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        return f"{world.gs}#apt"

    return url


def failing(status: int) -> Callable[[World, GcsServer], object]:
    return lambda _world, server: server.faults.inject("fail", kind="*", status=status, times=None)


ADDRESS = "STORAGE_EMULATOR_HOST is not an address; write 'http://127.0.0.1:PORT', or unset it"
EXTRA = "the Cloud Storage store needs its client libraries: pip install 'lockstead[gcs]'"
KEPT = "Replace is forbidden in …: …; locks are deleted and rewritten: use a bucket without retention policy and holds"
FILE_OF_CREDENTIALS = (
    "the file in GOOGLE_APPLICATION_CREDENTIALS does not exist or contains no credentials (…); correct the "
    "variable, or unset it to use those of this machine"
)

BUCKETS = [
    Case("httpcore is missing", StoreRefused, EXTRA, missing("httpcore"), STORE),
    Case("google-auth is missing", StoreRefused, EXTRA, missing("google.auth"), STORE),
    Case(
        "bucket is missing",
        StoreRefused,
        "the bucket … does not exist; create it, or correct the URL",
        missing_bucket,
        STORE,
    ),
    Case(
        "no permission",
        StoreRefused,
        "Create is forbidden in …: …; grant this account the role 'Storage Object User' on the bucket",
        in_bucket(failing(403)),
        STORE,
    ),
    Case(
        "not signed in",
        StoreRefused,
        "not signed in to …; set up application default credentials",
        in_bucket(failing(401)),
        STORE,
    ),
    Case("retention policy", StoreRefused, KEPT, in_bucket(expired, retentionPolicy={"retentionPeriod": "60"}), STORE),
    Case("hold on every object", StoreRefused, KEPT, in_bucket(expired, defaultEventBasedHold=True), STORE),
    Case(
        "no such service",
        StoreRefused,
        "… refused … with …; check the endpoint and the URL",
        in_bucket(failing(405)),
        STORE,
    ),
    Case("service out of order", OutcomeUnknown, "… answered … with …", in_bucket(failing(503)), STORE),
    Case(
        "service out of reach",
        StoreUnavailable,
        "cannot connect to Cloud Storage for …",
        stopped,
        STORE,
    ),
    Case("emulator is not an address", StoreRefused, ADDRESS, variable("STORAGE_EMULATOR_HOST", "http://"), STORE),
    Case("emulator is a sentence", StoreRefused, ADDRESS, variable("STORAGE_EMULATOR_HOST", "not set yet"), STORE),
    Case("emulator of another kind", StoreRefused, ADDRESS, variable("STORAGE_EMULATOR_HOST", "ftp://host"), STORE),
    Case("emulator without a port", StoreRefused, ADDRESS, variable("STORAGE_EMULATOR_HOST", "host:port"), STORE),
    Case("emulator at half an address", StoreRefused, ADDRESS, variable("STORAGE_EMULATOR_HOST", "http://[::1"), STORE),
    Case(
        "emulator with credentials",
        StoreRefused,
        "STORAGE_EMULATOR_HOST has credentials in it; an emulator needs none, leave them out",
        variable("STORAGE_EMULATOR_HOST", "http://me:s3cret@127.0.0.1:9"),
        STORE,
    ),
    Case(
        "no credentials",
        StoreRefused,
        "no Google credentials found: run 'gcloud auth application-default login', or set "
        "GOOGLE_APPLICATION_CREDENTIALS, or pass client=storage.Client(...)",
        lambda world: f"{world.gs}#apt",
        STORE,
    ),
    Case("credentials are not there", StoreRefused, FILE_OF_CREDENTIALS, credentials_file(None), STORE),
    Case("credentials are not JSON", StoreRefused, FILE_OF_CREDENTIALS, credentials_file("s3cret"), STORE),
    Case("credentials of no kind", StoreRefused, FILE_OF_CREDENTIALS, credentials_file('{"type": "s3cret"}'), STORE),
]

# --- the file ------------------------------------------------------------------------------------------------------


def nowhere(world: World) -> str:
    return f"sqlite:///{quote(str(world.folder))}/absent/locks.db#apt"


def unwritable(_: World) -> str:
    # nobody can make a file there, not even who may do everything
    return "sqlite:////proc/locks.db#apt"


def folder(world: World) -> str:
    world.path.mkdir()
    return f"{world.sqlite}#apt"


def two_names(world: World) -> str:
    world.file()
    os.link(world.path, world.folder / "second.db")
    return f"{world.sqlite}#apt"


def no_database(world: World) -> str:
    world.path.write_bytes(b"a letter, and no database at all: " * 100)
    return f"{world.sqlite}#apt"


def changed(world: World, *statements: str) -> None:
    connection = sqlite3.connect(world.path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def foreign_database(world: World) -> str:
    changed(world, "CREATE TABLE letters (text TEXT)")
    return f"{world.sqlite}#apt"


def newer_file(world: World) -> str:
    world.file()
    changed(world, "PRAGMA user_version = 99")
    return f"{world.sqlite}#apt"


HERE = "cannot keep locks in …: "

FILES = [
    Case("folder is missing", StoreRefused, HERE + "there is no folder …; create it", nowhere, STORE),
    Case(
        "file cannot be written",
        StoreRefused,
        HERE + "…; this process must be able to write the file and its folder",
        unwritable,
        STORE,
    ),
    Case("a folder", StoreRefused, HERE + "it is not a file", folder, STORE),
    Case("two names", StoreRefused, HERE + "the file has … hard links; leave one", two_names, STORE),
    Case("no database", StoreRefused, HERE + "it is not a database; name another file", no_database, STORE),
    Case(
        "another program's database",
        StoreRefused,
        HERE + "it is a database of another program; name another file",
        foreign_database,
        STORE,
    ),
    Case(
        "newer file",
        StoreRefused,
        "the locks in … are of version …, newer than this one reads (…); upgrade lockstead",
        newer_file,
        STORE,
    ),
]

# --- the record ----------------------------------------------------------------------------------------------------

DAMAGED = "the record of … is damaged: …; break it with now=True (--now)"

RECORDS: list[tuple[str, str, dict[str, str]]] = [
    ("damaged record", DAMAGED, {"v": "1", "identity": "x/1", "ttl": "soon"}),
    ("record without a ttl", DAMAGED, {"v": "1", "identity": "x/1"}),
    ("record of nobody", DAMAGED, {"v": "1", "ttl": "60"}),
    (
        "record of a newer version",
        "the record of … has version …, this lockstead reads …: upgrade this process",
        {"v": "2", "identity": "x/1", "ttl": "60"},
    ),
    (
        "record of no version that there is",
        "the record of … is damaged or not ours: v is …; remove it by hand, or take another key",
        {"v": "x", "identity": "x/1", "ttl": "60"},
    ),
]
NOT_OURS = ("record that is not ours", "the record of … was not written by lockstead; move it, or use another key")


def with_record(fields: dict[str, str], where: str) -> Callable[[World], str]:
    def url(world: World) -> str:
        if where == "gs":
            world.bucket()
        else:
            world.file()
        store = world.gs if where == "gs" else world.sqlite
        world.record(store, fields)
        return f"{store}#apt"

    return url


def unreadable_row(world: World) -> str:
    url = with_record({"v": "1", "identity": "x/1", "ttl": "60"}, "sqlite")(world)
    changed(world, "UPDATE record SET fields = '{' WHERE key = 'apt'")
    return url


HELD = [
    Case(f"{name}, {where}", StoreRefused, says, with_record(fields, where), STORE)
    for name, says, fields in RECORDS
    for where in ("gs", "sqlite")
] + [
    Case(NOT_OURS[0], StoreRefused, NOT_OURS[1], with_record({"owner": "somebody"}, "sqlite"), STORE),
    Case("row that cannot be read", StoreRefused, DAMAGED, unreadable_row, STORE),
]

CASES = [*NAMING, *SETTINGS, *BUCKETS, *FILES, *HELD]

__all__ = ["CASES", "RECORDS", "Case", "changed", "partial", "with_record"]
