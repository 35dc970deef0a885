"""What an examination of Redis finds: each state of a real server has its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstead.stores import url
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.port import SupportsDiagnostics
from lockstead.stores.redis.doctor import examination
from lockstead.values import Name
from tests.servers.redis import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()  # in good order it would save first


def found(server: RedisServer, who: str = "") -> dict[str, Finding]:
    store = url.open_store(f"redis://{who}{server.address}")
    assert isinstance(store, SupportsDiagnostics)
    findings = {finding.check: finding for finding in store.examine(Name, 20.0)}
    store.close()
    return findings


def test_a_server_without_persistence_is_a_warning(server: RedisServer) -> None:
    findings = found(server)
    severities = {check: finding.severity for check, finding in findings.items()}
    assert severities == {
        "transport": Severity.OK,
        "version": Severity.OK,
        "memory": Severity.OK,
        "persistence": Severity.WARNING,
        "wake": Severity.OK,
    }
    assert "all locks" in findings["persistence"].text


def test_persistence_is_told_by_what_it_forgets(server: RedisServer) -> None:
    with server.client() as admin:
        admin.config_set("save", "3600 1")
        assert "snapshot" in found(server)["persistence"].text
        admin.config_set("appendonly", "yes")
        assert found(server)["persistence"].severity is Severity.NOTE
        admin.config_set("appendfsync", "always")
        assert found(server)["persistence"].severity is Severity.OK


def test_an_evicting_server_is_a_warning(server: RedisServer) -> None:
    with server.client() as admin:
        admin.config_set("maxmemory-policy", "volatile-lru")
        assert found(server)["memory"].severity is Severity.NOTE
        admin.config_set("maxmemory", "100mb")
        warned = found(server)["memory"]
        assert warned.severity is Severity.WARNING
        assert "noeviction" in warned.remedy


def test_replicas_are_told_to_follow_asynchronously(server: RedisServer, tmp_path: Path) -> None:
    quick = ("--repl-diskless-sync-delay", "0")
    following = ("--replicaof", f"127.0.0.1 {server.port}", *quick)
    with RedisServer(tmp_path / "replica", None, *following) as replica:
        replica.until(lambda: b"master_link_status:up" in replica.says("INFO", "replication"), "no link")
        noted = found(server)["replicas"]
        assert noted.severity is Severity.NOTE
        assert "min-replicas-to-write" in noted.remedy


def test_rights_that_are_missing_are_told(server: RedisServer) -> None:
    with server.client() as admin:
        rights = ["on", ">s3cret", "~*", "resetchannels", "+@all", "-info", "-config"]
        admin.execute_command("ACL", "SETUSER", "anna", *rights)
    findings = found(server, "anna:s3cret@")
    assert findings["settings"].severity is Severity.NOTE
    assert findings["wake"].severity is Severity.WARNING


def test_a_server_too_old_is_told_by_the_version_that_is_needed() -> None:
    def send(_address: Any, words: tuple[bytes, ...]) -> Any:
        return b"# Server\r\nredis_version:4.0.9\r\n" if words == (b"INFO",) else 0

    first = next(examination((("h", 1),), b"c", send))
    assert first.severity is Severity.FAILURE
    assert first.stops
    assert "5.0" in first.text
