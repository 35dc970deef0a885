"""Diagnosis of a missing session: asks each server by the command that is enabled by default (`srvr`).

Must not know sessions or records.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds, dialled

if TYPE_CHECKING:
    from lockstead.stores.zookeeper.url import Target

_SRVR: Final = b"Zookeeper version:"
_NOT_SERVING: Final = b"not currently serving"
_NOT_LISTED: Final = b"not in the whitelist"
_BEGINNINGS: Final = (_SRVR, b"This ZooKeeper instance is not currently serving", b"srvr is not executed because")
"""How a ZooKeeper's answer begins, of which a slow network may have brought only a part."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of one server, or why there is none.

    kind is one of "serves", "no quorum", "mute", "foreign", "refused", "tls".
    """

    host: str
    kind: str
    text: str = ""


def diagnose(target: Target, limit: float) -> StoreError:
    """Query each server of a store, within `limit` seconds in all, and return an error with a one-line diagnosis."""
    replies = [query(target, host, limit / len(target.hosts)) for host in target.endpoints]
    hosts = ",".join(target.endpoints)
    kinds = {one.kind for one in replies}
    if "serves" in kinds:
        return StoreUnavailable(f"no session with the ZooKeeper at {hosts} within the limit, although it serves")
    if "no quorum" in kinds:
        return StoreUnavailable(
            f"the ZooKeeper at {hosts} does not serve: a majority of its servers is not running, or none leads yet"
        )
    if "tls" in kinds:
        why = next(one.text for one in replies if one.kind == "tls")
        return StoreRefused(f"no TLS with the ZooKeeper at {hosts}: {why}; see tls=, ca=, cert= and key= in the URL")
    if "foreign" in kinds:
        host = next(one.host for one in replies if one.kind == "foreign")
        return StoreRefused(
            f"the server at {host} is not ZooKeeper; check the port, and whether it requires TLS (tls=true)"
        )
    if "mute" in kinds:
        return StoreUnavailable(
            f"{hosts} accepts connections but does not answer like ZooKeeper: it hangs, does not serve yet, is another "
            "server, or requires TLS (tls=true)"
        )
    return StoreUnavailable(f"no response from {hosts}: {replies[0].text}")


def query(target: Target, host: str, limit: float, word: bytes = b"srvr") -> Reply:
    """Send `srvr` or another four-letter command to one server, within `limit` seconds; the reply is in `text`."""
    bounds = Bounds(limit)
    name, _, port = host.rpartition(":")
    try:
        tls = target.tls_context() if target.tls else None
        with dialled(name.strip("[]"), int(port), bounds, tls) as connection:
            return _reply(host, connection, bounds, word)
    except ssl.SSLError as error:
        return Reply(host, "tls", str(error.reason or error))
    except OSError as error:
        return Reply(host, "refused", error.strerror or str(error))


def _reply(host: str, connection: socket.socket, bounds: Bounds, word: bytes) -> Reply:
    received = b""
    try:
        connection.sendall(word)
        while len(received) < 4096:
            connection.settimeout(bounds.left())
            piece = connection.recv(4096)
            if not piece:
                break
            received += piece
    except OSError:
        pass
    text = received.decode("utf-8", "replace")
    if received.startswith(_SRVR):
        return Reply(host, "serves", text)
    if _NOT_SERVING in received:
        return Reply(host, "no quorum", text)
    if _NOT_LISTED in received or any(whole.startswith(received) for whole in _BEGINNINGS):
        return Reply(host, "mute", text)
    return Reply(host, "foreign", text)
