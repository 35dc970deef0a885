"""How a request leaves for the members of an etcd: to which one, by which connections; and why it got nowhere.

Blocking requests go over sockets of our own (`connection`), awaiting ones over httpcore's; so nothing is sent twice or
led elsewhere. Only what was certainly never sent is offered to the next member. Must not know what is asked, nor who
owns a transport.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd.connection import Sockets, Unanswered, Unsent, connected
from lockstead.stores.etcd.encoding import Request
from lockstead.stores.etcd.errors import NOT_ETCD
from lockstead.stores.etcd.settings import EtcdSettings

if TYPE_CHECKING:
    import httpcore

    from lockstead.stores.http import AwaitedPool

MISTAKE_LIMIT: Final = 1.0
"""Seconds in which it is found out what is spoken where no HTTP came back."""

HELLO: Final = b"GET /version HTTP/1.0\r\n\r\n"

WANTS_TLS: Final = "etcd at {} wants TLS; write ?tls=true in the URL"
NO_TLS: Final = "etcd at {} speaks no TLS; leave tls and certificates out of the URL, or write ?tls=false"


class Members:
    """The members of one etcd, and which of them is asked first. Safe to share between threads."""

    def __init__(self, settings: EtcdSettings) -> None:
        import httpcore

        self.settings = settings
        self._urls = [httpcore.URL(f"{settings.scheme}://{endpoint}/") for endpoint in settings.endpoints]
        self._first = 0
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()

    def in_turn(self, only: int | None = None) -> Iterator[tuple[int, httpcore.URL]]:
        """Return the members, the one that served last first; or only this one."""
        first = self._first if only is None else only
        for step in range(len(self._urls) if only is None else 1):
            number = (first + step) % len(self._urls)
            yield number, self._urls[number]

    def served(self, number: int) -> None:
        """Ask this member first from now on."""
        self._first = number

    def failed(self, number: int) -> None:
        """Ask the next member first from now on: this one gave no answer that helps."""
        if self._first == number:
            self._first = (number + 1) % len(self._urls)

    def __len__(self) -> int:
        return len(self._urls)

    def request(self, url: httpcore.URL, request: Request, token: str | None) -> httpcore.Request:
        """Return a request as httpcore wants it."""
        from lockstead.stores.http import request as asked

        headers = {"User-Agent": "lockstead", "Content-Type": "application/json"}
        if token:
            headers["Authorization"] = token
        method = "POST" if request.content else "GET"
        return asked(method, url, request.path.encode("ascii"), headers, request.content)

    def blocking(self) -> Sockets:
        """Make what blocking requests go over. StoreRefused if a certificate cannot be used."""
        return Sockets(self.tls() if self.settings.is_secure else None)

    def awaiting(self) -> AwaitedPool:
        """Make connections for awaiting requests, like `blocking`."""
        from lockstead.stores.http import awaiting

        return awaiting(self.tls())

    def tls(self) -> ssl.SSLContext:
        """Return how members prove who they are, and we to them."""
        with self._lock:
            if self._tls is None:
                self._tls = _context(self.settings)
            return self._tls


def _context(settings: EtcdSettings) -> ssl.SSLContext:
    if not settings.is_secure:
        # reading all the authorities takes a tenth of a second; a context without any trusts nobody
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context = ssl.create_default_context(cafile=settings.cacert)
    except OSError as error:
        raise StoreRefused(
            f"the authorities in {settings.cacert!r} cannot be read ({error}); correct cacert"
        ) from error
    if settings.cert is not None:
        try:
            context.load_cert_chain(settings.cert, settings.cert_key, password=_no_password)
        except (OSError, ValueError) as error:
            raise StoreRefused(
                f"the client certificate in {settings.cert!r} and its key cannot be used ({error}); correct cert and "
                "cert_key"
            ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; write it without a password")


def translated(error: Exception, request: Request, member: str, bounds: Bounds) -> StoreError:
    """Tell what was certainly never sent from everything else, which may have been applied. member is host:port."""
    import httpcore

    if isinstance(error, Unsent | Unanswered):
        told = str(error)
    else:
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    refused = _refused(_chain(error), member)
    if refused is not None:
        return refused
    if isinstance(error, Unsent | httpcore.ConnectError | httpcore.ConnectTimeout | httpcore.PoolTimeout):
        return StoreUnavailable(f"no connection to etcd at {member} for {request.what} ({told}); nothing was sent")
    if isinstance(error, httpcore.TimeoutException | TimeoutError):
        return OutcomeUnknown(f"etcd at {member} gave no answer to {request.what} within {bounds.limit:.3g} s")
    return OutcomeUnknown(f"no clear answer from etcd at {member} to {request.what} ({told})")


def _chain(error: BaseException | None) -> str:
    """Return what an error says and what stands behind it: an awaiting transport keeps the words of TLS to itself."""
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or error.__context__
    return " ".join(said)


def _refused(said: str, member: str) -> StoreRefused | None:
    """Find what will not get better by asking again: no TLS where we want it, or none that we trust."""
    low = said.lower().replace("_", " ")
    if "certificate verify failed" in low:
        return StoreRefused(
            f"the certificate of etcd at {member} is not trusted; name its authority with ?cacert=FILE, and its host "
            "as it is"
        )
    if "wrong version number" in low or "record layer failure" in low:
        return StoreRefused(NO_TLS.format(member))
    if any(words in low for words in ("certificate required", "bad certificate", "unknown ca", "alert unknown")):
        return StoreRefused(f"etcd at {member} wants another client certificate; name it with ?cert=FILE&cert_key=FILE")
    return None


def looks_mistaken(error: Exception) -> bool:
    """Return whether a connection ended as if another language were spoken there: it is worth a look which one."""
    import httpcore

    if isinstance(error, Unsent):
        return not isinstance(error.__cause__, TimeoutError)
    return isinstance(error, Unanswered | httpcore.RemoteProtocolError | httpcore.ReadError | httpcore.ConnectError)


def mistake(members: Members, number: int, limit: float) -> StoreRefused | None:
    """Look what is spoken at a member, by connections of its own; None if it may be what we speak, or nobody is there.

    Nothing that matters is sent on them. limit is seconds for all of it.
    """
    settings, bounds = members.settings, Bounds(limit)
    member = settings.endpoints[number]
    tls = members.tls()
    if not settings.is_secure:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        answer = _hello(member, None, bounds)
        if answer.startswith(b"HTTP/") and b"HTTPS server" not in answer:
            return StoreRefused(NO_TLS.format(member)) if settings.is_secure else None
        if answer and not answer.startswith(b"HTTP/"):
            return StoreRefused(f"no HTTP is spoken at {member}: {NOT_ETCD}")
        if not settings.is_secure:
            connected(member, tls, bounds).close()
            return StoreRefused(WANTS_TLS.format(member))
        # from TLS 1.3 on a client hears only when it reads what is thought of its certificate
        _hello(member, tls, bounds)
    except (OSError, ValueError) as error:
        return _refused(_chain(error), member)
    return None


def _hello(member: str, tls: ssl.SSLContext | None, bounds: Bounds) -> bytes:
    connection = connected(member, tls, bounds)
    try:
        connection.sendall(HELLO)
        return connection.recv(4096)
    except ConnectionError:
        return b""
    finally:
        connection.close()
