"""Alerts: what they say, and that their delivery is bounded, retried, safe from records, and silent about secrets."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from lockstead.cli.schemas import ALERT, document
from lockstead.reaper import alerts
from lockstead.reaper.alerts import (
    QUEUED_MAX,
    TRIES,
    Alert,
    Command,
    Failed,
    Outlet,
    Unsuited,
    Webhook,
    parse_command,
    shown_address,
)
from tests.reaper.test_rules import NOW, lease
from tests.runtime.faulty import until
from tests.servers.redis import certificate

SECRET = "hunter2"
HOSTILE = "$(touch hacked)`touch hacked`;\x1b[31m\n\u202e<script>\x00é" + "x" * 5000


def alert(event: str = "overdue", number: int = 1, **more: Any) -> Alert:
    return Alert(event, "memory:", lease(alert_epoch=NOW, **more), "other", number, NOW + 5, "lockstead reap r1")


def hostile() -> Alert:
    texts = dict.fromkeys(("owner", "holder", "purpose", "progress", "value", "host", "where", "backtrace"), HOSTILE)
    return alert(**texts, key=HOSTILE[:200], labels={HOSTILE: HOSTILE, "url": "javascript:alert(1)"})


def in_loop(job: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await job()

    asyncio.run(limited())


# --- what is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [alert(), alert("unlocked", mode="permit/3"), hostile()], ids=["plain", "full", "odd"])
def test_an_alert_is_what_its_schema_says_on_one_line_of_ascii(made: Alert) -> None:
    body = made.body()
    assert body.isascii()
    assert body.count(b"\n") == 1
    Draft202012Validator(document("alert")).validate(json.loads(body))
    assert list(json.loads(body)) == list(ALERT["properties"])


def test_a_repetition_by_another_reaper_has_the_same_id_and_another_alert_another() -> None:
    one = alert().facts()["id"]
    later = Alert("overdue", "memory:", lease(alert_epoch=NOW), "apt", 1, NOW + 99, "lockstead reap r2")
    assert later.facts()["id"] == one
    others = [alert("unlocked"), alert(number=2), alert(incarnation="8"), alert(key="yum"), alert(mode="permit/1")]
    assert len({one, *(other.facts()["id"] for other in others)}) == 6


def test_what_a_command_gets_from_a_record_is_short_printable_and_no_link_that_runs() -> None:
    said = hostile().environment()
    assert all("\0" not in text and "\n" not in text and "\x1b" not in text for text in said.values())
    assert all(len(text) <= 1000 for text in said.values())
    assert said["LOCKSTEAD_URL"] == ""
    assert set(said) == {f"LOCKSTEAD_{name.upper()}" for name in alert().facts()} - {
        "LOCKSTEAD_LABELS",
        "LOCKSTEAD_BACKTRACE",
    }


# --- queues ---------------------------------------------------------------------------------------------------------


def test_an_alert_that_failed_is_tried_again_with_growing_pauses_and_then_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def job() -> None:
        pauses: list[float] = []
        tried: list[int] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        async def deliver(_alert: Alert) -> None:
            tried.append(1)
            raise Failed("status 503")

        first = asyncio.Event()
        outlet = Outlet("hook", deliver, 1, chance=lambda: 0.5, sleep=sleep)
        outlet.start()
        outlet.submit(alert(), first.set)
        await outlet.tried()
        assert first.is_set()
        assert (len(tried), pauses) == (TRIES, [1, 2, 4, 8])
        assert outlet.facts() == {"queued": 0, "delivered": 0, "failed": 1, "dropped": 0}
        await outlet.flush(1)

    in_loop(job)
    assert [record.message for record in caplog.records] == ["hook: the alert on 'apt' was not delivered: status 503"]


@pytest.mark.parametrize("error", [Unsuited("status 400"), ValueError(SECRET)])
def test_what_was_refused_is_not_tried_again_and_an_unknown_error_stops_no_worker(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> None:
        told: list[Alert] = []

        async def deliver(one: Alert) -> None:
            told.append(one)
            if len(told) == 1:
                raise error

        async def sleep(_seconds: float) -> None:
            return

        outlet = Outlet("hook", deliver, 1, sleep=sleep)
        outlet.start()
        for _ in range(2):
            outlet.submit(alert(), lambda: None)
        await outlet.tried()
        assert outlet.delivered == (1 if isinstance(error, Unsuited) else 2)
        await outlet.flush(1)

    in_loop(job)
    assert SECRET not in caplog.text


def test_a_receiver_that_hangs_fills_a_bounded_queue_and_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def job() -> None:
        async def hang(_alert: Alert) -> None:
            await asyncio.Event().wait()

        tried: list[int] = []
        outlet = Outlet("hook", hang, 2)
        outlet.start()
        outlet.start()
        await asyncio.sleep(0)
        for number in range(QUEUED_MAX + 10):
            outlet.submit(alert(), lambda number=number: tried.append(number))
        assert outlet.facts() == {"queued": QUEUED_MAX, "delivered": 0, "failed": 0, "dropped": 10}
        assert tried == list(range(QUEUED_MAX, QUEUED_MAX + 10)), "a dropped alert was tried"
        await outlet.flush(0.01)

    in_loop(job)
    assert [record.message for record in caplog.records] == [
        "hook: 1 alerts dropped: it is slower than they come",
        f"hook: {QUEUED_MAX - 2} alerts were not delivered",
    ]


# --- by webhook -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://{SECRET}:{SECRET}@hooks.example/{SECRET}?token={SECRET}", "https://hooks.example"),
        (f"http://[::1]:8080/{SECRET}", "http://[::1]:8080"),
        (f"https://bücher.example/{SECRET}", "https://xn--bcher-kva.example"),
    ],
)
def test_of_a_webhook_only_scheme_and_host_are_shown(url: str, shown: str) -> None:
    assert shown_address(url) == shown
    assert Webhook(url).name == f"webhook {shown}"


@pytest.mark.parametrize(
    "url", ["", SECRET, f"ftp://{SECRET}", "https://", f"https://h:{SECRET}/", f"https://a b/{SECRET}", "https://h/\n"]
)
def test_what_is_no_webhook_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^--webhook needs the URL of a webhook: https://HOST/PATH$"):
        shown_address(url)


def posted(answer: Callable[[httpx.Request], httpx.Response], url: str = "https://hooks.example/x") -> httpx.Request:
    """Post one alert; return the request."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer(request)

    async def job() -> None:
        hook = Webhook(url, transport=httpx.MockTransport(handle))
        try:
            await hook.deliver(alert())
        finally:
            await hook.close()

    in_loop(job)
    (request,) = seen
    return request


def test_a_webhook_gets_one_post_of_json() -> None:
    request = posted(lambda _request: httpx.Response(204))
    assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
    assert json.loads(request.content)["event"] == "overdue"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(301, Unsuited), (400, Unsuited), (404, Unsuited), (408, Failed), (429, Failed), (500, Failed), (503, Failed)],
)
def test_a_status_says_whether_another_try_helps_and_no_redirect_is_followed(status: int, kind: type) -> None:
    headers = {"Location": "https://elsewhere.example/"}
    with pytest.raises(kind, match=rf"^status {status}$"):
        posted(lambda _request: httpx.Response(status, headers=headers))


def test_an_error_of_the_client_library_repeats_nothing_of_the_address() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot reach {request.url}: CERTIFICATE_VERIFY_FAILED")

    with pytest.raises(Failed) as failed:
        posted(fail, f"https://hooks.example/{SECRET}")
    assert str(failed.value) == "ConnectError: its certificate is not trusted"


def test_a_webhook_that_sends_nothing_or_endlessly_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "WEBHOOK_TAKES", 0.3)

    async def job() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = (await reader.readline()).split()[1]
            try:
                if path == b"/endless":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
                    while not ended.is_set():
                        writer.write(b"x" * 65536)
                        await writer.drain()
                else:
                    await ended.wait()
            except ConnectionError:
                pass
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            endless, silent = Webhook(f"{base}/endless"), Webhook(f"{base}/silent")
            await endless.deliver(alert())
            with pytest.raises(Failed, match=r"^(no answer within 0\.3 s|ReadTimeout)$"):
                await silent.deliver(alert())
            await endless.close()
            await silent.close()
            ended.set()

    in_loop(job)


def test_a_certificate_that_nobody_trusts_is_refused(tmp_path: Path) -> None:
    made, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    reached: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(100))
        writer.close()

    async def job() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
            hook = Webhook(f"https://localhost:{server.sockets[0].getsockname()[1]}/")
            with pytest.raises(Failed, match=r"^ConnectError: its certificate is not trusted$"):
                await hook.deliver(alert())
            await hook.close()

    in_loop(job)
    assert reached == []


# --- by command -----------------------------------------------------------------------------------------------------


def runs(script: str, tmp_path: Path, one: Alert | None = None, *arguments: str) -> None:
    (tmp_path / "told.py").write_text(textwrap.dedent(script))
    words = parse_command(f"{sys.executable} {tmp_path / 'told.py'} {' '.join(arguments)}")

    async def job() -> None:
        await Command(words, {"PATH": os.environ["PATH"], "OUT": str(tmp_path)}).deliver(one or alert())

    in_loop(job)


def test_a_command_gets_json_and_environment_and_no_argument_of_a_record(tmp_path: Path) -> None:
    script = """
        import json, os, sys
        said = {"arguments": sys.argv[1:], "input": json.load(sys.stdin), "key": os.environ["LOCKSTEAD_KEY"]}
        with open(os.environ["OUT"] + "/said", "w") as file:
            json.dump(said, file)
    """
    runs(script, tmp_path, hostile(), "'$HOME;'")
    said = json.loads((tmp_path / "said").read_text())
    assert said["arguments"] == ["$HOME;"]
    assert said["input"] == hostile().facts()
    assert said["key"].startswith("$(touch hacked)`touch hacked`;")
    assert not (tmp_path / "hacked").exists()


def test_a_command_that_ignores_its_input_or_fails_is_told_by_its_code(tmp_path: Path) -> None:
    runs("", tmp_path)
    with pytest.raises(Failed, match=r"^exit code 3$"):
        runs("raise SystemExit(3)", tmp_path)


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "COMMAND_TAKES", 3.0)
    monkeypatch.setattr(alerts, "KILLED_AFTER", 0.3)
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child:
            with open(os.environ["OUT"] + "/pids", "w") as file:
                file.write(f"{os.getpid()} {child}")
        time.sleep(600)
    """
    with pytest.raises(Failed, match=r"^it did not end within 3 s, and was killed$"):
        runs(script, tmp_path)
    for pid in (tmp_path / "pids").read_text().split():
        until(lambda pid=pid: _is_gone(pid))


def _is_gone(pid: str) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "--exec is empty"),
        ("'unclosed", "--exec is not a command: no closing quotation"),
        ("no-such-program --x", "--exec: 'no-such-program' is not found"),
    ],
)
def test_what_is_no_command_is_refused_at_the_start(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^{why}"):
        parse_command(text)
