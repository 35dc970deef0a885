"""The command: what it refuses, each in one line; and the served pages, asked by HTTP."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import lockstead
from lockstead.cli.main import call
from lockstead.dashboard import create_app
from tests.dashboard.scene import DashboardServer
from tests.surface.test_pages import blocks

STORE = "sqlite:///locks.db"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def token(mode: int, text: str = "a-token-of-some-length\n") -> str:
    path = Path("token")
    path.touch(mode)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return code and message of a command line that serves nothing."""
    code = call(["dashboard", *words])
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 1, err
    return code, lines[0].removeprefix("lockstead: ")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nothing://x"], 64, "nothing"),
        (["memory:"], 64, "private to one process"),
        (["sqlite:////absent/locks.db"], 69, "there is no folder /absent; create it"),
        ([STORE, STORE], 64, "the store sqlite:///"),
        ([STORE, "--listen", "8123"], 64, "an address is HOST:PORT"),
        ([STORE, "--listen", "0.0.0.0:0"], 64, "other machines can reach 0.0.0.0:0: add --token-file"),
        ([STORE, "--listen", "[::]:0"], 64, "other machines can reach [::]:0: add --token-file"),
        ([STORE, "--listen", "locks.example:0"], 64, "other machines can reach locks.example:0"),
        ([STORE, "--every", "soon"], 64, "'soon' is not a duration"),
        ([STORE, "--every", "1ms"], 64, "--every is at least 0.2 s"),
        ([STORE, "--lock-label", "=x"], 64, "a lock label is PATTERN=NAME"),
        ([STORE, "--token-file", "absent"], 64, "the token file 'absent' cannot be read"),
        ([STORE, "--history", "absent/seen.db"], 64, "the history 'absent/seen.db' cannot be opened"),
        ([], 64, "Missing argument 'URL...'"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    words: list[str], code: int, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if STORE in words:
        sqlite3.connect("locks.db").close()
        lockstead.Lock(f"{STORE}#apt").acquire(0).release()
    refusal = refused(capfd, *words)
    assert refusal[0] == code, refusal
    assert says in refusal[1]


def test_without_its_extra_command_and_application_say_what_to_install() -> None:
    blocked = "import sys; sys.modules['starlette'] = None; "
    serves = f"from lockstead.cli.main import call; sys.exit(call(['dashboard', {STORE!r}]))"
    done = subprocess.run([sys.executable, "-c", blocked + serves], capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert done.stderr == "lockstead: the dashboard needs starlette: pip install 'lockstead[cli,dashboard]'\n"
    mounts = "from lockstead.dashboard import create_app"
    done = subprocess.run([sys.executable, "-c", blocked + mounts], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("the dashboard needs starlette: pip install 'lockstead[dashboard]'\n")


@pytest.mark.parametrize("option", ["--token-file", "--admin-token-file"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_token_that_others_can_read_is_refused(option: str, mode: int, capfd: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capfd, STORE, option, token(mode))
    assert code == 64
    assert said == "the token file 'token' is open to other users: chmod 600 'token'"


def test_a_short_token_is_refused_and_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capfd, STORE, "--token-file", token(0o600, "secret-7\n"))
    assert code == 64
    assert "secret-7" not in said


def test_a_port_in_use_and_a_history_in_use_are_one_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lockstead.Lock(f"{STORE}#apt").acquire(0).release()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = refused(capfd, STORE, "--listen", address)
        assert (code, said) == (
            64,
            f"cannot listen at {address}: Address already in use; choose another address (--listen)",
        )
    with DashboardServer(tmp_path, STORE, "--history", "seen.db"):
        code, said = refused(capfd, STORE, "--listen", "127.0.0.1:0", "--history", "seen.db")
        assert (code, said) == (64, "another dashboard uses the history 'seen.db': give each a file of its own")


# --- served ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[DashboardServer]:
    with DashboardServer(tmp_path, STORE) as server:
        yield server


def test_it_serves_streams_and_ends_cleanly_while_pages_are_open(served: DashboardServer) -> None:
    assert served.process is not None
    with lockstead.Lock(f"sqlite:///{served.directory}/locks.db#apt", owner="ci-7").hold(0):
        with httpx.Client(base_url=served.site) as client:
            assert "ci-7" in client.get("/").text
            with client.stream("GET", "/events") as events:
                assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
                lines = events.iter_lines()
                assert next(lines) == "event: list"
                served.process.send_signal(signal.SIGTERM)
                assert list(lines) != []
    assert served.process.wait(10) == 0
    log = served.log()
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_a_page_that_was_closed_is_noticed(served: DashboardServer) -> None:
    """More pages than may be open at once, one after the other."""
    with httpx.Client(base_url=served.site) as client:
        for _ in range(210):
            with client.stream("GET", "/events") as events:
                assert events.status_code == 200
                next(events.iter_lines())
    assert "Traceback" not in served.log()


def test_a_request_that_is_none_ends_nothing(served: DashboardServer) -> None:
    for sent in (
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"x" * 100_000,
    ):
        with closing(socket.create_connection(("127.0.0.1", served.port), timeout=10)) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
            assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer
    assert httpx.get(f"{served.site}/healthz").text == "ok\n"


def test_the_page_of_the_documentation_serves_as_printed(tmp_path: Path) -> None:
    """Each command of the page, on a free port."""
    printed = [
        line.removeprefix("$ ")
        for block in blocks("docs/dashboard.md")
        for line in block.text.splitlines()
        if line.startswith("$ ")
    ]
    assert [line.split()[0] for line in printed] == ["lockstead", "(umask", "lockstead"]
    prepares, served = [line for line in printed if line[0] == "("], [line for line in printed if line[0] == "l"]
    for line in served:
        script = "; ".join([*prepares, f"exec {Path(sys.executable).parent}/{line}"])
        with Printed(tmp_path, script) as server:
            assert "<title>" in httpx.get(server.site).text


class Printed(DashboardServer):
    """The dashboard as a line of a shell starts it."""

    def __init__(self, directory: Path, line: str) -> None:
        super().__init__(directory)
        self._line = line

    def command(self) -> list[str]:
        """Return the command line."""
        return ["bash", "-c", f"set -eu; {re.sub(r'$', f' --listen {self.address}', self._line)}"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"admin_token": "token"}, ValueError, "^admin_token is the token itself, of 16 to 1024 printable ASCII"),
        ({"token": ""}, ValueError, "^token is the token itself, of 16 to 1024"),
        ({"every": 0}, ValueError, "^every is a number of seconds above 0, not 0$"),
        ({"every": "5s"}, TypeError, "not supported"),
    ],
)
def test_an_application_refuses_what_the_command_refuses(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_app(["memory:"], **given)


def test_an_application_wants_a_list_of_stores() -> None:
    with pytest.raises(TypeError, match=r"^stores is a list of URLs or clients"):
        create_app("memory:")
