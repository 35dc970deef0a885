"""Transport security, with the same rules and the same option for every store.

User and password are sent unencrypted only to this machine, unless the URL says `cleartext=true`. Must not know any
store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

CLEARTEXT: Final = "cleartext"
"""The option of a store's URL that allows sending a password unencrypted to another machine."""

_TRUE: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return the value of a boolean option; raise ValueError if it is neither true nor false."""
    text = options.get(name)
    if text is None:
        return default
    known = _TRUE.get(text.lower())
    if known is None:
        raise ValueError(f"{name} is true or false, not {text!r}")
    return known


def wants_tls(options: Mapping[str, str], names: Iterable[str]) -> bool:
    """Return whether a URL asks for TLS: by `tls`, or by an option that has no meaning without TLS.

    names: the options of the second kind. Raises ValueError for one of them together with tls=false.
    """
    given = sorted(set(names) & set(options))
    if given and not flag(options, "tls", default=True):
        raise ValueError(f"the URL says tls=false and {given[0]}, which is for TLS; leave one of them out")
    return bool(given) or flag(options, "tls")


def is_local(host: str) -> bool:
    """Return whether a host is this machine: a loopback address, or the path of a Unix socket."""
    from ipaddress import ip_address

    name = host.strip("[]").partition("%")[0].lower()
    if name == "localhost" or name.endswith(".localhost") or name.startswith(("/", "@")):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def refuse_clear(hosts: Iterable[str], *, way: str) -> None:
    """Raise StoreRefused if one of the hosts is another machine: the password would be sent to it unencrypted.

    way: what to write into the URL for TLS.
    """
    for host in hosts:
        if not is_local(host):
            raise StoreRefused(
                f"the password would go to {host} unencrypted; write {way} for TLS, or {CLEARTEXT}=true if the network "
                "is trusted"
            )


def transport(hosts: Iterable[str], *, tls: bool, is_verified: bool, has_password: bool, way: str) -> Finding:
    """Return the finding on who between here and the hosts can read and change the traffic; for every doctor."""
    from lockstead.stores.examination import Finding, Severity

    others = [host for host in hosts if not is_local(host)]
    if tls and is_verified:
        return Finding(Severity.OK, "transport", "TLS, with certificates that match the hosts of the URL")
    if not others:
        return Finding(Severity.OK, "transport", "the connection does not leave this machine")
    if tls:
        text = f"TLS, but the server at {others[0]} is not authenticated"
        return Finding(Severity.WARNING, "transport", text, f"check certificates: {way}")
    what = "read the password, and with it every lock" if has_password else "read and change every lock"
    return Finding(
        Severity.WARNING, "transport", f"no TLS: anyone on the network path to {others[0]} can {what}", f"write {way}"
    )
