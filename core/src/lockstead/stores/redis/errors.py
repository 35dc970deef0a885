"""What an error of Redis means: certainly not applied, perhaps applied, or refused; a message of one line each.

Every script of ours writes all or nothing, and the server refuses it before its first write: so a refusal of the
server is certainly not applied. Must not know what was asked.
"""

from __future__ import annotations

import re
from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

OLDEST: Final = "5.0"

_PASSING: Final = {
    "OOM": "it is out of memory (maxmemory): raise maxmemory, or make room",
    "MISCONF": "it takes no writes because it cannot save to disk: free the disk, or see its log",
    "READONLY": "it is a replica and takes no writes: name the master, or write redis+sentinel:// or redis+cluster://",
    "NOREPLICAS": "too few replicas are connected to it (min-replicas-to-write)",
    "LOADING": "it is still reading its data after a start",
    "MASTERDOWN": "it is a replica that has lost its master",
    "BUSY": "it is busy with another client's script: SCRIPT KILL ends one that has not written",
    "TRYAGAIN": "the slot of this key is being moved to another node",
    "CLUSTERDOWN": "the Cluster is down: a slot has no master, or most masters cannot be reached",
    "UNBLOCKED": "the request was turned away while its role changed",
    "MAXCLIENTS": "it reached maxclients: raise it, or close some connections",
}
RIGHTS: Final = (
    "~PREFIX:* &PREFIX:* +eval +evalsha +get +set +del +exists +time +zadd +zpopmin +zrange +zrem +zremrangebyscore "
    "+pexpire +pttl +publish +subscribe +scan +role +select"
)
"""What a user with an ACL needs: docs/stores/redis.md."""

_FOR_GOOD: Final = {
    "NOAUTH": "it requires a password: put it into REDIS_PASSWORD, or into the URL",
    "WRONGPASS": "it does not accept user and password: correct them (URL, REDIS_USERNAME, REDIS_PASSWORD)",
    "NOPERM": f"this user may not do that: grant it {RIGHTS}",
    "DENIED": "it is in protected mode: set a password there, or bind it",
    "WRONGTYPE": "another program keeps something under our key: take another prefix (?prefix=...)",
    "CROSSSLOT": "the keys of one lock are not in one slot: is there a proxy on the way that rewrites keys?",
    "no password": "it has no password, and one was given: leave it out (URL, REDIS_PASSWORD)",
    "no database": "it has no such database: correct the number in the URL",
    "a node": "it is a node of a Cluster: write redis+cluster://",
    "no node": "it is not a node of a Cluster: write redis://",
    "old": f"it is too old: Redis {OLDEST} or later is needed",
    "no command": f"it cannot run scripts, or its commands were renamed: Redis {OLDEST} or later is needed",
}
_CODES: Final = frozenset({*_PASSING, *_FOR_GOOD, "MOVED", "ASK", "NOSCRIPT"})
_CODE: Final = re.compile(r"(?:^|-|: )([A-Z]{3,})\b")
_PHRASES: Final = {
    # errors without a code, or from which redis-py takes it at login
    "max number of clients": "MAXCLIENTS",
    "loading the dataset": "LOADING",
    "without any password configured": "no password",
    "but no password is set": "no password",
    "authentication required": "NOAUTH",
    "invalid password": "WRONGPASS",
    "invalid username-password": "WRONGPASS",
    "invalid username or password": "WRONGPASS",
    "no permissions to": "NOPERM",
    "the user executing the script can't": "NOPERM",
    "db index is out of range": "no database",
    "invalid db index": "no database",
    "select is not allowed in cluster mode": "a node",
    "cluster support disabled": "no node",
    "non deterministic commands": "old",
    "unknown redis command": "old",
    "unknown command": "no command",
}


def refusal(error: Exception, where: str, rights: str = RIGHTS) -> StoreError:
    """Translate an error reply. rights: what a user with an ACL needs."""
    code = code_of(error)
    if code in _PASSING:
        return StoreUnavailable(f"Redis at {where} rejected the request temporarily: {_PASSING[code]}")
    if code in _FOR_GOOD:
        return StoreRefused(f"Redis at {where} refuses: {_FOR_GOOD[code].replace(RIGHTS, rights)}")
    return OutcomeUnknown(f"Redis at {where} failed in a way that is not known: {_short(str(error))}")


def code_of(error: Exception) -> str:
    """Return the word by which Redis says what kind of error it is ("OOM"), or ours for it; empty if it is not known.

    Servers before 7 wrap the error of a script's command, with a dash or a colon before its code.
    """
    text = str(error)
    codes = (found[1] for found in _CODE.finditer(text) if found[1] in _CODES)
    phrases = (code for phrase, code in _PHRASES.items() if phrase in text.lower())
    return next(codes, None) or next(phrases, "")


def unconnected(error: Exception, where: str, *, is_secure: bool) -> StoreError:
    """Translate what went wrong before anything but the login was sent, whose words an error reply may repeat."""
    from redis import exceptions

    text, known = _short(str(error)), refusal(error, where)
    lowered = text.lower()
    if not isinstance(known, OutcomeUnknown):
        return known
    if isinstance(error, exceptions.ResponseError | exceptions.AuthenticationError):
        return StoreUnavailable(f"Redis at {where} refuses the login in a way that is not known; see its log")
    if "certificate verify failed" in lowered or "hostname mismatch" in lowered:
        return StoreRefused(
            f"the certificate of {where} is not trusted ({text}); name its authority: ?ssl_ca_certs=FILE"
        )
    # the library fails in its own ways at what no Redis sends
    if isinstance(error, exceptions.InvalidResponse) or not isinstance(error, exceptions.RedisError | OSError):
        way = "" if is_secure else ", or a Redis that wants TLS (write rediss://, or ?tls=true)"
        return StoreRefused(f"what answers at {where} is not Redis{way}; correct the address")
    if is_secure and any(
        word in lowered for word in ("wrong version", "record layer", "ssl", "eof occurred", "timeout")
    ):
        # a server without TLS waits for more of what it takes for a long command
        remedy = "if the server has no TLS, write redis://, or leave out ?tls=true"
        return StoreUnavailable(f"cannot connect to {where} with TLS: {text}; {remedy}")
    if not is_secure and any(word in lowered for word in ("closed by server", "reset by peer", "broken pipe")):
        return StoreUnavailable(
            f"{where} closed the connection at once; is it Redis, and does it want TLS (rediss://, or ?tls=true)?"
        )
    return StoreUnavailable(f"cannot connect to Redis at {where}: {text}")


def unanswered(error: Exception, where: str, limit: float) -> OutcomeUnknown:
    """Translate what went wrong after the send, or in the middle of it."""
    if isinstance(error, TimeoutError):
        return OutcomeUnknown(f"no answer from Redis at {where} within {limit:.3g} s")
    return OutcomeUnknown(f"no clear answer from Redis at {where} ({_short(str(error)) or type(error).__name__})")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:160] + "…"
