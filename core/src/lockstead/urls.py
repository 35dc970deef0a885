"""How a lock's URL is put together from what settings, forms and connections of others say of it.

What a URL means is read elsewhere (`stores.url`). Opens nothing, and imports no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from lockstead.stores.url import ELSEWHERE, has_password, opener, parse_lock, printable, query, spans_processes

if TYPE_CHECKING:
    from lockstead.stores.port import StoreUrl
    from lockstead.values import LeaseTicket

__all__ = [
    "check_store",
    "handed_on",
    "has_password",
    "is_elsewhere",
    "lock_url",
    "of_ticket",
    "options",
    "parts",
    "spans_processes",
    "with_user",
]


def lock_url(store: str, key: str) -> str:
    """Return the URL of a lock in a store, whose URL names no key."""
    return f"{store}#{quote(key, safe='/:@!$&*+,;=')}"


def check_store(url: str) -> None:
    """Raise ValueError, with one line, for what is not a URL of a store or names a lock."""
    from lockstead.lock import Lock

    if "#" in url:
        raise ValueError("the URL names a lock, not a store: remove '#' and what follows")
    Lock(lock_url(url, "key"))
    if not is_elsewhere(url):  # this may be another machine than the one that has the file
        # many stores read more of it to show it
        printable(url)


def is_elsewhere(url: str) -> bool:
    """Return whether a URL only names the file or the variable in which the store's URL is kept."""
    return url.partition(":")[0].lower() in ELSEWHERE


def of_ticket(url: str, ticket: LeaseTicket) -> str:
    """Return a lock's URL with the key of a ticket, and with its path on the same server; settings and user stay.

    For a URL that was put together anew since the ticket was made. A ticket may come from anybody: server, credentials
    and options are those of the URL, and a ticket of another server does not fit the lock that is named.
    """
    parsed = parse_lock(url)
    store = parsed.text
    # a ticket never chooses which file is read: with one of another store the lock refuses it
    if not is_elsewhere(url) and (shown := printable(parsed)) != ticket.store:
        scheme, _, now = parts(shown)
        said_scheme, _, said = parts(ticket.store)
        server, _, path = said.partition("?")[0].partition("/")
        place, mark, options = store.partition("?")
        if server and (scheme, now.partition("?")[0].partition("/")[0]) == (said_scheme, server):
            head, separator, rest = place.partition("://")
            store = f"{head}{separator}{rest.partition('/')[0]}/{path}{mark}{options}"
    return lock_url(store, ticket.key) + query(parsed.options)


def handed_on(url: StoreUrl) -> str:
    """Return the URL of a store for a process that is started: with the user, and without any password."""
    if url.scheme in ELSEWHERE:
        return url.text
    shown = printable(url)
    scheme, who, _ = parts(url.text)
    user = who.partition(":")[0]
    # several hosts with a user each: which of them the rest of the URL is for, only the store knows
    return f"{scheme}://{user}@{parts(shown)[2]}" if user and "@" not in who else shown


def options(scheme: str) -> frozenset[str]:
    """Return options of a store behind `?`, without the settings of locks. ValueError if no store has the scheme."""
    return opener(scheme).options


def parts(url: str) -> tuple[str, str, str]:
    """Return scheme, user with password, and the rest of a URL."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    who, _, host = host.rpartition("@")
    return scheme.lower(), who, f"{host}{slash}{path}"


def with_user(url: str, username: str, password: str) -> str:
    """Return a URL with user and password in it. ValueError, with one line, for a store that has none."""
    if not (username or password):
        return url
    scheme, who, rest = parts(url)
    opens = scheme.partition(":")[0]
    if is_elsewhere(url) or not getattr(opener(opens), "takes_user", False):
        raise ValueError(f"a store at {opens}: has neither user nor password: leave both empty")
    user = quote(username, safe="") or who
    return f"{scheme}://{user}{':' + quote(password, safe='') if password else ''}@{rest}"
