"""The members of an etcd: which one is asked first, and the token of our user.

Must not know connections, nor what is asked.
"""

from __future__ import annotations

import ssl
from typing import Final

from lockstead.stores.etcd.encoding import Response
from lockstead.stores.etcd.url import Target

NOT_SERVING: Final = (b"no leader", b"leader changed", b"request timed out", b"server stopped", b"not capable")
"""What a member says that cannot serve at the moment, so that another one is asked next time."""


class Members:
    """The members of one etcd. Safe to share between threads.

    url: of the store, as it may be shown. token: of the signed-in user; None before the first sign-in, empty where etcd
    has no users. has_served: whether any member ever answered.
    """

    def __init__(self, target: Target, tls: ssl.SSLContext | None, url: str) -> None:
        self.endpoints = target.endpoints
        self.user = target.user
        self.password = target.password
        self.url = url
        self.tls = tls
        self.token: str | None = None
        self.has_served = False
        self._first = 0

    def in_turn(self) -> list[str]:
        """Return the members (host:port) in the order in which they are asked."""
        endpoints, first = self.endpoints, self._first
        return [*endpoints[first:], *endpoints[:first]]

    def note(self, response: Response) -> None:
        """Ask the member that answered first from now on, unless it says that it cannot serve."""
        if response.status != 200 and any(words in response.body for words in NOT_SERVING):
            self.failed(response.member)
        else:
            self._first, self.has_served = self.endpoints.index(response.member), True

    def failed(self, member: str) -> None:
        """Ask the next member first from now on, if this one is asked first."""
        if self.endpoints[self._first] == member:
            self._first = (self._first + 1) % len(self.endpoints)
