"""Parsing of store URLs (scheme, store part, key, settings), and which store a scheme opens.

`scheme:store?setting=value#key` or `scheme:store#key?setting=value`; with `file:` and `env:` the store's URL is read
from a file or a variable. Keys and values are percent-decoded ("+" stays "+"), so a "?" in a key is written %3F. The
built-in stores are in a table here, so that defining a lock does not search the installed distributions; third-party
stores are found by the entry point group `lockstead.stores`. No error of this module repeats a URL, because it may
contain credentials.
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
"""Scheme to the module with its OPENER, or to `module:NAME`. Importing it loads no store and no client library."""

ELSEWHERE: Final = frozenset({"env", "file"})
"""Schemes for a store whose URL is in a variable or a file."""

ALSO: Final = {"zookeeper": "zk"}
"""Aliases of schemes."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

_HOST_AND_PORT: Final = re.compile(r"(\[[^]]*\]|[^:]*):[0-9]+")


class BuiltInOpener(Opener):
    """An opener of ours: the traits of its stores are TRAITS of the module `store` beside its own."""

    @property
    def traits(self) -> Traits:
        """The traits of every store of this scheme. Importing the module `store` takes long, so it is done here."""
        folder = type(self).__module__.rpartition(".")[0]
        found: Traits = import_module(f"{folder}.store").TRAITS
        return found


def parse_store(url: str) -> StoreUrl:
    """Parse the URL of a store; only a fragment is a key. Raises ValueError, with a one-line message, if invalid."""
    return _parse(url, wants_key=False)


def parse_lock(url: str) -> StoreUrl:
    """Parse the URL of a lock (store and key). Raises ValueError, with a one-line message, if invalid."""
    return _parse(url, wants_key=True)


def open_store(url: StoreUrl | str, client: object | None = None) -> Store:
    """Open the store of a URL. client is a client object of that store's library, supplied by the caller.

    Raises StoreRefused if the client library is missing or the location cannot be used, ValueError for an invalid URL,
    TypeError for a client of another library.
    """
    parsed = resolved(parse_store(url) if isinstance(url, str) else url)
    return opener(parsed.scheme).open(parsed.text, client)


def printable(url: StoreUrl | str) -> str:
    """Return the store's URL without credentials, key and settings; it may be shown to anyone."""
    parsed = resolved(parse_store(url) if isinstance(url, str) else url)
    return opener(parsed.scheme).printable(parsed.text)


def traits(url: StoreUrl) -> Traits:
    """Return the traits of the store of a URL."""
    return opener(resolved(url).scheme).traits


def may_have_tokens(url: StoreUrl) -> bool:
    """Return whether the store of a URL may have fencing tokens, without importing a client library."""
    return url.scheme in ELSEWHERE or opener(url.scheme).has_tokens


def resolved(url: StoreUrl) -> StoreUrl:
    """Return the URL with `file:` or `env:` replaced by the URL it refers to; any other URL unchanged.

    Raises StoreRefused if there is no such URL, or if every user of this machine can read its password.
    """
    if url.scheme not in ELSEWHERE:
        return url
    from lockstead.stores import elsewhere

    text, is_public = elsewhere.text_at(url.text)
    try:
        found = parse_store(text)
        if found.scheme not in ELSEWHERE:
            opener(found.scheme).printable(found.text)  # many stores parse more of the URL only here
    except ValueError:
        # the error message may repeat part of the text, which may be another secret
        raise StoreRefused(f"{url.text} does not hold {elsewhere.AS_URL}") from None
    if found.key is not None or found.options:
        raise StoreRefused(f"{url.text} holds more than the URL of a store; write key and settings behind {url.text}")
    if found.scheme in ELSEWHERE or not spans_processes(found.text):
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
    # in 'host:2181/path@1' the number is a port and the '@' is part of the path
    is_path = has_path and all(":" not in host or _HOST_AND_PORT.fullmatch(host) for host in hosts.split(","))
    # an '@' before the path ends the credentials, and a comma before it does not separate hosts
    is_path = is_path and ":" not in hosts.rpartition("@")[0]
    return (":" in user and not is_path) or any("password" in unquote(name).lower() for name in names)


@cache  # with many installed distributions the search takes tens of milliseconds, and a DAG file has many locks
def opener(scheme: str) -> Opener:
    """Return the opener of a scheme. Raises ValueError, naming the known schemes, if there is none.

    Raises StoreRefused if a distribution declares a store that cannot be imported.
    """
    scheme = ALSO.get(scheme, scheme)
    if scheme in OURS:
        module, _, attribute = OURS[scheme].partition(":")
        ours: Opener = getattr(import_module(module), attribute or "OPENER")
        return ours
    # this reads the metadata of all installed distributions, so only for a scheme that is not built in
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


def spans_processes(url: str) -> bool:
    """Return whether the store of a URL excludes holders in other processes. ValueError if the scheme is unknown."""
    scheme = url.partition(":")[0].lower()
    # a URL in a file or a variable is refused there if its store does not
    return scheme in ELSEWHERE or opener(scheme).spans_processes


def meant(word: str, known: Iterable[str], mark: str = "") -> str:
    """Return ", did you mean ...?" for a message if a known word is similar to this one, else an empty string."""
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
        # imported here, so that defining a lock with a direct store URL loads nothing more
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
    """Return the URL with an example key, for a message: without credentials, and only the scheme if it is invalid."""
    try:
        shown = rest if opens is None else opens.printable(rest.rstrip("/"))
    except ValueError:
        shown = "@"
    # a store that takes no credentials prints whatever is in their place
    return f"{rest.partition(':')[0]}:...#apt" if "@" in shown else f"{shown}#apt"


def query(options: Mapping[str, str]) -> str:
    """Return a store's own options as in its URL, including the `?`; an empty string if there are none."""
    if not options:
        return ""
    from urllib.parse import quote

    return "?" + "&".join(f"{name}={quote(value, safe='/:@!$*+,;')}" for name, value in sorted(options.items()))


def options_of(store_url: str) -> tuple[str, dict[str, str]]:
    """Split a store's URL: return the part before the `?`, and the store's own options, percent-decoded, by name."""
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
        return text  # saves an import for a plain key
    from urllib.parse import unquote

    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"the {what} in the URL is not UTF-8 once percent-decoded") from None
