"""The life of the server: start, stop, restart, out of reach, from another process, and for very many clients."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from gcs_emulator import GcsServer
from tests.stores.gcs.server.conftest import ELSEWHERE
from tests.stores.gcs.server.driver import Driver

PATIENCE = 10.0
DESCRIPTORS = 2500  # both ends of a thousand connections, and some room


def test_the_log_tells_what_was_asked(server: GcsServer, own: Driver) -> None:
    own.insert("a", {"ifGenerationMatch": "0"})
    own.insert("a", {"ifGenerationMatch": "0"})
    own.patch("a")
    own.get("a")
    own.listing()
    own.content("a")
    own.plain("a")
    own.delete("a")
    own.get("b")
    assert server.requests.counts() == {
        "insert": 2, "patch": 1, "get": 2, "list": 1, "media": 1, "read": 1, "delete": 1,
    }  # fmt: skip
    assert server.requests.count("mutation") == 4
    assert server.requests.count("get", "b") == 1
    assert server.requests.count("insert", status=412) == 1
    first = server.requests.all()[0]
    assert (first.method, first.bucket, first.name, first.status) == ("POST", "bucket", "a", 200)
    assert first.path == "/upload/storage/v1/b/bucket/o"
    assert first.query["ifGenerationMatch"] == "0"
    server.requests.clear()
    assert len(server.requests) == 0


def test_the_log_can_be_waited_for(server: GcsServer, own: Driver) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.requests.wait_for, 2, "get", "lock", timeout=PATIENCE)
        own.get("lock")
        own.get("lock")
        assert waiting.result(PATIENCE)
    assert not server.requests.wait_for(3, "get", timeout=0.01)


def test_stop_is_fast_with_requests_that_hang_and_never_commits_them(server: GcsServer, own: Driver) -> None:
    hang = server.faults.inject("hang", name="hang", times=None)
    stall = server.faults.inject("stall", name="stall", times=None)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(own.insert, name) for name in ("hang", "stall") * 4]
        assert hang.wait_for_hit(4)
        assert stall.wait_for_hit(4)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 2
        for one in asked:
            with pytest.raises(httpx.TransportError):
                one.result(PATIENCE)
    assert not server.objects("bucket")
    assert (hang.waiting, stall.waiting) == (0, 0)


def test_restart_keeps_port_and_objects_and_breaks_connections(server: GcsServer, own: Driver) -> None:
    generation = own.insert("lock").json()["generation"]
    url = server.url
    for _ in range(5):
        server.restart()
    assert server.url == url
    with httpx.Client(base_url=url) as http:
        assert Driver(http, "bucket").get("lock").json()["generation"] == generation
        assert Driver(http, "bucket").delete("lock", {"ifGenerationMatch": generation}).status_code == 204


def test_a_paused_server_refuses_connections(server: GcsServer, own: Driver) -> None:
    own.insert("lock")
    server.pause()
    with pytest.raises(httpx.TransportError):
        own.get("lock")
    with pytest.raises(httpx.ConnectError):
        own.get("lock")
    server.resume()
    assert own.get("lock").status_code == 200


def test_a_black_hole_swallows_requests(server: GcsServer, own: Driver) -> None:
    own.insert("lock")
    server.pause("hang")
    server.requests.clear()
    own.http.timeout = httpx.Timeout(30, read=0.05)
    with pytest.raises(httpx.ReadTimeout):
        own.delete("lock")
    assert server.requests.wait_for(1, "delete")
    server.resume()
    own.http.timeout = httpx.Timeout(30)
    assert own.get("lock").status_code == 200
    server.stop()
    assert "lock" in server.objects("bucket")


def test_a_paused_server_can_be_stopped_and_started(server: GcsServer) -> None:
    port = server.port
    for how in ("refuse", "hang"):
        server.pause(how)
        server.stop()
        server.start()
        assert httpx.get(f"http://127.0.0.1:{port}/storage/v1/b/bucket").status_code == 200
    with pytest.raises(ValueError, match="how"):
        server.pause("nothing")


def test_connections_are_kept_and_answers_not_delayed(server: GcsServer, own: Driver) -> None:
    own.get("warm")
    began = time.monotonic()
    for _ in range(50):
        own.insert("lock")
        own.delete("lock")
    # Delayed acknowledgements would cost 40 ms each, so 4 s in all.
    assert time.monotonic() - began < 3


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS:
        if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
            pytest.skip(f"a process may open {hard} files here, {DESCRIPTORS} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_clients_are_connected_at_once(server: GcsServer) -> None:
    request = b"GET /storage/v1/b/bucket/o/lock HTTP/1.1\r\nHost: x\r\n\r\n"
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE)) for _ in range(1000)
        ]
        for client in clients:
            client.sendall(request)
        assert all(client.recv(64).startswith(b"HTTP/1.1 404") for client in clients)
    assert server.requests.count("get") == 1000


def test_who_does_not_speak_http_is_refused(server: GcsServer) -> None:
    for nonsense in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x00\xff\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
            client.sendall(nonsense)
            assert client.recv(64).startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{server.url}/storage/v1/b/bucket").status_code == 200


@pytest.fixture(scope="module")
def standalone() -> Iterator[httpx.Client]:
    if ELSEWHERE:
        pytest.skip("STORAGE_EMULATOR_HOST is set: faults can only be injected into our own server")
    command = [sys.executable, "-m", "gcs_emulator", "--bucket", "bucket", "--bucket", "other"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", line)
            with httpx.Client(base_url=line.strip(), timeout=30) as http:
                yield http
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


def test_a_server_of_its_own_takes_faults_over_http(standalone: httpx.Client) -> None:
    driver = Driver(standalone, "bucket")
    assert Driver(standalone, "other").names() == []
    fault = standalone.post("/_faults", json={"action": "fail", "kind": "insert", "name": "locks/*", "status": 429})
    number = fault.json()["number"]
    assert driver.insert("locks/a").status_code == 429
    assert driver.insert("locks/a").status_code == 200
    assert standalone.get("/_faults").json()["faults"][0]["hits"] == 1
    stalled = standalone.post("/_faults", json={"action": "stall", "kind": "delete"}).json()["number"]
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=standalone.base_url, timeout=30) as second:
        asked = pool.submit(Driver(second, "bucket").delete, "locks/a")
        until = time.monotonic() + PATIENCE
        while not any(one["waiting"] for one in standalone.get("/_faults").json()["faults"]):
            assert time.monotonic() < until
        assert driver.get("locks/a").status_code == 200
        standalone.post(f"/_faults/{stalled}/release").raise_for_status()
        assert asked.result(PATIENCE).status_code == 204
    standalone.delete(f"/_faults/{number}").raise_for_status()
    standalone.delete("/_faults").raise_for_status()
    assert standalone.get("/_faults").json() == {"faults": []}


def test_a_server_of_its_own_tells_its_log_over_http(standalone: httpx.Client) -> None:
    standalone.delete("/_requests").raise_for_status()
    Driver(standalone, "bucket").get("absent")
    lines = standalone.get("/_requests").json()["requests"]
    assert [(line["kind"], line["name"], line["status"]) for line in lines] == [("get", "absent", 404)]


def test_a_server_of_its_own_takes_settings_over_http(standalone: httpx.Client) -> None:
    driver = Driver(standalone, "bucket")
    standalone.patch("/_settings", json={"one_mutation_per_second": True, "mutation_gap": 3600}).raise_for_status()
    assert standalone.get("/_settings").json()["mutation_gap"] == 3600
    assert driver.insert("lock").status_code == 200
    assert driver.patch("lock").status_code == 429
    standalone.delete("/_faults").raise_for_status()
    assert driver.delete("lock").status_code == 204
    wrong: tuple[dict[str, object], ...] = ({"latency": "much"}, {"nothing": 1}, {"hides_date": 1})
    assert [standalone.patch("/_settings", json=one).status_code for one in wrong] == [400] * 3
    faults: tuple[dict[str, object], ...] = (
        {"action": "nothing"},
        {"action": "fail", "status": 200},
        {"action": "fail", "colour": "red"},
        {},
    )
    assert [standalone.post("/_faults", json=one).status_code for one in faults] == [400] * 4
    assert standalone.get("/_nothing").status_code == 404


def test_a_server_of_its_own_can_be_paused_over_http(standalone: httpx.Client) -> None:
    standalone.post("/_pause", json={"seconds": 0.2}).raise_for_status()
    was_refused = False
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            standalone.get("/storage/v1/b/bucket").raise_for_status()
        except httpx.TransportError:
            was_refused = True
        else:
            if was_refused:
                break
    assert was_refused
    assert standalone.get("/storage/v1/b/bucket").status_code == 200
