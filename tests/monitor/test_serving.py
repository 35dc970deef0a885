"""Connections whose clients ask or read too slowly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from lockstead.cli.main import call
from lockstead.monitor import serving
from lockstead.reaper.web import Server

LIMIT = 20.0
"""Seconds; for a broken build, not for a slow machine."""

ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TAKES", 0.2)


@asynccontextmanager
async def served(app: Callable[..., Awaitable[None]]) -> AsyncGenerator[tuple[uvicorn.Server, int]]:
    """Serve an application; yield the server and its port."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        config = uvicorn.Config(app, http=serving.Connection, lifespan="off", log_config=None, timeout_keep_alive=60)
        server = uvicorn.Server(config)
        running = asyncio.ensure_future(server._serve([bound]))
        try:
            yield server, bound.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await running


async def _reads(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _says_much(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(20_000_000)})


async def _streams(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(100):
        await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})


async def _ended(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LIMIT):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        ASKED[:-2],
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbeg",
        ASKED,
        ASKED + b"GET",
    ],
)
def test_a_client_that_asks_nothing_more_is_cut_off(sent: bytes) -> None:
    async def body() -> None:
        async with served(_reads) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            said = await _ended(reader)
            assert said.endswith(b"ok") == sent.startswith(ASKED)
            assert not server.server_state.connections
            writer.close()

    asyncio.run(body())


@pytest.mark.parametrize("app", [_says_much, _streams])
def test_a_client_that_does_not_read_is_cut_off(app: Callable[..., Awaitable[None]]) -> None:
    async def body() -> None:
        async with served(app) as (server, port):
            with socket.socket() as wire:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                wire.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(wire, ("127.0.0.1", port))
                await loop.sock_sendall(wire, ASKED)
                async with asyncio.timeout(LIMIT):
                    while not server.server_state.total_requests and not server.server_state.tasks:  # noqa: ASYNC110 - uvicorn tells nobody
                        await asyncio.sleep(0.005)
                    while server.server_state.connections:  # noqa: ASYNC110 - the same
                        await asyncio.sleep(0.005)

    asyncio.run(body())


def test_an_answer_may_take_any_time() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        late = asyncio.Event()
        asyncio.get_running_loop().call_later(5 * serving.TAKES, late.set)
        await late.wait()
        await _reads(scope, receive, send)

    async def body() -> None:
        async with served(slow) as (_server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED)
            assert (await _ended(reader)).endswith(b"ok")
            writer.close()

    asyncio.run(body())


def test_both_servers_cut_off_slow_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Any] = [Server(_reads).config.http]  # type: ignore[arg-type]  # it is not asked
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, **_: kinds.append(self.config.http))
    assert call(["dashboard", f"sqlite:///{tmp_path}/locks.db", "--listen", "127.0.0.1:0"]) == 0
    assert kinds == [serving.Connection, serving.Connection]
