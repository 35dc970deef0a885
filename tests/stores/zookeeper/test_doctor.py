"""What an examination of a ZooKeeper finds: each state of real servers has its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

from lockstead.stores.examination import Finding, Severity
from lockstead.stores.port import SupportsDiagnostics
from lockstead.stores.zookeeper.doctor import examination
from lockstead.stores.zookeeper.url import target_of
from lockstead.values import Name
from tests.servers.base import free_port
from tests.servers.zookeeper import Ensemble, ZookeeperServer, asked, standing
from tests.stores.zookeeper.server import LIMIT, opened, server, space, taken, until

__all__ = ["server", "space"]


def found(url: str) -> dict[str, Finding]:
    store = opened(url)
    assert isinstance(store, SupportsDiagnostics)
    try:
        return {finding.check: finding for finding in store.examine(Name, LIMIT)}
    finally:
        store.close()


def test_a_single_server_is_a_warning_and_open_access_a_note(
    server: ZookeeperServer, space: str, tmp_path: Path
) -> None:
    findings = found(space)
    assert {check: finding.severity for check, finding in findings.items()} == {
        "transport": Severity.OK,
        "ensemble": Severity.WARNING,
        "version": Severity.OK,
        "session": Severity.OK,
        "access": Severity.NOTE,
        "rights": Severity.NOTE,
    }
    assert "a single server" in findings["ensemble"].text
    assert found(space.replace("zk://", "zk://me:pw@"))["access"].severity is Severity.OK
    file = tmp_path / "acl"
    file.write_text("world:anyone:cdrw\n")
    assert found(f"{space}?acl={file}")["access"].severity is Severity.NOTE
    file.write_text("world:anyone:r, digest:me:aGFzaA==:cdrw\n")
    assert found(f"{space}?acl={file}")["access"].text == f"only those whom {file} names may change new nodes"


def test_a_session_that_the_server_cuts_short_is_told(server: ZookeeperServer, space: str) -> None:
    # a tick of half a second: between 1 and 10 s
    assert "10 s, not 60 s" in found(f"{space}?session=60")["session"].text
    assert found(f"{space}?session=2")["session"].severity is Severity.WARNING


def test_the_path_is_tried_and_nothing_is_left_of_that(server: ZookeeperServer, space: str) -> None:
    base = "/" + space.rpartition("/")[2]
    assert "it is created on first use" in found(space)["rights"].text
    with asked(server.address) as client:
        assert client.exists(base) is None, "who only looks makes nothing"
        store = opened(space)
        taken(store)
        store.close()
        assert found(space)["rights"].severity is Severity.OK
        assert standing(client, base) == ["lock/apt"]


@pytest.mark.parametrize(
    ("allowed", "says"),
    [
        ({"create": True, "read": True, "write": True}, "may not delete nodes below"),
        ({"delete": True, "read": True, "write": True}, "may not create nodes below"),
        ({"create": True, "delete": True, "read": True, "write": True}, ""),
    ],
)
@pytest.mark.parametrize("where", ["", "/lock", "/queue"])
def test_a_right_that_is_missing_is_named_with_the_node(
    server: ZookeeperServer, space: str, allowed: dict[str, bool], says: str, where: str
) -> None:
    base = "/" + space.rpartition("/")[2]
    with asked(server.address) as admin:
        admin.ensure_path(base)
        admin.add_auth("digest", "admin:admin")
        acl = [make_digest_acl("admin", "admin", all=True), make_digest_acl("me", "pw", **allowed)]
        if where:
            admin.create(base + where, acl=acl)
        else:
            admin.set_acls(base, acl)
    finding = found(space.replace("zk://", "zk://me:pw@"))["rights"]
    assert finding.severity is (Severity.FAILURE if says else Severity.OK)
    assert not says or f"{says} {base}{where}," in finding.text


def test_words_that_a_server_does_not_answer_are_a_note_or_nothing(tmp_path: Path) -> None:
    with ZookeeperServer(tmp_path / "quiet") as quiet:
        assert "session" not in found(f"zk://{quiet.address}/locks"), "conf is not among the words by default"
    url = f"zk://127.0.0.1:{free_port()}/locks"
    checks = [finding.check for finding in examination(target_of(url), LIMIT)]
    assert checks == ["servers", "ensemble", "access"]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble") / "ensemble") as running:
        yield running


def test_a_single_or_missing_server_of_an_ensemble_is_reported(ensemble: Ensemble) -> None:
    url = f"zk://{ensemble.hosts}/locks"
    whole = found(url)["ensemble"]
    assert (whole.severity, whole.figures) == (Severity.OK, {"servers": 3.0})
    assert whole.text.count("leader") == 1
    alone = found(f"zk://{ensemble.servers[0].address}/locks")["ensemble"]
    assert alone.severity is Severity.WARNING
    assert "names one server" in alone.text
    down = next(one for one in ensemble.servers if one is not ensemble.leader())
    down.kill()

    def told() -> bool:
        findings = {finding.check: finding for finding in examination(target_of(url), LIMIT)}
        return "servers" in findings and down.address in findings["servers"].text

    until(told)
