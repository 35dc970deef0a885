"""A process that ends right after its section leaves nothing half written, and says nothing at its exit."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prefect import task_runners

from tests.prefect.real.seen import asked
from tests.servers.prefect import PrefectServer, started

LATE = 2.0
"""Seconds by which the artifact is late: more than a run needs from the end of its section to its next state."""

NOISE = re.compile(r"Traceback|Exception ignored|Warning|WARNING|ERROR|Fatal Python error|cannot report to Prefect")


class Slow:
    """Stands before Prefect's server, and lets a request that writes an artifact through later."""

    def __init__(self, server: PrefectServer) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/api"
        self.seen: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # a close alone does not wake the thread that accepts
        self._listening.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError), self._listening:
            while True:
                client, _ = self._listening.accept()
                host, _, port = self._server.address.partition(":")
                behind = socket.create_connection((host, int(port)))
                for one, other in ((client, behind), (behind, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one:
            while data := one.recv(65536):
                head = data.partition(b"\r\n")[0]
                if b"/set_state " in head:
                    self.seen.append("state")
                if is_held := head.startswith(b"POST /api/artifacts/"):
                    self.seen.append("asked")
                    time.sleep(LATE)
                other.sendall(data)
                if is_held:
                    self.seen.append("passed on")
            other.shutdown(socket.SHUT_WR)


@pytest.fixture
def slow(server: PrefectServer) -> Iterator[Slow]:
    made = Slow(server)
    yield made
    made.close()


@pytest.mark.parametrize("where", ["alone", "pooled"])
def test_an_exiting_process_has_written_its_artifact_silently(
    server: PrefectServer, slow: Slow, tmp_path: Path, where: str
):
    if where == "pooled" and not hasattr(task_runners, "ProcessPoolTaskRunner"):
        pytest.skip("this Prefect has no ProcessPoolTaskRunner")
    key = tmp_path.name.replace("_", "-")
    settings = {"TEST_LOCK": f"sqlite:///{tmp_path}/locks.db#{key}", "PREFECT_API_URL": slow.url}
    with started(["-m", "tests.prefect.real.exiting", where], tmp_path / "home", server, settings) as program:
        said, _ = program.communicate(timeout=300)
    assert program.returncode == 0, said
    # the run waited for its artifact before it told of its end
    assert slow.seen.count("asked") == 1, said
    asked_at = slow.seen.index("asked")
    assert slow.seen[asked_at : asked_at + 3] == ["asked", "passed on", "state"]
    assert not NOISE.search(said), said
    words: dict[str, Any] = {"artifacts": {"key": {"any_": ["lockstead-lease"]}}}
    found = [one["data"] for one in asked(server, "POST", "/artifacts/filter", json=words)]
    assert [one for one in found if f"| key | `{key}` |" in one], f"no artifact: {said}"
