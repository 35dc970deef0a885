"""Who may look and who may break: host names, tokens, sessions, proofs against forged requests, limits of rates."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection

from lockstead.reading import clean

SESSION_LASTS: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1_000
NAME_MAX: Final = 200


class Limiter:
    """Lets a burst through for each name, and then one every `every` seconds. Remembers at most 1,000 names."""

    names_max: Final = 1_000

    def __init__(self, burst: int, every: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._every = every
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def wait(self, name: str) -> float:
        """Return the seconds until the next one is let through; 0 if it would be now."""
        ahead = self._free_at.get(name, 0.0) - self._clock()
        return max(0.0, ahead - (self._burst - 1) * self._every)

    def count(self, name: str) -> None:
        """Count one."""
        self._free_at[name] = max(self._clock(), self._free_at.pop(name, 0.0)) + self._every
        if len(self._free_at) > self.names_max:
            self._free_at.popitem(last=False)


@dataclass(slots=True)
class Session:
    """What a login opened. csrf: the proof that a form of ours was sent. notice: shown once, on the next page."""

    is_admin: bool
    expires_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. may_read, may_break: what they may. who: their name in the audit; empty if unknown."""

    may_read: bool
    session: Session | None = None
    who: str = ""

    @property
    def may_break(self) -> bool:
        """Whether they logged in with the admin token."""
        return self.session is not None and self.session.is_admin


class Access:
    """The rules of one dashboard. hosts: names that a browser may call it by, besides addresses and localhost."""

    def __init__(
        self,
        *,
        token: str | None,
        admin_token: str | None,
        trusted_proxy_header: str | None,
        hosts: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._token = token
        self._admin_token = admin_token
        self._header = trusted_proxy_header
        self._hosts = frozenset(name.lower() for name in hosts)
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.logins = Limiter(5, 10.0, clock)
        self.breaks = Limiter(5, 10.0, clock)

    @property
    def has_login(self) -> bool:
        """Whether there is a token to log in with."""
        return self._token is not None or self._admin_token is not None

    @property
    def has_admin(self) -> bool:
        """Whether anybody may break locks."""
        return self._admin_token is not None

    def knows_host(self, request: HTTPConnection) -> bool:
        """Whether the Host header is an address, localhost or a name of ours.

        A page of another site can have its own name point here, and would then read this one as its own (DNS
        rebinding); that name stands in the header.
        """
        name = host_name(request.headers.get("host", ""))
        return name is not None and (name == "localhost" or name in self._hosts or _is_address(name))

    def visitor(self, request: HTTPConnection) -> Visitor:
        """Return who asks."""
        session = self._session(request)
        who = clean(request.headers.get(self._header, ""))[:NAME_MAX].strip() if self._header else ""
        if who or (self._header is None and (self._token is None or session is not None)):
            return Visitor(may_read=True, session=session, who=who)
        # a script, which may pass by the proxy
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return Visitor(may_read=scheme.lower() == "bearer" and self._role(given.strip()) is not None)

    def is_embedded(self, request: HTTPConnection) -> bool:
        """Whether a page of another site asks for a part of its own: it could not read it, but could keep it open."""
        site, mode = request.headers.get("sec-fetch-site"), request.headers.get("sec-fetch-mode")
        return site not in (None, "same-origin", "none") and mode != "navigate"

    def is_same_origin(self, request: HTTPConnection) -> bool:
        """Whether a page of this dashboard sent the request: what the browser says, which no page can change."""
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        origin = request.headers.get("origin", "")
        scheme, _, place = origin.partition("://")
        return scheme in ("http", "https") and place != "" and place == request.headers.get("host")

    def has_proof(self, session: Session, given: str) -> bool:
        """Whether a form carries the session's proof."""
        return _same(session.csrf, given)

    def log_in(self, given: str) -> str | None:
        """Open a session for a token, and return its secret; None if the token is wrong."""
        is_admin = self._role(given)
        if is_admin is None:
            return None
        secret = secrets.token_urlsafe(32)
        self._sessions[_hashed(secret)] = Session(is_admin, self._clock() + SESSION_LASTS)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return secret

    def log_out(self, request: HTTPConnection) -> None:
        """Close the session of a request."""
        self._sessions.pop(_hashed(request.cookies.get(cookie_name(request), "")), None)

    def _role(self, given: str) -> bool | None:
        """Return whether a token is the admin's; None if it is neither. Compares with both, whichever it is."""
        is_admin = self._admin_token is not None and _same(self._admin_token, given)
        is_reader = self._token is not None and _same(self._token, given)
        return is_admin if is_admin or is_reader else None

    def _session(self, request: HTTPConnection) -> Session | None:
        hashed = _hashed(request.cookies.get(cookie_name(request), ""))
        session = self._sessions.get(hashed)
        if session is not None and session.expires_at <= self._clock():
            del self._sessions[hashed]
            return None
        return session


def cookie_name(request: HTTPConnection) -> str:
    """Return the name of the cookie: a host's ports share their cookies, and each may have a dashboard."""
    server = request.scope.get("server")
    return f"lockstead_{(server[1] if server else None) or 'session'}"


def host_name(host: str) -> str | None:
    """Return the name in a Host header without its port; None if it is none."""
    if host.startswith("["):
        name, closing, port = host[1:].partition("]")
        return name.lower() if closing and (not port or port[0] == ":") else None
    name, _, port = host.partition(":")
    return name.lower().rstrip(".") or None if not port or (port.isascii() and port.isdigit()) else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode(errors="replace"))


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
