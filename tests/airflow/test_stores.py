"""Connections on real servers: credentials by reference, the test button, and a secret that is never shown.

`connections.py` uses them with an Airflow's own classes, as variables of the environment; no Airflow is started. The
pinned environments have no Google provider: a stand-in gives the credentials where one is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gcs_emulator import GcsServer
from tests.airflow.conftest import chosen
from tests.servers.airflow_parts import Version
from tests.servers.base import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(400), pytest.mark.xdist_group("connections")]

SCRIPT = Path(__file__).with_name("connections.py")
SECRET = "open/sesame@1"
QUOTED = "open%2Fsesame%401"
WRONG = "wrong-sesame"

GOOD = ("redis_reference", "redis_of_a_user", "redis_elsewhere", "postgres_reference", "postgres_elsewhere", "plain")
"""Connections that open a store."""

PROVIDER = """
from google.auth.credentials import AnonymousCredentials

def info():
    kind = {"connection-type": "google_cloud_platform", "hook-class-name": "standin_google.Hook"}
    return {"package-name": "standin-google", "name": "Google", "description": "A stand-in.", "versions": ["1.0"],
            "hook-class-names": ["standin_google.Hook"], "connection-types": [kind]}

class Hook:
    conn_name_attr, conn_type, hook_name = "gcp_conn_id", "google_cloud_platform", "Google Cloud"

    def __init__(self, gcp_conn_id):
        from airflow_lockstead.compat import BaseHook
        self.said = BaseHook.get_connection(gcp_conn_id).extra_dejson

    def get_credentials_and_project_id(self):
        if "keyfile_dict" in self.said:
            from airflow_lockstead.compat import AirflowException
            raise AirflowException("Invalid key JSON.")
        if "key_path" in self.said:
            open(self.said["key_path"])
        return AnonymousCredentials(), self.said["project"]
"""

ENTRY = "[apache_airflow_provider]\nprovider_info = standin_google:info\n"


def conn(kind: str = "lockstead", **said: Any) -> str:
    return json.dumps({"conn_type": kind, **said})


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        with server.client() as admin:
            admin.acl_setuser(
                "worker", enabled=True, passwords=[f"+{SECRET}"], categories=["+@all"], keys=["*"], channels=["*"]
            )
            admin.config_set("requirepass", SECRET)
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    server.tell(f"CREATE ROLE worker LOGIN PASSWORD '{SECRET}'", "CREATE DATABASE locks OWNER worker")
    rules = server.cluster / "pg_hba.conf"
    rules.write_text("host all worker 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.tell("SELECT pg_reload_conf()")
    yield server
    server.remove()


def connections(redis: RedisServer, postgres: PostgresServer, folder: Path) -> dict[str, str]:
    """Return all connections of these tests, by id."""
    silent = free_port()
    at_redis: dict[str, Any] = {"host": "127.0.0.1", "port": redis.port, "extra": {"db": 3}}
    at_postgres: dict[str, Any] = {"host": "127.0.0.1", "port": postgres.port, "schema": "locks", "login": "worker"}
    return {
        # Airflow's own
        "red": conn("redis", password=SECRET, **at_redis),
        "red_user": conn("redis", login="worker", password=SECRET, **at_redis),
        "red_wrong": conn("redis", password=WRONG, **at_redis),
        "red_silent": conn("redis", password=SECRET, **{**at_redis, "port": silent}),
        "pg": conn("postgres", password=SECRET, **at_postgres),
        "pg_wrong": conn("postgres", password=WRONG, **at_postgres),
        "pg_silent": conn("postgres", password=SECRET, **{**at_postgres, "port": silent}),
        "google": conn("google_cloud_platform", extra={"project": "p"}),
        "google_bad_key": conn("google_cloud_platform", extra={"project": "p", "keyfile_dict": SECRET}),
        "google_no_file": conn("google_cloud_platform", extra={"project": "p", "key_path": "/nowhere.json"}),
        # ours
        "redis_reference": conn(extra={"redis_conn_id": "red"}),
        "redis_of_a_user": conn(extra={"redis_conn_id": "red_user"}),
        "redis_elsewhere": conn(host=f"redis://127.0.0.1:{redis.port}/5", extra={"redis_conn_id": "red"}),
        "redis_wrong": conn(extra={"redis_conn_id": "red_wrong"}),
        "redis_silent": conn(extra={"redis_conn_id": "red_silent"}),
        "postgres_reference": conn(extra={"postgres_conn_id": "pg"}),
        "postgres_elsewhere": conn(
            host=f"postgresql://127.0.0.1:{postgres.port}/locks?schema=elsewhere", extra={"postgres_conn_id": "pg"}
        ),
        "postgres_wrong": conn(extra={"postgres_conn_id": "pg_wrong"}),
        "postgres_silent": conn(extra={"postgres_conn_id": "pg_silent"}),
        "plain": conn(host=f"redis://127.0.0.1:{redis.port}/7", login="worker", password=SECRET),
        "plain_wrong": conn(host=f"redis://127.0.0.1:{redis.port}/7", login="worker", password=WRONG),
        "gcs": conn(host="gs://bucket/locks", extra={"google_conn_id": "google"}),
        "gcs_missing": conn(host="gs://nowhere/locks", extra={"google_conn_id": "google"}),
        "gcs_bad_key": conn(host="gs://bucket/locks", extra={"google_conn_id": "google_bad_key"}),
        "gcs_no_file": conn(host="gs://bucket/locks", extra={"google_conn_id": "google_no_file"}),
        "dangling": conn(extra={"redis_conn_id": "nobody"}),
        "of_another_kind": conn(host="gs://bucket/locks", extra={"google_conn_id": "red"}),
        "no_folder": conn(host=f"sqlite:///{folder}/missing/locks.db"),
    }


class Used:
    """Runs the script with all connections there; `seen` are its words by connection, `said` all it printed."""

    def __init__(self, version: Version, told: dict[str, str], names: tuple[str, ...]) -> None:
        done = subprocess.run(
            [str(version.python), str(SCRIPT), *names],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **told},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        # Airflow 2.10 may log to stdout as it exits
        said = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
        self.seen: dict[str, Any] = said["seen"]
        self.logged: list[str] = said["logged"]
        self.said = done.stdout + done.stderr


BAD = ("redis_wrong", "redis_silent", "postgres_wrong", "postgres_silent", "plain_wrong", "dangling", "no_folder")
WITH_GOOGLE = ("gcs", "gcs_missing", "gcs_bad_key", "gcs_no_file", "of_another_kind")


@pytest.fixture(scope="module")
def told(
    redis: RedisServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("airflow")
    known = connections(redis, postgres, folder)
    with GcsServer(buckets=["bucket"]) as gcs:
        yield {
            "AIRFLOW_HOME": str(folder / "home"),
            "STORAGE_EMULATOR_HOST": gcs.url,
            **{f"AIRFLOW_CONN_{name.upper()}": text for name, text in known.items()},
        }


@pytest.fixture(scope="module")
def version(request: pytest.FixtureRequest) -> Version:
    return Version(chosen(request.config)[-1])


@pytest.fixture(scope="module")
def used(version: Version, told: dict[str, str]) -> Used:
    """Use every connection but Google's, and one of those without the provider that it needs."""
    return Used(version, told, (*GOOD, *BAD, "gcs"))


@pytest.fixture(scope="module")
def with_google(version: Version, told: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Used:
    """Use Google's, with a provider that knows their type."""
    place = tmp_path_factory.mktemp("standin")
    (place / "standin_google.py").write_text(PROVIDER)
    about = place / "standin_google-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: standin-google\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY)
    return Used(version, {**told, "PYTHONPATH": str(place)}, WITH_GOOGLE)


def client_of(redis: RedisServer) -> Any:
    """Return a client that may do everything."""
    import redis as library

    return library.Redis(port=redis.port, password=SECRET)


def is_usable(seen: dict[str, Any]) -> bool:
    """Return whether everybody got what the connection promises."""
    assert seen["tested"] == [True, "the store answers; 0 locks are held there"]
    assert seen["while_held"] == "the store answers; 1 lock is held there"
    assert seen["listed"] == ["apt"]
    assert seen["task"] == {"renewed": True, "released": True}
    assert seen["trigger"] == {"owner": "airflow:d/r/t/-1", "released": True}
    return True


@pytest.mark.parametrize("name", GOOD)
def test_a_connections_store_opens_in_task_triggerer_and_test(used: Used, name: str) -> None:
    assert is_usable(used.seen[name])


def test_the_stores_are_where_the_connections_say(used: Used, redis: RedisServer, postgres: PostgresServer) -> None:
    assert used.seen
    with client_of(redis) as admin:
        assert set(admin.info("keyspace")) == {"db3", "db5", "db7"}
    with postgres.asked("locks") as asked:
        schemas = {row[0] for row in asked.execute("SELECT nspname FROM pg_namespace").fetchall()}
    assert {"elsewhere", "lockstead"} <= schemas


def test_a_google_connection_opens_its_bucket(with_google: Used) -> None:
    assert is_usable(with_google.seen["gcs"])


LINES = {
    "redis_wrong": "password",
    "redis_silent": "cannot connect to Redis",
    "postgres_wrong": "password authentication failed",
    "postgres_silent": "Connection refused",
    "plain_wrong": "password",
    "dangling": "'dangling' takes its credentials from 'nobody' (redis_conn_id), and there is no such connection",
    "no_folder": "missing",
    "gcs_missing": "the bucket",
    "gcs_bad_key": "'google_bad_key' gives no Google credentials: Invalid key JSON.",
    "gcs_no_file": "'google_no_file' gives no Google credentials",
    "of_another_kind": "the connection 'red' gives no Google credentials",
}
SILENT = ("redis_silent", "postgres_silent")


@pytest.mark.parametrize("name", LINES)
def test_an_invalid_connection_is_one_line_for_button_and_task(request: pytest.FixtureRequest, name: str) -> None:
    seen = request.getfixturevalue("with_google" if name in WITH_GOOGLE else "used").seen[name]
    is_good, line = seen["tested"]
    print(line)
    assert not is_good
    assert LINES[name] in line
    assert "\n" not in line
    if name in SILENT:  # a task goes on waiting, in the triggerer
        assert seen["task"] == {"grant": None}
        return
    assert seen["task"]["ended"] == "AirflowFailException"
    assert LINES[name] in seen["task"]["line"]
    assert "\n" not in seen["task"]["line"]


def test_a_google_connection_says_which_provider_to_install(used: Used) -> None:
    seen = used.seen["gcs"]
    assert seen["tested"][0] is False
    for line in (seen["tested"][1], seen["task"]["line"]):
        assert "is apache-airflow-providers-google installed" in line
        assert "'google'" in line
        assert "\n" not in line
    assert seen["task"]["ended"] == "AirflowFailException"


@pytest.mark.parametrize("run", ["used", "with_google"])
def test_a_connections_secret_is_in_no_error_repr_ticket_or_log(request: pytest.FixtureRequest, run: str) -> None:
    words: Used = request.getfixturevalue(run)
    shown = [text for seen in words.seen.values() for text in seen["shown"]]
    assert len(shown) > len(words.seen)
    assert words.logged
    for text in (*shown, *words.logged, words.said):
        assert not any(secret in text for secret in (SECRET, QUOTED, WRONG)), text[:500]
