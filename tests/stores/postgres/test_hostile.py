"""What others put into the database of locks runs with no other user's rights, and uses no one's memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

import lockstead
from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Absent, Create, Extend, List, Listing, Read, Remove, Removed, Replace, Snapshot
from lockstead.stores import url
from lockstead.stores.examination import Severity
from lockstead.stores.port import Store
from lockstead.stores.postgres.store import PostgresStore
from lockstead.values import Name, Space
from tests.servers.postgres import PostgresServer

APT = Name("apt")
LIMIT = 30.0
NUMBERS = count()

TRAPS = [
    # each fits what we once wrote better than the function or operator of PostgreSQL itself, and so was taken
    ("FUNCTION", "array_to_string(int4[], text)", "text", "pg_catalog.array_to_string($1, $2)"),
    ("FUNCTION", "date_part(text, timestamptz)", "float8", "pg_catalog.date_part($1, $2)"),
    ("FUNCTION", "pg_notify(text, text)", "void", "pg_catalog.pg_notify($1, $2)"),
    ("FUNCTION", "greatest(timestamptz, timestamptz)", "timestamptz", "$1"),
    ("OPERATOR", "* (float8, int4)", "float8", "$1 OPERATOR(pg_catalog.*) $2::float8"),
    ("OPERATOR", "|| (int4, int4[])", "int4[]", "ARRAY[$1] OPERATOR(pg_catalog.||) $2"),
    ("OPERATOR", "|| (varchar, text)", "text", "$1::text OPERATOR(pg_catalog.||) $2"),
    ("OPERATOR", "+ (int8, int4)", "int8", "$1 OPERATOR(pg_catalog.+) $2"),
    ("OPERATOR", "= (text, varchar)", "bool", "$1 OPERATOR(pg_catalog.=) $2::text"),
    ("OPERATOR", "= (name, text)", "bool", "$1::text OPERATOR(pg_catalog.=) $2"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    server.tell(
        "CREATE ROLE evil LOGIN",
        "CREATE ROLE victim LOGIN",
        "GRANT CREATE ON SCHEMA public TO evil",
        "CREATE TABLE public.proof (what text)",
        "GRANT ALL ON public.proof TO PUBLIC",
    )
    with server.asked(user="evil") as connection:
        for number, (kind, signature, gives, body) in enumerate(TRAPS):
            name, _, types = signature.partition("(")
            called = name if kind == "FUNCTION" else f"trap{number}"
            work = f"BEGIN INSERT INTO public.proof VALUES ('{signature}'); RETURN {body}; END"
            if gives == "void":
                work = f"BEGIN INSERT INTO public.proof VALUES ('{signature}'); PERFORM {body}; END"
            quoted = f'public."{called.strip()}"'
            connection.execute(f"CREATE FUNCTION {quoted}({types} RETURNS {gives} LANGUAGE plpgsql AS $$ {work} $$")
            if kind == "OPERATOR":
                left, right = types.rstrip(")").split(", ")
                operands = f"leftarg = {left}, rightarg = {right}, procedure = {quoted}"
                connection.execute(f"CREATE OPERATOR public.{name.strip()} ({operands})")
    yield server
    server.remove()


@pytest.fixture
def schema(server: PostgresServer) -> str:
    name = f"hostile{next(NUMBERS)}"
    server.tell(f"CREATE SCHEMA {name} AUTHORIZATION victim")
    return name


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    store = url.open_store(f"{server.url(user='victim')}?schema={schema}")
    assert isinstance(store, PostgresStore)
    yield store
    store.close()


def test_the_traps_would_run_what_they_hold(server: PostgresServer) -> None:
    server.tell("SELECT array_to_string(ARRAY[1], ',')", "SELECT 1.5::float8 * 2")
    assert len(server.tell("SELECT DISTINCT what FROM public.proof")) == 2
    server.tell("DELETE FROM public.proof")


def test_objects_in_public_run_nothing_as_the_locking_role(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    with closing(url.open_store(f"{server.url(user='victim')}?schema={schema}")) as other:
        everything(store, other)
    for _finding in store.examine(lambda part: Name("x", Space.LOCK, part), LIMIT):
        pass
    assert server.tell("SELECT DISTINCT what FROM public.proof") == []


def everything(store: PostgresStore, other: Store) -> None:
    """Send every statement there is, and wake a waiter."""
    first = store.perform(Create(APT, {"v": "1"}), LIMIT)
    assert isinstance(first, Snapshot)
    assert isinstance(other, PostgresStore)
    heard = threading.Event()
    subscription = other.subscribe(APT, lambda is_free: heard.set() if is_free else None)
    name = Name("apt", Space.MEMBER, "1/x")
    member = store.perform(Create(name, {"v": "1"}), LIMIT)
    assert isinstance(member, Snapshot)
    both = [Extend(APT, {"a": "1"}, first.incarnation), Extend(name, {"a": "1"}, member.incarnation)]
    assert all(isinstance(one, Snapshot) for one in store.perform_many(both, LIMIT))
    assert all(isinstance(one, Snapshot) for one in store.perform_many([Read(APT), Read(name)], LIMIT))
    assert isinstance(store.perform(List(Space.MEMBER, "apt", "1/"), LIMIT), Listing)
    store.perform(Remove(name, member.incarnation), LIMIT)
    now = store.perform(Read(APT), LIMIT)
    assert isinstance(now, Snapshot)
    again = store.perform(Replace(APT, {"v": "1"}, now.incarnation, now.revision), LIMIT)
    assert isinstance(again, Snapshot)
    # until who waits was told: by the function, whose own search path is the point
    for _ in range(100):
        changed = store.perform(Extend(APT, {"b": "1"}, again.incarnation), LIMIT)
        assert isinstance(changed, Snapshot)
        if heard.wait(0.1):
            break
    assert heard.is_set()
    subscription.close()
    store.perform(Remove(APT, again.incarnation), LIMIT)
    assert isinstance(store.perform(Create(APT, {}), LIMIT), Snapshot)


@pytest.mark.parametrize(
    "added",
    [
        "CREATE TRIGGER spy BEFORE INSERT OR UPDATE ON {0}.record FOR EACH ROW EXECUTE FUNCTION {0}.spy()",
        "CREATE RULE spy AS ON UPDATE TO {0}.meta DO ALSO NOTHING",
    ],
)
def test_foreign_triggers_and_rules_are_refused(
    server: PostgresServer, schema: str, store: PostgresStore, added: str
) -> None:
    store.perform(Read(APT), LIMIT)
    server.tell(
        f"CREATE FUNCTION {schema}.spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
        added.format(schema),
    )
    with closing(url.open_store(f"{server.url(user='victim')}?schema={schema}")) as fresh:
        with pytest.raises(StoreRefused, match="have triggers or rules that were added") as refused:
            fresh.perform(Read(APT), LIMIT)
        assert "\n" not in str(refused.value)
        server.tell(f"DROP FUNCTION {schema}.spy CASCADE", f"DROP RULE IF EXISTS spy ON {schema}.meta")
        if "TRIGGER" in added:  # a table that once had a rule goes on saying so until it is vacuumed
            assert isinstance(fresh.perform(Read(APT), LIMIT), Absent)


def test_the_function_of_version_3_gets_a_search_path_of_its_own(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    store.perform(Read(APT), LIMIT)
    server.tell(
        f"ALTER FUNCTION {schema}.tell(text, text, int, int[]) RESET search_path",
        f"UPDATE {schema}.meta SET version = 3",
    )
    with closing(url.open_store(f"{server.url(user='victim')}?schema={schema}")) as newer:
        newer.perform(Read(APT), LIMIT)
    (found,) = server.tell(
        f"SELECT proconfig FROM pg_proc WHERE proname = 'tell' AND pronamespace = '{schema}'::regnamespace"
    )
    assert found == (["search_path=pg_catalog, pg_temp"],)


def test_the_doctor_says_who_else_may_put_code_where_locks_are(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    def owners() -> Severity:
        found = {one.check: one for one in store.examine(lambda part: Name("x", Space.LOCK, part), LIMIT)}
        return found["schema.owners"].severity

    store.perform(Read(APT), LIMIT)
    assert owners() is Severity.OK
    server.tell(f"GRANT CREATE ON SCHEMA {schema} TO PUBLIC")
    assert owners() is Severity.WARNING
    server.tell(f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC", f"GRANT CREATE ON SCHEMA {schema} TO evil")
    assert owners() is Severity.OK
    server.tell(f"ALTER FUNCTION {schema}.tell OWNER TO evil")
    assert owners() is Severity.WARNING


def test_huge_records_and_invalid_times_hide_no_other_record(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    times = {"odd": "infinity", "late": "294276-01-01", "early": "4713-01-01 BC"}
    for key in ("apt", "pressed", *times, "good"):
        assert isinstance(store.perform(Create(Name(key), {"v": "1"}), LIMIT), Snapshot)
    random = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100000) AS n)"
    server.tell(
        f"UPDATE {schema}.record SET fields = jsonb_build_object('v', '1', 'x', {random}) WHERE key = 'apt'",
        # which a server keeps in 60 kB
        f"UPDATE {schema}.record SET fields = jsonb_build_object('v', '1', 'x', repeat('x', 5000000)) "
        "WHERE key = 'pressed'",
        *(f"UPDATE {schema}.record SET updated = '{set_to}' WHERE key = '{key}'" for key, set_to in times.items()),
    )
    for giant in (APT, Name("pressed")):
        connection = store._driver.pool.take(store.url, 10**9)
        (row,) = connection.ask(store._statements.read, ("lock", giant.key, ""), LIMIT)
        assert row[-1] is None
        store._driver.pool.give_back(store.url, connection)
        for seen in (store.perform(Read(giant), LIMIT), store.perform(Extend(giant, {}, None), LIMIT)):
            assert isinstance(seen, Snapshot)
            assert "larger" in seen.fields["damage"]
    shown = {name.key: one for name, one in store.perform(List(Space.LOCK), LIMIT).entries}
    assert set(shown) == {"apt", "pressed", *times, "good"}
    for key in times:
        assert shown[key].updated_at is None
        again = store.perform(Extend(Name(key), {}, None), LIMIT)
        assert isinstance(again, Snapshot)
        assert again.updated_at is not None


@pytest.mark.parametrize("number", [2**63 - 1, 2**53 + 1, -5])
@pytest.mark.parametrize("column", ["granted", "revision"])
def test_a_counter_out_of_range_is_unreadable_until_removed(
    server: PostgresServer, schema: str, store: PostgresStore, column: str, number: int
) -> None:
    good = store.perform(Create(Name("good"), {"v": "1"}), LIMIT)
    first = store.perform(Create(APT, {"v": "1"}), LIMIT)
    assert isinstance(good, Snapshot)
    assert isinstance(first, Snapshot)
    server.tell(f"UPDATE {schema}.record SET {column} = {number} WHERE key = 'apt'")
    shown = {name.key: one for name, one in store.perform(List(Space.LOCK), LIMIT).entries}
    assert "out of range" in shown["apt"].fields["damage"]
    assert "damage" not in shown["good"].fields
    renewed, other = store.perform_many(
        [Extend(APT, {}, shown["apt"].incarnation), Extend(Name("good"), {}, good.incarnation)], LIMIT
    )
    assert isinstance(other, Snapshot)
    if column == "revision" and number > 0:
        assert isinstance(renewed, StoreRefused)
        assert "changed by another program" in str(renewed)
    # as who breaks a lock removes what was seen
    removed = store.perform(Remove(APT, shown["apt"].incarnation), LIMIT)
    assert isinstance(removed, Removed)
    again = store.perform(Create(APT, {"v": "1"}), LIMIT)
    assert isinstance(again, Snapshot)
    assert first.token is not None
    assert again.token is not None
    assert first.token < again.token < 2**53
    if column == "granted" and number > 0:  # what is left of a record that was given back
        server.tell(f"UPDATE {schema}.record SET granted = {number}, fields = NULL WHERE key = 'apt'")
        with pytest.raises(StoreRefused, match="changed by another program"):
            store.perform(Create(APT, {"v": "1"}), LIMIT)


def test_h24_records_that_exceed_one_answer_hide_no_lock(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    assert isinstance(store.perform(Create(APT, {"v": "1"}), LIMIT), Snapshot)
    with server.asked() as connection:
        connection.execute(
            f"INSERT INTO {schema}.record SELECT space, 'giant-' || n, part, granted, revision, updated, clock, "
            "pg_catalog.jsonb_build_object('x', pg_catalog.repeat('x', 60000)) "
            f"FROM {schema}.record, pg_catalog.generate_series(1, 700) AS n"
        )
    client = lockstead.Client(store)
    assert len(list(client.scan())) == len(client.list()) == 701
