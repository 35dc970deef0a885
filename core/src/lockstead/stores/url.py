"""What a store URL means: scheme, store part, key, settings; and which store a scheme opens.

`scheme:store?setting=value#key` or `scheme:store#key?setting=value`; `file:` and `env:` stand for a store whose URL
is kept elsewhere. Keys and values are percent-decoded ("+" stays "+"), so a "?" in a key is written %3F. Our own stores
stand in a table here, so that naming a lock looks through no installed distribution; other people's are found by the
entry point group `lockstead.stores`. No error of this file repeats a URL, for there may be credentials in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.port import Opener, Store, StoreUrl
from lockstead.values import checked_key

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits

GROUP: Final = "lockstead.stores"

OURS: Final = {
    "etcd": "lockstead.stores.etcd.url",
    "cassandra": "lockstead.stores.cassandra.url",
    "gs": "lockstead.stores.gcs.url",
    "memory": "lockstead.stores.memory.url",
    "postgres": "lockstead.stores.postgres.url",
    "postgresql": "lockstead.stores.postgres.url",
    "redis": "lockstead.stores.redis.url",
    "redis+cluster": "lockstead.stores.redis.url:CLUSTER",
    "redis+sentinel": "lockstead.stores.redis.url:SENTINEL",
    "rediss": "lockstead.stores.redis.url:SECURE",
    "redlock": "lockstead.stores.redlock.url",
    "sqlite": "lockstead.stores.sqlite.url",
    "zk": "lockstead.stores.zookeeper.url",
}
"""Scheme to the module with its OPENER, or to `module:NAME`; importing it imports no store and no client library."""

ELSEWHERE: Final = frozenset({"env", "file"})
"""Schemes of URLs that stand for the store whose URL is in a variable or a file."""

ALSO: Final = {"zookeeper": "zk"}
"""Other words for a scheme."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

_HOST_AND_PORT: Final = re.compile(r"(\[[^]]*\]|[^:]*):[0-9]+")


def parse_store(url: str) -> StoreUrl:
    """Read the URL of a store; a key is named only by a fragment. ValueError with one line if it is none."""
    return _parse(url, wants_key=False)


def parse_lock(url: str) -> StoreUrl:
    """Read the URL of a lock: a store and a key in it. ValueError with one line if it is none, or has no key."""
    return _parse(url, wants_key=True)


def open_store(url: StoreUrl | str, client: object | None = None) -> Store:
    """Open the store that a URL names. client is the caller's own client object of that store's library.

    Raises StoreRefused when the client library is missing or the place cannot be used, ValueError for a URL that
    cannot be one of this store, TypeError for a client that is not of its library.
    """
    parsed = resolved(parse_store(url) if isinstance(url, str) else url)
    return opener(parsed.scheme).open(parsed.text, client)


def printable(url: StoreUrl | str) -> str:
    """Return the store's URL without credentials, key and settings, as it may be shown to anybody."""
    parsed = resolved(parse_store(url) if isinstance(url, str) else url)
    return opener(parsed.scheme).printable(parsed.text)


def traits(url: StoreUrl) -> Traits:
    """Return the traits of the store that a URL names."""
    return opener(resolved(url).scheme).traits


def resolved(url: StoreUrl) -> StoreUrl:
    """Return the store that is meant: for `file:` and `env:` the one whose URL is there, else the same.

    Raises StoreRefused where there is no such URL, or where every user of this machine may read its password.
    """
    if url.scheme not in ELSEWHERE:
        return url
    from lockstead.stores import elsewhere

    text, is_public = elsewhere.text_at(url.text)
    try:
        found = parse_store(text)
        if found.scheme not in ELSEWHERE:
            opener(found.scheme).printable(found.text)  # many stores read more of it to show it
    except ValueError:
        # what it says of the text may be a part of another secret
        raise StoreRefused(f"{url.text} does not hold {elsewhere.AS_URL}") from None
    if found.key is not None or found.options:
        raise StoreRefused(f"{url.text} holds more than the URL of a store; write key and settings behind {url.text}")
    if found.scheme in {*ELSEWHERE, "memory"}:
        raise StoreRefused(
            f"{url.text} holds {found.scheme}:, which cannot be kept there; give it where the lock is used"
        )
    if is_public and has_password(text):
        raise StoreRefused(
            f"{url.text} holds a password and every user of this machine may read it: chmod o-r, or mode 0440 of the "
            "secret of a container"
        )
    return replace(found, key=url.key, options=url.options)


def has_password(url: str) -> bool:
    """Return whether a URL holds a password, before its host or among its options."""
    from urllib.parse import unquote

    before, _, after = url.partition("#")
    place, _, early = before.partition("?")
    names = [pair.partition("=")[0] for pair in f"{early}&{after.partition('?')[2]}".split("&")]
    user = place.partition("://")[2].rpartition("@")[0]
    hosts, has_path, _ = user.partition("/")
    # in 'host:2181/path@1' the number is a port and the '@' a part of the path
    is_path = has_path and all(":" not in host or _HOST_AND_PORT.fullmatch(host) for host in hosts.split(","))
    # an '@' before the path ends the user, and a comma is then no end of a host
    is_path = is_path and ":" not in hosts.rpartition("@")[0]
    return (":" in user and not is_path) or any("password" in unquote(name).lower() for name in names)


@cache  # among many installed distributions the search takes tens of milliseconds, and a DAG file has many locks
def opener(scheme: str) -> Opener:
    """Find what opens stores of a scheme. ValueError, naming the schemes there are, if nothing does.

    StoreRefused when a distribution names a store that cannot be imported.
    """
    scheme = ALSO.get(scheme, scheme)
    if scheme in OURS:
        module, _, attribute = OURS[scheme].partition(":")
        ours: Opener = getattr(import_module(module), attribute or "OPENER")
        return ours
    # reads the metadata of everything installed: only for a scheme that is not ours
    from importlib.metadata import entry_points

    known = entry_points(group=GROUP)
    found = {entry.value: entry for entry in known if entry.name == scheme}
    if not found:
        schemes = sorted({*known.names, *OURS, *ELSEWHERE})
        hint = meant(scheme, schemes, ":")
        raise ValueError(f"no store has the scheme {scheme!r}{hint}; known: {', '.join(schemes)}")
    if len(found) > 1:
        raise ValueError(f"several stores claim the scheme {scheme!r}: {', '.join(sorted(found))}; uninstall one")
    entry = next(iter(found.values()))
    try:
        loaded: Opener = entry.load()
    except (ImportError, AttributeError) as error:
        raise StoreRefused(f"the store {entry.name!r} cannot be loaded from {entry.value!r}: {error}") from error
    return loaded


def meant(word: str, known: Iterable[str], mark: str = "") -> str:
    """Return ", did you mean ...?" for a message if a known word is much like this one, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, sorted(known), n=1)
    return f", did you mean {close[0] + mark!r}?" if close else ""


def _parse(url: str, *, wants_key: bool) -> StoreUrl:
    if not isinstance(url, str):
        raise TypeError(f"a store URL is text, not {type(url).__name__}")
    scheme_found = _SCHEME.match(url)
    if scheme_found is None:
        raise ValueError("not a store URL: it has no scheme, as in 'gs://bucket/prefix#key' or 'sqlite:///locks.db'")
    scheme = scheme_found[1].lower()
    scheme = ALSO.get(scheme, scheme)
    opens = None if scheme in ELSEWHERE else opener(scheme)
    before, has_fragment, after = url.partition("#")
    rest, _, early = before.partition("?")
    fragment, _, late = after.partition("?")
    rest = f"{scheme}{rest[scheme_found.end(1) :]}"
    encoded: str | None = fragment if has_fragment else None
    store = rest
    if opens is None:
        # here, so that naming a lock of a store itself loads no more
        from lockstead.stores import elsewhere

        elsewhere.named(rest)
    if wants_key:
        if opens is not None:
            store, encoded = opens.split(rest, encoded)
        if not encoded:
            raise ValueError(f"the URL names no key; write the lock's name after '#', as in {_with_key(opens, rest)!r}")
    options = _options(early, late)
    own = frozenset() if opens is None else opens.options
    ours = {name: options.pop(name) for name in sorted(own & set(options))}
    return StoreUrl(
        scheme=scheme,
        text=store + query(ours),
        key=checked_key(_decoded(encoded, "key")) if encoded else None,
        options=options,
    )


def _with_key(opens: Opener | None, rest: str) -> str:
    """Write a URL that lacks a key with one, for a message: without credentials, and only its scheme if it is odd."""
    try:
        shown = rest if opens is None else opens.printable(rest.rstrip("/"))
    except ValueError:
        shown = "@"
    # a store that takes no credentials shows whatever stands where they would be
    return f"{rest.partition(':')[0]}:...#apt" if "@" in shown else f"{shown}#apt"


def query(options: Mapping[str, str]) -> str:
    """Write a store's own options as they stand in its URL, from the `?` on; nothing if there are none."""
    if not options:
        return ""
    from urllib.parse import quote

    return "?" + "&".join(f"{name}={quote(value, safe='/:@!$*+,;')}" for name, value in sorted(options.items()))


def options_of(store_url: str) -> tuple[str, dict[str, str]]:
    """Split a store's URL from its own options: the URL before the `?`, and their percent-decoded values by name."""
    before, _, after = store_url.partition("?")
    return before, _options(after)


def _options(*queries: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in (pair for query in queries for pair in query.split("&") if pair):
        encoded_name, has_value, value = pair.partition("=")
        name = _decoded(encoded_name, "name of a setting")
        if not has_value or not name.isidentifier():
            raise ValueError("the settings of a URL are written ?name=value&name=value, percent-encoded")
        if name in options:
            raise ValueError(f"the URL gives the setting {name!r} twice")
        options[name] = _decoded(value, f"value of {name!r}")
    return options


def _decoded(text: str, what: str) -> str:
    if "%" not in text:
        return text  # spares who names a plain lock an import
    from urllib.parse import unquote

    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"the {what} in the URL is not UTF-8 once percent-decoded") from None
