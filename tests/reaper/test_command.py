"""The command `lockstead reap`: bad input is one line, and it serves what it knows by HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import lockstead
from lockstead.cli.main import call
from tests.cli.shell import PROGRAM

TOKEN = "0123456789abcdef0123"
SECRET = "hunter2"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["{url}", "--webhook", f"ftp://{SECRET}"], 64, "--webhook needs the URL of a webhook: https://HOST/PATH"),
        (["{url}", "--webhook", "env:NOT_SET"], 64, "--webhook: env:NOT_SET cannot be read, or holds nothing"),
        (["{url}", "--webhook", "file:{tmp}/open"], 64, "may hold a secret and every user of this machine may read it"),
        (["{url}", "--exec", "no-such-program"], 64, "--exec: 'no-such-program' is not found"),
        (["{url}", "--listen", "9095"], 64, "an address is HOST:PORT"),
        (["{url}", "--listen", "127.0.0.1:{port}"], 64, "Address already in use"),
        (
            ["{url}", "--listen", "0.0.0.0:0"],
            64,
            "other machines can reach 0.0.0.0:0: add --token-file, or --anonymous",
        ),
        (["{url}", "--listen", "127.0.0.1:0", "--token-file", "{tmp}/open"], 64, "is open to other users: chmod 600"),
        (["{url}", "--token-file", "{tmp}/private"], 64, "--token-file and --anonymous are for --listen"),
        (["{url}", "--every", "0.1s"], 64, "--every is at least 1 s"),
        (["{url}", "--repeat", "1s"], 64, "--repeat at least 10 s"),
        (["{url}", "--lock-label", "=x"], 64, "a lock label is PATTERN=NAME"),
        (["{url}#apt"], 64, "the reaper watches a whole store: leave out '#apt'"),
        (["{url}", "{url}"], 64, "a store is named twice"),
        (["nosuch://host"], 64, "nosuch"),
        (["memory:"], 64, "is private to one process"),
        (["{tmp}"], 64, ""),
        ([], 64, "URL"),
        (["file:{tmp}/absent", "--once"], 69, "cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], code: int, line: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mode in (("open", 0o644), ("private", 0o600)):
        (tmp_path / name).write_text(TOKEN)
        (tmp_path / name).chmod(mode)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"url": url, "tmp": str(tmp_path), "port": str(taken.getsockname()[1])}
        assert call(["reap", *(word.format(**given) for word in words)]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert line in said.err
    assert SECRET not in said.err


def test_once_ends_with_75_while_another_reaper_acts(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstead.cli.reap.ONCE_WAITS", 0.2)
    with lockstead.Election(f"{url}#lockstead-reaper").lead():
        assert call(["reap", url, "--once"]) == 75
    assert "another reaper acts; nothing was done" in capsys.readouterr().err


def test_once_goes_through_every_store_and_calls_the_command_for_each_event(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    for store in urls:
        lockstead.Lock(f"{store}#apt", expected=0, auto_unlock_after=0).acquire().detach()
    command = f"sh -c 'cat >> {tmp_path}/told'"
    assert call(["reap", *urls, "--once", "--exec", command]) == 0
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [(one["event"], one["store"]) for one in told] == [
        (event, store) for store in urls for event in ("overdue", "unlocked")
    ]
    for store in urls:
        with lockstead.connect(store) as client:
            assert [entry.what for entry in client.history()] == ["revoked"]


@contextmanager
def reaping(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a reaper that listens; yield its process and its address."""
    with subprocess.Popen(
        [PROGRAM, "reap", *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**os.environ}
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if " is at http://" in line:
                    yield process, line.split()[-1].removesuffix("/metrics")
                    break
            else:
                raise AssertionError("it did not say where it listens")
        finally:
            process.kill()


def got(address: str, token: str | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until_ok(base: str, token: str | None = None) -> dict[str, object]:
    for _ in range(600):
        code, text = got(f"{base}/healthz", token)
        if code == 200:
            return json.loads(text)
    raise AssertionError(text)


def test_it_serves_metrics_and_health_to_who_may_see_them_and_ends_cleanly(url: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    lock = lockstead.Lock(f"{url}#apt", expected=0)
    with lock.hold():
        words = (url, "--listen", "127.0.0.1:0", "--token-file", str(file), "--lock-label", "apt", "--every", "1s")
        with reaping(*words) as (process, base):
            health = until_ok(base, TOKEN)
            (store,) = health["stores"]
            assert (store["store"], store["overdue"], store["error"]) == (url, 1, None)
            assert got(f"{base}/healthz")[1] == '{"status":"ok"}'
            assert got(f"{base}/livez") == (200, "ok\n")
            for token in (None, "", TOKEN[:-1], TOKEN + "x"):
                assert got(f"{base}/metrics", token)[0] == 401
            code, text = got(f"{base}/metrics", TOKEN)
            assert code == 200
            samples = {
                (sample.name, sample.labels.get("lock")): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert samples["lockstead_overdue", "apt"] == 1
            assert got(f"{base}/nothing")[0] == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert lockstead.Election(f"{url}#lockstead-reaper").leader() is None, "it resigned"


def test_a_store_that_is_down_is_shown_and_restarts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    url = f"redis://:{SECRET}@127.0.0.1:{port}/0"
    with reaping(url, "--listen", "127.0.0.1:0", "--every", "1s") as (process, base):
        code, text = 0, ""
        for _ in range(600):
            code, text = got(f"{base}/healthz")
            if json.loads(text)["stores"][0]["error"]:
                break
        assert code == 503
        assert SECRET not in text
        assert got(f"{base}/livez")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
