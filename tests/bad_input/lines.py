"""The lines of errors as docs/errors.md shows them, where no URL alone leads to them; and how one is recognised."""

from __future__ import annotations

import re

SECRET = "s3cret"
"""Stands wherever a password could: never to be seen again."""

NO_TICKET = "not a lease ticket: …; expected the whole text, as in …"
NEWER_TICKET = "the lease ticket has version …, this lockstead reads …: upgrade this process"
OLDER_TICKET = "the lease ticket has version …, this lockstead reads …: issue a new one"
OTHER_KEY = "the ticket is for …, this lock is …"
OTHER_STORE = "the ticket is for a lock in …, this store is …"
TICKET_TYPE = "a lease ticket is text, not …; pass what detach() returned"
LATE_TICKET = "cannot attach to the lease of … on …, …: …"
NO_SEQUENCER = (
    "not a sequencer: …; expected token:mode:key, as in '7:exclusive:apt', with the mode exclusive, shared or permit/N"
)
NO_MODE = "the mode of a sequencer is exclusive, shared or permit/N, not …"
SEQUENCER_TYPE = "a sequencer is text, not …; pass what lease.sequencer() gave"
EMPTY_KEY = "the key is empty; name the lock, as in 'gs://bucket/prefix#apt'"
KEY_TYPE = "a key is text, not …"
UNKNOWN_SETTING = "unknown setting …; known are …"
MISTYPED_SETTING = "unknown setting …, did you mean …?"
RECLAIM = "reclaim needs an explicit owner: the name of the earlier process whose lock is taken"
REASON = "breaking a lease needs a reason, for the holder and the audit"
CLOSED = "the client was closed: open another one"
SHARED = (
    "cannot keep locks in …: it is on a file system shared between machines (…), where neither SQLite's locks nor the "
    "boot clock hold; use a local disk, or another store"
)
AIRFLOW = {
    "lease lost: key …, holder …, token …, reason …: …",
    "… has acquired nothing in this run: clear it together with this task",
    "after … s … still works under the lease of … on …: not starting beside it",
    "ttl is … s; with a keeper it must be at least … s, because the triggers of a triggerer that dies run again only "
    "after about 30 s; take a longer ttl, or keeper=False ([lockstead] keeper_ttl_min in Airflow's settings)",
    "a memory: lock lives in one process and cannot be handed over: every task is a process of its own; take sqlite: "
    "on one machine, or another store",
    "… where the lock is named, not here",
    "there is no connection …: make one of the type lockstead, or name the store by its URL",
    "the connection … needs Redis's client library: pip install 'lockstead[redis]'",
    "no triggerer runs: this task waits until one does",
}
"""Those of the provider; that its code says them is looked at in `tests/surface`."""

SAID = {
    NO_TICKET,
    NEWER_TICKET,
    OLDER_TICKET,
    OTHER_KEY,
    OTHER_STORE,
    TICKET_TYPE,
    LATE_TICKET,
    NO_SEQUENCER,
    NO_MODE,
    SEQUENCER_TYPE,
    EMPTY_KEY,
    KEY_TYPE,
    UNKNOWN_SETTING,
    MISTYPED_SETTING,
    RECLAIM,
    REASON,
    CLOSED,
    SHARED,
}


def pattern(says: str) -> re.Pattern[str]:
    """Turn a line as the docs show it into what a message must match as a whole."""
    return re.compile(".*".join(re.escape(part) for part in says.split("…")))
