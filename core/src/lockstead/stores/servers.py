"""The servers of a store as given in its URL: hosts, user and password, certificates.

A DAG file defines many locks and opens none, so this module imports only what parsing a URL needs. Must not know any
store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstead.stores.transport import CLEARTEXT, flag, refuse_clear, transport, wants_tls

if TYPE_CHECKING:
    import ssl

    from lockstead.stores.examination import Finding

FILES: Final = ("ca", "cert", "key")
OPTIONS: Final = frozenset({"tls", "cleartext", *FILES})
TLS_WAY: Final = "tls=true"

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of one store. hosts are (host, port), in order. ca, cert and key are paths of files.

    may_be_clear: the password may be sent unencrypted to another machine.
    """

    hosts: tuple[tuple[str, int], ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    may_be_clear: bool = False

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The servers as `host:port`, as in a URL."""
        return tuple(map(endpoint, self.hosts))

    @property
    def shown(self) -> dict[str, str]:
        """The URL options equivalent to these settings, without credentials."""
        shown = {name: getattr(self, name) for name in FILES if getattr(self, name)}
        if self.tls and not self.ca and not self.cert:
            shown["tls"] = "true"
        if self.may_be_clear:
            shown["cleartext"] = "true"
        return shown

    def check(self) -> None:
        """Raise StoreRefused if the password would be sent unencrypted to another machine."""
        if (self.user or self.password) and not self.tls and not self.may_be_clear:
            refuse_clear((host for host, _port in self.hosts), way=TLS_WAY)

    def transport(self) -> Finding:
        """Return the finding on who can read the traffic."""
        names, has_password = [host for host, _port in self.hosts], bool(self.user or self.password)
        return transport(names, tls=self.tls, is_verified=self.tls, has_password=has_password, way=TLS_WAY)

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context: trusted CAs, and our certificate if any. Raises OSError for an unusable file."""
        import ssl

        def no_password() -> str:  # without it, OpenSSL would ask at the terminal
            raise ssl.SSLError("the key is encrypted; write it without a password")

        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None, no_password)
        return context


def endpoint(address: tuple[str, int]) -> str:
    """Return `host:port`, as in a URL."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def servers_in(
    authority: str,
    options: Mapping[str, str],
    environ: Mapping[str, str] | None,
    *,
    variables: tuple[str, str],
    port: int,
    shape: str,
) -> dict[str, Any]:
    """Return the fields of `Servers`. authority is `user:password@host1,host2:port`; options are those of the URL.

    variables: the environ variables with the user and password, used if the URL has none. port: the default port.
    shape: the hint in the ValueError message on what to write.
    """
    from urllib.parse import unquote

    credentials, _, hosts = authority.rpartition("@")
    user, _, password = (unquote(part) for part in credentials.partition(":"))
    if environ is not None and ":" not in credentials:
        user, password = user or environ.get(variables[0], ""), environ.get(variables[1], "")
    return {
        "hosts": tuple(host_and_port(host, port, shape) for host in hosts.split(",")),
        "user": user,
        "password": password,
        "tls": wants_tls(options, FILES),
        "may_be_clear": flag(options, CLEARTEXT),
        **{name: options.get(name, "") for name in FILES},
    }


def host_and_port(text: str, port: int, shape: str) -> tuple[str, int]:
    """Read a host of a URL. port: where it names none. shape: the hint in the ValueError on what to write."""
    found = _HOST.fullmatch(text.strip())
    number = int(found[2] or port) if found is not None else 0
    if found is None or not 0 < number < 65536:
        raise ValueError(f"the URL names no server, or an invalid one; {shape}")
    return found[1].strip("[]"), number
