"""HTTP connections of an event loop: how a name is looked up, and which of its addresses are tried."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Any

import pytest

from gcs_emulator import GcsServer
from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Absent, Read
from lockstead.stores import url
from lockstead.stores.http import _in_turn
from lockstead.stores.port import AsyncStore
from lockstead.values import Name

SILENT_NAMES = """
import asyncio, os, socket, sys, threading
from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Read
from lockstead.stores import url
from lockstead.values import Name

def silent(*args, flags=0, **kwargs):
    if flags & socket.AI_NUMERICHOST:
        raise socket.gaierror("not a number")
    threading.Event().wait()

socket.getaddrinfo = silent
os.environ["STORAGE_EMULATOR_HOST"] = "http://gcs.example:9"
store = url.open_store(sys.argv[1])
try:
    asyncio.run(store.aperform(Read(Name("apt")), 0.5))
except StoreUnavailable as error:
    print("unavailable")
"""


@pytest.mark.parametrize("store", ["etcd://etcd.example:2379/locks", "gs://bucket/locks"])
def test_a_silent_name_server_does_not_delay_closing_a_loop(store: str) -> None:
    # a thread that the loop or the exit joins would take for ever
    ended = subprocess.run(
        [sys.executable, "-c", SILENT_NAMES, store], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout == "unavailable\n"


def test_the_next_address_of_a_name_is_tried_if_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    system = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: Any, **hints: Any) -> list[Any]:
        if host != "gcs.example" or hints.get("flags"):
            return system(host, port, *args, **hints)
        return [found for address in ("127.0.0.9", "127.0.0.1") for found in system(address, port, *args, **hints)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with GcsServer(buckets=["bucket"]) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url.replace("127.0.0.1", "gcs.example"))
        store = url.open_store("gs://bucket/locks")
        assert isinstance(store, AsyncStore)
        assert isinstance(asyncio.run(store.aperform(Read(Name("apt")), 30.0)), Absent)


def test_a_name_that_cannot_be_looked_up_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{'a' * 64}.example:9")
    store = url.open_store("gs://bucket/locks")
    assert isinstance(store, AsyncStore)
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.aperform(Read(Name("apt")), 30.0))


def test_both_families_of_addresses_are_tried_in_turn() -> None:
    six, four = socket.AF_INET6, socket.AF_INET
    found = [(six, 0, 0, "", ("a", 1, 0, 0)), (six, 0, 0, "", ("b", 1, 0, 0)), (four, 0, 0, "", ("c", 1))]
    assert _in_turn(found) == ["a", "c", "b"]
