"""A lock and a store are saved as blocks, found by name in any process, and say in one line what is wrong with them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import pytest
from prefect import flow
from prefect.blocks.core import Block

import lockstead
from gcs_emulator import GcsServer
from prefect_lockstead import attached, awaiting, blocking, locked
from prefect_lockstead.blocks import LocksteadLock, LocksteadStore
from tests.prefect.real.seen import held
from tests.servers.prefect import ROOT, PrefectServer, started
from tests.servers.redis import RedisServer

PASSWORD = "correct/horse#battery"
HAS_GOOGLE = find_spec("prefect_gcp") is not None
FIELDS = ["url", "ttl", "timeout", "purpose", "username", "password"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    class Guarded(RedisServer):
        def is_ready(self) -> bool:
            return b"NOAUTH" in self.says("PING")

    server = Guarded(tmp_path_factory.mktemp("redis"), None, "--requirepass", PASSWORD).start()
    yield server
    server.kill()


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer(buckets=["bucket"]) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


class Tokens(BaseHTTPRequestHandler):
    """Gives everybody a token, as Google's server does who signs for it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def account() -> Iterator[dict[str, str]]:
    """Return an account of Google's that a server here gives tokens for."""
    with HTTPServer(("127.0.0.1", 0), Tokens) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield service_account(f"http://127.0.0.1:{server.server_port}/token")
        server.shutdown()
        thread.join()


def service_account(tokens: str) -> dict[str, str]:
    """Return an account whose key was just made."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "project_id": "nowhere",
        "private_key_id": "1",
        "private_key": pem,
        "client_email": "locks@nowhere.iam.gserviceaccount.com",
        "token_uri": tokens,
    }


def one_line(call: Callable[[], Any], kind: type[Exception] = ValueError) -> str:
    """Return the line that a call is refused with."""
    with pytest.raises(kind) as refused:
        call()
    lines = str(refused.value).splitlines()
    # pydantic writes a heading above each, and where to read on below it
    said = lines[0] if len(lines) == 1 else next(line for line in lines if "Value error" in line)
    assert "hunter2" not in str(refused.value)
    return said


# --- saved and found --------------------------------------------------------------------------------------------------


def test_a_fresh_process_loads_a_block_by_its_name(server: PrefectServer, url: str, tmp_path: Path) -> None:
    LocksteadLock(url=f"{url}#apt", ttl="5s").save("fresh", overwrite=True)
    program = (
        "from prefect.blocks.core import Block\n"
        "block = Block.load('lockstead-lock/fresh')\n"
        "with block.hold(timeout=0) as lease:\n"
        "    print(type(block).__module__, type(block).__name__, block.inspect().key)\n"
    )
    with started(["-c", program], tmp_path / "home", server) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    # Prefect may say more as it ends
    assert "prefect_lockstead.blocks LocksteadLock apt" in said.splitlines()


def test_a_block_type_is_registered_before_any_block_is_saved(server: PrefectServer) -> None:
    program = "from prefect.plugins import load_prefect_collections; print(load_prefect_collections().keys())"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "prefect_lockstead" in said
    LocksteadLock.register_type_and_schema()
    LocksteadStore.register_type_and_schema()
    for slug, name in (("lockstead-lock", "Lockstead Lock"), ("lockstead-store", "Lockstead Store")):
        assert httpx.get(f"{server.url}/block_types/slug/{slug}", trust_env=False).json()["name"] == name


@pytest.mark.usefixtures("server")
def test_what_was_saved_is_what_is_loaded_and_what_a_name_means(url: str) -> None:
    saved = LocksteadLock(url=f"{url}#apt", ttl=5, timeout="2m", purpose="publish")
    saved.save("prod-apt", overwrite=True)
    loaded = LocksteadLock.load("prod-apt")
    assert loaded.model_dump() == saved.model_dump()
    for name in ("prod-apt", "lockstead-lock/prod-apt"):
        for place in (blocking.find_lock(name), asyncio.run(awaiting.find_lock(name))):
            assert (place.url, place.client, place.timeout) == (f"{url}#apt", None, 120)
            assert place.settings == {"ttl": "5", "purpose": "publish"}
    LocksteadStore(url=url, ttl="7s").save("prod", overwrite=True)
    assert blocking.find_lock("prod#a/b?c").url == f"{url}#a/b%3Fc"
    assert blocking.find_store("prod").settings == {"ttl": "7s"}


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_block_says_how_long_a_locked_flow_waits(url: str, is_async: bool) -> None:
    LocksteadLock(url=f"{url}#apt", timeout="0.2s").save("impatient", overwrite=True)

    @locked(block="impatient")
    def waits() -> None: ...

    @locked(block="impatient")
    async def awaits() -> None: ...

    with held(f"{url}#apt"), pytest.raises(lockstead.NotAcquired, match="held by 'somebody'"):
        asyncio.run(flow(awaits)()) if is_async else flow(waits)()


@pytest.mark.usefixtures("server")
def test_a_name_is_resolved_inside_a_running_loop_too(url: str) -> None:
    LocksteadLock(url=f"{url}#apt").save("inside", overwrite=True)

    async def ask() -> str:
        return blocking.find_lock("inside").url

    assert asyncio.run(ask()) == f"{url}#apt"


def test_a_document_that_was_saved_with_fewer_fields_still_loads(server: PrefectServer, url: str) -> None:
    LocksteadLock(url=f"{url}#apt", ttl="5s").save("old", overwrite=True)
    found = httpx.get(f"{server.url}/block_types/slug/lockstead-lock/block_documents/name/old", trust_env=False).json()
    data = {"url": f"{url}#apt"}
    changed = {"data": data, "merge_existing_data": False}
    address = f"{server.url}/block_documents/{found['id']}"
    httpx.patch(address, json=changed, trust_env=False).raise_for_status()
    assert httpx.get(address, trust_env=False).json()["data"] == data
    loaded = LocksteadLock.load("old")
    assert loaded.place.url == f"{url}#apt"
    with loaded.hold(timeout=0):
        assert loaded.inspect() is not None


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_pickled_block_holds_the_same_lock(url: str, pickler: Any) -> None:
    block = LocksteadLock(url=f"{url}#apt", ttl="5s")
    with block.hold(timeout=0):
        copied = pickler.loads(pickler.dumps(block))
        assert copied.inspect().key == "apt"
        with pytest.raises(lockstead.NotAcquired):
            copied.lock().acquire(timeout=0)


def test_a_secret_is_shown_nowhere(server: PrefectServer) -> None:
    block = LocksteadLock(url="redis://127.0.0.1:1/0#apt", username="app", password="hunter2")
    block.save("secret", overwrite=True)
    address = f"{server.url}/block_types/slug/lockstead-lock/block_documents/name/secret"
    said = httpx.get(address, trust_env=False).json()
    assert said["data"]["username"] == "app"
    assert set(said["data"]["password"]) == {"*"}
    assert "hunter2" not in json.dumps(said) + repr(block) + str(block) + repr(block.place) + repr(block.lock())
    assert LocksteadLock.load("secret").place.url == "redis://app:hunter2@127.0.0.1:1/0#apt"


@pytest.mark.parametrize("said", ["redis://app:hunter2@127.0.0.1:1/0#apt", "postgresql://h/db?password=hunter2#apt"])
def test_a_document_with_a_password_in_its_url_is_refused(server: PrefectServer, url: str, said: str) -> None:
    LocksteadLock(url=f"{url}#apt").save("in-clear", overwrite=True)
    address = f"{server.url}/block_types/slug/lockstead-lock/block_documents/name/in-clear"
    found = httpx.get(address, trust_env=False).json()
    changed = {"data": {"url": said}, "merge_existing_data": False}
    httpx.patch(f"{server.url}/block_documents/{found['id']}", json=changed, trust_env=False).raise_for_status()
    told = one_line(lambda: blocking.find_lock("in-clear"))
    assert "url: there is a password in the URL, which everybody who sees the block can read" in told
    with pytest.raises(RuntimeError, match="Unable to load 'in-clear'") as refused:
        LocksteadLock.load("in-clear")
    assert "hunter2" not in told + str(refused.value) + str(refused.value.__cause__)


@pytest.mark.parametrize("kind", [LocksteadLock, LocksteadStore])
def test_a_block_type_has_a_logo_and_a_page(server: PrefectServer, kind: type[Block]) -> None:
    kind.register_type_and_schema()
    shown = httpx.get(f"{server.url}/block_types/slug/{kind._block_type_slug}", trust_env=False).json()
    for address in (shown["logo_url"], shown["documentation_url"]):
        assert (ROOT / address.partition("/main/")[2]).is_file(), address


# --- used ------------------------------------------------------------------------------------------------------------


def use(block: LocksteadLock, store: LocksteadStore, key: str) -> None:
    """Hold, look and list, blocking and awaiting."""
    assert block.inspect() is None
    with block.hold(timeout=0) as lease:
        assert lease.ttl == 5
        assert lockstead.current_lease() is lease
        assert [one.key for one in store.list()] == [key]
        assert block.inspect().purpose == "publish"
        assert store.inspect(key).holder == lease.holder
    assert store.list() == []

    async def awaiting() -> None:
        assert await block.ainspect() is None
        async with block.ahold(timeout=0) as lease:
            assert [one.key for one in await store.alist()] == [key]
            assert (await block.ainspect()).holder == lease.holder
            assert (await store.ainspect(key)).holder == lease.holder
        async with store.alock("other", ttl="6s").hold(timeout=0) as lease:
            assert lease.ttl == 6

    asyncio.run(awaiting())
    with store.lock("other").hold(timeout=0) as lease:
        assert lease.ttl == 5


def test_it_holds_and_looks_on_sqlite_and_leaves_nothing_open(url: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    use(LocksteadLock(url=f"{url}#apt", ttl="5s", purpose="publish"), LocksteadStore(url=url, ttl="5s"), "apt")
    gc.collect()
    ends_at = time.monotonic() + 30
    while open_files(tmp_path) or any(
        thread.name == "lockstead-keeper" for thread in set(threading.enumerate()) - before
    ):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def open_files(folder: Path) -> list[str]:
    """Name the files of a folder that this process has open."""
    names: list[str] = []
    for found in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(found))  # noqa: PTH115 - some are not paths
        except OSError:
            continue
    return [name for name in names if name.startswith(str(folder))]


@pytest.mark.usefixtures("server")
def test_it_holds_and_looks_on_a_redis_with_a_password(redis: RedisServer) -> None:
    address = f"redis://127.0.0.1:{redis.port}/0"
    LocksteadLock(url=f"{address}?prefix=blocks#apt", ttl="5s", purpose="publish", password=PASSWORD).save(
        "redis", overwrite=True
    )
    store = LocksteadStore(url=f"{address}?prefix=blocks", ttl="5s", password=PASSWORD)
    use(LocksteadLock.load("redis"), store, "apt")
    for wrong in ("", "wrong"):
        block = LocksteadLock(url=f"{address}?prefix=blocks#apt", password=wrong)
        assert "password" in one_line(block.inspect, lockstead.StoreRefused)


@pytest.mark.usefixtures("server")
def test_who_brings_a_ticket_gets_in_by_the_block(redis: RedisServer) -> None:
    address = f"redis://127.0.0.1:{redis.port}/0?prefix=tickets"
    LocksteadLock(url=f"{address}#apt", ttl="5s", password=PASSWORD).save("tickets", overwrite=True)
    LocksteadStore(url=address, password=PASSWORD).save("tickets", overwrite=True)

    @attached(parameter="ticket", block="tickets")
    def work(ticket: str) -> str:
        return lockstead.current_lease().holder

    @attached(parameter="ticket", block="tickets#apt")
    async def awaiting(ticket: str) -> str:
        return lockstead.current_lease().holder

    with LocksteadLock.load("tickets").hold() as lease:
        ticket = str(lease.share())
        assert PASSWORD not in ticket
        assert work(ticket) == lease.holder
        assert asyncio.run(awaiting(ticket)) == lease.holder
        with attached(ticket, block="tickets") as member:
            assert member.is_member
        with attached(ticket, store="tickets") as member:
            assert member.is_member
        assert "password" in one_line(attached(ticket, store=address).__enter__, lockstead.StoreRefused)
        with pytest.raises(ValueError, match="there is no block 'none' of the type lockstead-lock"):
            attached(ticket, block="none").__enter__()


@pytest.mark.usefixtures("gcs")
def test_it_holds_and_looks_on_cloud_storage() -> None:
    lock = LocksteadLock(url="gs://bucket/locks/apt", ttl="5s", purpose="publish")
    use(lock, LocksteadStore(url="gs://bucket/locks", ttl="5s"), "apt")


@pytest.mark.skipif(not HAS_GOOGLE, reason="prefect-gcp is not in this environment")
@pytest.mark.usefixtures("server", "gcs")
def test_it_takes_the_credentials_of_a_nested_block(account: dict[str, str]) -> None:
    from prefect_gcp import GcpCredentials

    GcpCredentials(service_account_info=account).save("google", overwrite=True)
    google = GcpCredentials.load("google")
    said = {"ttl": "5s", "purpose": "publish", "gcp_credentials": google}
    LocksteadLock(url="gs://bucket/nested/apt", **said).save("nested", overwrite=True)
    lock = LocksteadLock.load("nested")
    assert lock.gcp_credentials.project == "nowhere"
    assert account["private_key"] not in repr(lock)
    use(lock, LocksteadStore(url="gs://bucket/nested", **said), "apt")
    # one client for all who wait with the same credentials
    assert blocking.find_lock("nested").client is lock.place.client is not None
    lock.place.client.close()


# --- what is wrong with it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (LocksteadLock, {"url": "locks.db"}, "not a store URL: it has no scheme"),
        (LocksteadLock, {"url": "nosuch://x#apt"}, "no store has the scheme 'nosuch'; known: cassandra, env"),
        (LocksteadLock, {"url": "redis://host/0"}, "the URL names no key; write the lock's name after '#'"),
        (LocksteadLock, {"url": "redis://u:hunter2@host/0#apt"}, "there is a password in the URL"),
        (LocksteadLock, {"url": "postgresql://host/db?password=hunter2#apt"}, "there is a password in the URL"),
        (LocksteadStore, {"url": "postgresql://host/db?password=hunter2"}, "there is a password in the URL"),
        (LocksteadLock, {"url": "sqlite:///x#apt", "ttl": "0.5s"}, "ttl is 0.5 s; it must be at least 1 s"),
        (LocksteadLock, {"url": "sqlite:///x#apt", "ttl": "soon"}, "ttl 'soon' is not a duration"),
        (LocksteadLock, {"url": "sqlite:///x#apt?ttl=0.5s"}, "ttl is 0.5 s; it must be at least 1 s"),
        (LocksteadLock, {"url": "sqlite:///x#apt", "timeout": "soon"}, "timeout 'soon' is not a duration"),
        (LocksteadLock, {"url": "sqlite:///x#apt", "purpose": "a\nb"}, "purpose must be printable text"),
        (LocksteadLock, {"url": "sqlite:///x#apt", "password": "hunter2"}, "sqlite: has neither user nor password"),
        (LocksteadStore, {"url": "redis://host/0#apt"}, "the URL names a lock, not a store"),
        (LocksteadStore, {"url": "sqlite:///x?ttl=5s"}, "the setting 'ttl' belongs to a lock"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kind: type[Any], fields: dict[str, str], said: str) -> None:
    assert said in one_line(lambda: kind(**fields))


@pytest.mark.usefixtures("server")
def test_an_unknown_name_is_answered_with_those_there_are(url: str) -> None:
    LocksteadLock(url=f"{url}#apt").save("known", overwrite=True)
    LocksteadStore(url=url).save("known-store", overwrite=True)
    said = one_line(lambda: blocking.find_lock("prod-atp"))
    assert "there is no block 'prod-atp' of the type lockstead-lock; there are " in said
    assert "'known'" in said
    said = one_line(lambda: blocking.find_lock("nowhere#apt"))
    assert "there is no block 'nowhere' of the type lockstead-store; there are " in said
    assert "'known-store'" in said


def test_a_missing_library_is_named_with_what_installs_it() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from prefect_lockstead.blocks import LocksteadLock\n"
        "LocksteadLock(url='redis://127.0.0.1:1/0#apt').inspect()\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True).stderr
    assert (
        "StoreRefused: the Redis store needs its client library: pip install 'lockstead[redis]'"
        in (said.splitlines()[-1])
    )


def test_a_block_that_needs_prefect_gcp_says_so_without_it(server: PrefectServer, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        LocksteadLock(url="gs://bucket/locks/apt").save("needs-google", overwrite=True)
    address = f"{server.url}/block_types/slug/lockstead-lock/block_documents/name/needs-google"
    found = httpx.get(address, trust_env=False).json()
    data = {"url": "gs://bucket/locks/apt", "gcp_credentials": {"project": "nowhere"}}
    httpx.patch(f"{server.url}/block_documents/{found['id']}", json={"data": data}, trust_env=False).raise_for_status()
    program = (
        "import sys; sys.modules['prefect_gcp'] = sys.modules['prefect_gcp.credentials'] = None\n"
        "from prefect_lockstead import blocking, blocks\n"
        "assert 'gcp_credentials' not in blocks.LocksteadLock.model_fields\n"
        "blocks.LocksteadLock(url='gs://bucket/locks/apt')\n"
        "blocking.find_lock('needs-google')\n"
    )
    with started(["-c", program], tmp_path / "home", server) as process:
        said, _ = process.communicate(timeout=300)
    assert (
        "ValueError: the block lockstead-lock/needs-google cannot be used: the block takes its credentials from a GCP "
        'Credentials block, and prefect-gcp is not installed here: pip install "prefect-gcp[cloud_storage]"'
    ) in said.splitlines()


# --- the form --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LocksteadLock, LocksteadStore])
def test_the_form_has_titles_and_descriptions_and_no_tabs(kind: type[Block]) -> None:
    schema = kind.model_json_schema()
    assert list(schema["properties"]) == FIELDS + (["gcp_credentials"] if HAS_GOOGLE else [])
    assert schema["required"] == ["url"]
    for name, shown in schema["properties"].items():
        assert shown["title"], name
        assert shown["title"] != name, name
        assert shown["description"].endswith("."), name
        assert "anyOf" not in shown, name
        # beside a bare reference, the form shows what the other block says of itself instead
        assert "$ref" not in shown, name
    assert schema["secret_fields"][0] == "password"
    if HAS_GOOGLE:
        assert schema["block_schema_references"]["gcp_credentials"]["block_type_slug"] == "gcp-credentials"
    assert kind.get_description().endswith(".")
    assert "```python" in kind.get_code_example()
