"""The public surface: what it exports, costs, checks and shows."""

from __future__ import annotations

import ast
import gc
import logging
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import lockstead
from lockstead import FenceGuard, LeaseLost, Lock, Sequencer, Settings, registry
from lockstead.stores import url
from lockstead.stores.memory import MemoryStore
from tests.inventory import STORES, known
from tests.pages import blocks, program, wrapper_of

ROOT = Path(__file__).parents[2]

TYPED = ["README.md", "core/README.md", "docs/getting-started.md", "docs/stores/memory.md"]
"""Pages whose Python people copy into programs that a type checker reads."""


def python(script: str) -> str:
    """Run a script in a fresh interpreter and give what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- what is there, and what it costs -------------------------------------------------------------------------------


def test_everything_that_is_exported_is_there() -> None:
    assert [name for name in lockstead.__all__ if getattr(lockstead, name, None) is None] == []
    assert dir(lockstead) == sorted(lockstead.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Mutex'"):
        _ = lockstead.Mutex


HEAVY = (
    *("pendulum", "httpcore", "sqlite3", "google", "asyncio", "ssl", "socket", "ctypes", "subprocess", "email"),
    *("redis", "psycopg", "kazoo", "cassandra", "json"),
)


def test_importing_lockstead_loads_no_client_library() -> None:
    assert (
        python(f"""
        import sys, lockstead
        print([name for name in {HEAVY} if name in sys.modules])
        """)
        == "[]"
    )


NAMED = {scheme: f"{store.url.format(who='', port=1)}#k" for scheme, store in STORES.items()} | {
    "gs": "gs://b/p/k",
    "sqlite": "sqlite:////nowhere/locks.db#k",
    "memory": "memory:#k",
    "redis": "redis://h:6380/1?prefix=p#k",
    "rediss": "rediss://me:word@h#k",
    "redis+sentinel": "redis+sentinel://h1,h2/service#k",
    "redis+cluster": "redis+cluster://h1,h2#k",
    "redlock": "redlock://h1,h2,h3#k",
    "etcd": "etcd://me:word@h1:2379,h2/p?tls=true#k",
    "postgresql": "postgresql://me@h/db?schema=s#k",
    "postgres": "postgres://me@h/db#k",
    "zk": "zk://h1,h2/p?session=10s#k",
    "cassandra": "cassandra://h1,h2/keyspace#k",
}
"""A lock of each scheme."""


def test_every_scheme_has_a_name_here() -> None:
    assert sorted(url.OURS) == sorted(NAMED)


def test_making_a_lock_of_any_scheme_opens_nothing() -> None:
    assert (
        python(f"""
        import sys, threading, lockstead
        for url in {list(NAMED.values())}:
            lock = lockstead.Lock(url, ttl="5m")
            assert lock.key == "k" and lock.settings.ttl == 300
        stores = [name for name in sys.modules if name.startswith("lockstead.stores.")]
        folders = [name for name in stores if hasattr(sys.modules[name], "__path__")]
        cheap = (".url", ".port", ".servers", ".transport")
        costly = [name for name in stores if name not in folders and not name.endswith(cheap)]
        mine = [name for name in ("lockstead.runtime.engine", "lockstead.protocol.commands") if name in sys.modules]
        print([name for name in {HEAVY} if name in sys.modules] + costly + mine)
        print(threading.active_count())
        """)
        == "[]\n1"
    )


def test_the_awaiting_side_is_imported_when_it_is_named() -> None:
    assert (
        python("""
        import sys, lockstead
        assert "lockstead.aio_lock" not in sys.modules
        from lockstead import AsyncLock
        print("lockstead.aio_lock" in sys.modules, AsyncLock is lockstead.AsyncLock)
        """)
        == "True True"
    )


def test_the_engine_is_imported_outside_the_event_loops_thread() -> None:
    """A program that names its first lock in a coroutine goes on meanwhile."""
    assert (
        python("""
        import asyncio, sys, threading
        import lockstead

        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name in HEAVY:
                    imported[name] = threading.current_thread() is threading.main_thread()

        NAMES = ("acquisition", "aio_batch", "aio_lease", "operations", "runtime.engine", "views")
        HEAVY = [f"lockstead.{name}" for name in NAMES]
        imported = {}
        sys.meta_path.insert(0, Watch())

        async def main():
            async with lockstead.AsyncLock("memory:#apt").hold() as lease:
                assert lease.is_held

        asyncio.run(main())
        print(sorted(imported) == HEAVY, any(imported.values()))
        """)
        == "True False"
    )


def test_the_surface_is_typed(tmp_path: Path) -> None:
    from mypy import api

    script = tmp_path / "uses.py"
    script.write_text(
        textwrap.dedent("""
        import lockstead

        lock = lockstead.Lock("memory:#apt", ttl="5m")

        @lock.hold(timeout=1)
        def work(number: int, *, name: str) -> float:
            return 1.0

        @lockstead.AsyncLock("memory:#apt").hold()
        async def awork(number: int) -> str:
            return ""

        async def use() -> None:
            reveal_type(await awork(1))
            async with lockstead.AsyncLock("memory:#apt").hold() as alease:
                reveal_type(await alease.sequencer())

        reveal_type(work(1, name=""))
        reveal_type(lock.try_acquire())
        with lock.hold() as lease:
            reveal_type(lease.sequencer().token)
        reveal_type(lock.inspect())
        reveal_type(lockstead.current_lease().sequencer().token)
        reveal_type(lockstead.current_lease(lockstead.AsyncLease))
        work("no", name="")
        lockstead.Lock("memory:#apt", ttk=5)
        lockstead.AsyncLock("memory:#apt", ttl=[])
        lockstead.connect("memory:").lock("apt", purpos="x")
        lockstead.connect("memory:").try_many(["apt"], tll=5)
        lock.acquire(blocking=False)
        """)
    )
    pages = [tmp_path / f"page_{number}.py" for number in range(len(TYPED))]
    for page, file in zip(TYPED, pages, strict=True):
        shown = [block for block in blocks(page) if block.tag == "python" and wrapper_of(block) is None]
        file.write_text(program(shown), "utf-8")
    files = [str(file) for file in (script, *pages)]
    told, errors, code = api.run([*files, "--strict", "--no-incremental", "--cache-dir", str(tmp_path / "cache")])
    assert errors == ""
    assert [line for line in told.splitlines() if "page_" in line] == []
    revealed = [line.split('"')[1] for line in told.splitlines() if "Revealed type" in line]
    assert revealed == [
        "str",
        "lockstead.values.Sequencer",
        "float",
        "lockstead.lease.Lease | None",
        "int",
        "lockstead.views.LockInfo | None",
        "int",
        "lockstead.aio_lease.AsyncLease",
    ]
    errors_found = [line.rpartition("[")[2] for line in told.splitlines() if " error: " in line]
    assert errors_found == [
        f"{one}]" for one in ("arg-type", "call-arg", "arg-type", "call-arg", "call-arg", "arg-type")
    ]
    assert code == 1


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", ["5m", "PT5M", 300, 300.0, "300", timedelta(minutes=5), "4m60s", "300000ms"])
def test_durations_are_seconds_a_timedelta_or_text(ttl: object) -> None:
    assert Lock("memory:#apt", ttl=ttl).settings.ttl == 300.0


def test_settings_follow_from_the_ttl() -> None:
    made = Settings.make(ttl="5m")
    assert (made.renew_every, made.request_timeout, made.abort_margin, made.max_failures) == (37.5, 30.0, 50.0, 3)
    assert Settings.make(ttl="1h").request_timeout == 30.0
    assert made.drain_bound(2.0) == pytest.approx(300 * 1.01 + 2 + 60)
    assert made.drain_bound(2.0, observing=True) == 2 * made.drain_bound(2.0)


def test_settings_may_stand_in_the_url_and_keywords_win() -> None:
    lock = Lock("memory:?ttl=5m&owner=nightly&labels=%7B%22team%22%3A%22web%22%7D&backtrace=yes#apt", owner="mine")
    assert (lock.settings.ttl, lock.settings.owner) == (300.0, "mine")
    assert lock.settings.labels == {"team": "web"}
    assert lock.settings.backtrace is True


WRONG = [
    ({"ttl": 0.5}, ValueError, "ttl is 0.5 s; it must be at least 1 s"),
    ({"ttl": "soon"}, ValueError, "ttl 'soon' is not a duration"),
    ({"ttl": -1}, ValueError, "ttl must be a finite, non-negative duration"),
    ({"ttl": float("nan")}, ValueError, "ttl must be a finite, non-negative duration"),
    ({"ttl": True}, TypeError, "ttl must be seconds"),
    ({"ttl": None}, TypeError, "ttl must be seconds"),
    ({"max_failures": 0}, ValueError, "max_failures is 0"),
    ({"max_failures": "many"}, ValueError, "max_failures must be a whole number"),
    ({"max_failures": 2.5}, ValueError, "max_failures must be a whole number"),
    ({"drift": 0.6}, ValueError, "drift is 0.6"),
    ({"drift": "much"}, ValueError, "drift must be a number"),
    ({"renew_every": 0}, ValueError, "renew_every must be above 0"),
    ({"renew_every": 70}, ValueError, r"\(1 \+ max_failures\) \* renew_every \+ abort_margin is 330 s"),
    ({"abort_margin": 200}, ValueError, "abort_margin is 350 s"),
    ({"request_timeout": 40}, ValueError, "request_timeout is 40 s"),
    ({"request_timeout": 0}, ValueError, "request_timeout is 0 s"),
    ({"backoff_min": 6}, ValueError, "backoff_min is 6 s and backoff_max 5 s"),
    ({"backoff_min": 0}, ValueError, "backoff_min is 0 s"),
    ({"lock_delay": 61}, ValueError, "lock_delay is 61 s; it may be at most 60 s"),
    ({"foreign_ttl": 0.1}, ValueError, "foreign_ttl is 0.1 s"),
    ({"drain": "x"}, ValueError, "drain 'x' is not a duration"),
    ({"owner": " "}, ValueError, "owner must be printable text"),
    ({"owner": "a\nb"}, ValueError, "owner must be printable text"),
    ({"owner": 7}, TypeError, "owner must be text"),
    ({"purpose": 7}, TypeError, "purpose must be text"),
    ({"labels": {"a": 1}}, TypeError, "labels must map text to text"),
    ({"labels": "team"}, ValueError, "labels must be a JSON object"),
    ({"labels": ["a"]}, TypeError, "labels must map text to text"),
    ({"backtrace": "perhaps"}, ValueError, "backtrace must be true or false"),
    ({"colour": "red"}, TypeError, "colour"),
]


@pytest.mark.parametrize(("given", "kind", "message"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_each_wrong_setting_has_its_own_message(given: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Lock("memory:#apt", **given)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory:?colour=red#apt", "unknown setting 'colour'"),
        ("memory:?ttl=soon#apt", "ttl 'soon' is not a duration"),
        ("memory:", "names no key"),
        ("nonsense:x#apt", "nonsense"),
        ("apt", "no scheme"),
        ("memory:#%00", "control"),
    ],
)
def test_each_wrong_url_has_its_own_message(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lock(url)


def test_connect_takes_a_store_and_no_lock() -> None:
    with pytest.raises(ValueError, match=r"leave out '#apt'|name it with client\.lock"):
        lockstead.connect("memory:#apt")
    with pytest.raises(ValueError, match=r"settings belong to a lock"):
        lockstead.connect("memory:?ttl=5m")


def test_settings_that_are_unwise_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lockstead"), lockstead.Client(MemoryStore()) as client:
        for _ in range(2):
            client.lock("apt", ttl=300, renew_every=50)
    assert [record.message for record in caplog.records] == ["'apt': renew_every is 50 s, above 1/8 of the ttl"]


# --- secrets --------------------------------------------------------------------------------------------------------


def test_h22_no_error_or_repr_shows_a_password() -> None:
    url = "nonsense://anna:hunter2@host/0?ttl=5m#apt"
    with pytest.raises(ValueError) as caught:
        Lock(url)
    shown = [str(caught.value), repr(caught.value)]
    error: BaseException | None = caught.value
    while error is not None:
        shown.append(repr(error))
        error = error.__cause__ or error.__context__
    assert not [text for text in shown if "hunter2" in text]
    lock = Lock("memory:#apt")
    assert repr(lock) == "<Lock 'apt'>"


def test_h22_a_backtrace_names_places_and_no_source() -> None:
    with lockstead.Client(MemoryStore()) as client:
        password = "hunter2"
        with client.lock("apt", backtrace=True, purpose=f"x{len('hunter2' + password)}").hold():
            seen = client.lock("apt").inspect()
    assert seen is not None
    assert seen.backtrace is not None
    assert "hunter2" not in seen.backtrace
    assert __file__ in seen.backtrace.splitlines()[0]
    assert seen.where is not None
    assert seen.where.startswith(__file__)


def test_where_a_lock_was_taken_is_the_callers_line_or_none() -> None:
    with lockstead.Client(MemoryStore()) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock("apt", backtrace=True)
        lease = pool.submit(lock.acquire).result()
        held = lock.inspect()
        assert held is not None
        assert (held.where, held.backtrace) == (None, None)
        ticket = lease.detach()
        members = [pool.submit(lock.attach, ticket).result(), pool.submit(lambda: lock.attach(ticket)).result()]
        wheres = [member.where and member.where.rpartition(":")[0] for member in lock.members(ticket)]
        assert sorted(wheres, key=str) == sorted([__file__, None], key=str)
        for member in members:
            member.release()


@pytest.mark.parametrize("scheme", sorted(url.OURS))
def test_a_lock_knows_without_its_store_if_unclean_ends_show(scheme: str) -> None:
    lock = Lock(NAMED[scheme])
    if not known(scheme).tells_unclean:
        with pytest.raises(ValueError, match=f"^{scheme}: cannot tell how a holder ended"):
            lock.require_unclean_detection()
    else:
        lock.require_unclean_detection()
    assert lock._opened is None


def test_an_opened_lock_knows_it_too_and_unknown_is_not_unclean() -> None:
    with lockstead.Client(MemoryStore()) as client:
        client.lock("apt").require_unclean_detection()
    assert [one.name for one in lockstead.LeaseOutcome if one.is_unclean] == ["EXPIRED", "REVOKED"]


# --- the shared registry --------------------------------------------------------------------------------------------


def test_locks_of_one_url_share_an_engine() -> None:
    one, two, other = Lock("memory:shared#a"), Lock("memory:shared#b"), Lock("memory:apart#a")
    engine = one._open_now()
    assert two._open_now() is engine
    assert other._open_now() is not engine
    store = engine.store
    del one, engine
    gc.collect()
    with two.hold():
        pass
    del two
    gc.collect()
    with pytest.raises(lockstead.StoreUnavailable, match="closed"):
        store.perform(lockstead.protocol.commands.Read(lockstead.values.Name("a")), 1.0)
    assert Lock("memory:shared#a").inspect() is None


def test_an_engine_ends_with_its_last_user() -> None:
    gc.collect()
    gc.disable()
    try:
        lock = Lock("memory:ends#a")
        engine = weakref.ref(lock._open_now())
        lock.acquire(timeout=5).release()
        assert lock.try_acquire() is not None
        with pytest.raises(lockstead.NotAcquired):
            lock.acquire(timeout=0)
        del lock
        assert engine() is None
    finally:
        gc.enable()


def test_clients_are_not_shared() -> None:
    with lockstead.connect("memory:shared") as one, lockstead.connect("memory:shared") as two:
        assert one._engine is not two._engine
        with one.lock("a").hold():
            assert two.lock("a").try_acquire() is None


def test_a_store_that_opens_slowly_keeps_no_other_store_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    go, opens = threading.Event(), registry.urls.open_store

    def slow(url: object, client: object | None = None) -> object:
        if getattr(url, "text", "") == "memory:slow":
            go.wait(60)
        return opens(url, client)  # type: ignore[arg-type] # handed on

    monkeypatch.setattr(registry.urls, "open_store", slow)
    thread = threading.Thread(target=lambda: Lock("memory:slow#a").inspect())
    thread.start()
    assert Lock("memory:quick#a").inspect() is None
    assert thread.is_alive()
    go.set()
    thread.join(60)


# --- fencing --------------------------------------------------------------------------------------------------------


def test_h17_an_older_token_is_refused_an_equal_one_admitted() -> None:
    guard = FenceGuard()
    guard.admit(Sequencer("apt", 7))
    guard.admit("7:exclusive:apt")
    guard.admit(Sequencer("apt", 9))
    guard.admit(Sequencer("deb", 1))
    with pytest.raises(LeaseLost, match="token 7 of 'apt' is superseded: 9"):
        guard.admit(Sequencer("apt", 7))
    with pytest.raises(ValueError, match="not a sequencer"):
        guard.admit("seven")


def test_verify_tells_the_lease_that_holds_from_those_that_held() -> None:
    with lockstead.Client(MemoryStore()) as client:
        with client.lock("apt").hold() as lease:
            first = lease.sequencer()
            assert client.verify(first)
            assert client.verify(str(first))
        assert not client.verify(first)
        with client.lock("apt").hold() as lease:
            assert not client.verify(first)
            assert lease.sequencer().token > first.token


def test_list_and_inspect_show_who_holds_what_and_why() -> None:
    with lockstead.Client(MemoryStore()) as client:
        assert client.list() == []
        with (
            client.lock("b", purpose="publish", labels={"team": "web"}, expected="10m").hold(),
            client.lock("a").hold(),
        ):
            shown = client.list()
            assert [one.key for one in shown] == ["a", "b"]
            assert (shown[1].purpose, shown[1].labels, shown[1].expected) == ("publish", {"team": "web"}, 600.0)
            assert shown[1].acquired_at is not None
            assert shown[1].expires_at is not None
            assert (shown[1].expires_at - shown[1].acquired_at).total_seconds() == pytest.approx(300, abs=1)
            assert shown[1].alert_at is not None
            assert shown[1].alert_at.timezone_name == "UTC"


@pytest.mark.parametrize("kind", [lockstead.LockInfo, lockstead.BreakResult, lockstead.AuditEntry])
def test_the_page_names_every_field_of_what_is_shown(kind: type) -> None:
    page = (ROOT / "docs/api.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{kind.__name__}` | "))
    shown = {name for name in dir(kind) if not name.startswith("_") and not name.endswith("_epoch")}
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) - {"LockInfo"} == shown


@pytest.mark.parametrize("path", sorted(ROOT.glob("packages/*/src/**/*.py")), ids=lambda path: path.name)
def test_a_wrapper_names_nothing_that_the_core_has_not(path: Path) -> None:
    """The type checker cannot see it: names are imported when they are first asked for, so any might be one."""
    named = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lockstead"
    }
    assert [name for name in named if not hasattr(lockstead, name)] == []


# --- the page on the API --------------------------------------------------------------------------------------------


def test_the_page_on_the_api_names_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text("utf-8")
    parts = (lockstead.Lock, lockstead.Lease, lockstead.Client, lockstead.Batch)
    names = {name for part in parts for name in dir(part) if not name.startswith("_")}
    assert [name for name in sorted(names | set(lockstead.__all__)) if not re.search(rf"\b{name}\b", page)] == [
        "__version__"
    ]
