"""Whether what is sent to a server may be read on the way: the same rules, and the same word, for every store.

User and password go in clear to this machine only, unless the URL says `cleartext=true`. Must not know any store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

CLEARTEXT: Final = "cleartext"
"""The setting of a store's URL by which a password may go in clear to another machine."""

_TRUE: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Read a setting that is true or false; ValueError if it is neither."""
    text = options.get(name)
    if text is None:
        return default
    known = _TRUE.get(text.lower())
    if known is None:
        raise ValueError(f"{name} is true or false, not {text!r}")
    return known


def wants_tls(options: Mapping[str, str], names: Iterable[str]) -> bool:
    """Return whether a URL asks for TLS: by `tls`, or by a setting that means nothing without it.

    names: those settings. ValueError where it asks for both.
    """
    given = sorted(set(names) & set(options))
    if given and not flag(options, "tls", default=True):
        raise ValueError(f"the URL says tls=false and {given[0]}, which is for TLS; leave one of them out")
    return bool(given) or flag(options, "tls")


def is_local(host: str) -> bool:
    """Return whether a host is this machine, whose loopback nobody else reads; a path is a socket of its own."""
    from ipaddress import ip_address

    name = host.strip("[]").partition("%")[0].lower()
    if name == "localhost" or name.endswith(".localhost") or name.startswith(("/", "@")):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def refuse_clear(hosts: Iterable[str], *, way: str) -> None:
    """Raise StoreRefused if one of the hosts is another machine: a password would go to it in clear.

    way: what to write into the URL for TLS.
    """
    for host in hosts:
        if not is_local(host):
            raise StoreRefused(
                f"the password would go to {host} in clear; write {way} for TLS, or {CLEARTEXT}=true where everybody "
                "on the way is trusted"
            )


def transport(hosts: Iterable[str], *, tls: bool, is_verified: bool, has_password: bool, way: str) -> Finding:
    """Say who on the way to the hosts can read and change what is sent, as every doctor does."""
    from lockstead.stores.examination import Finding, Severity

    others = [host for host in hosts if not is_local(host)]
    if tls and is_verified:
        return Finding(Severity.OK, "transport", "TLS, and certificates are held against the hosts of the URL")
    if not others:
        return Finding(Severity.OK, "transport", "the connection does not leave this machine")
    if tls:
        text = f"TLS, but the server at {others[0]} is not authenticated"
        return Finding(Severity.WARNING, "transport", text, f"check certificates: {way}")
    what = "read the password, and with it every lock" if has_password else "read and change every lock"
    return Finding(
        Severity.WARNING, "transport", f"no TLS: who is on the way to {others[0]} can {what}", f"write {way}"
    )
