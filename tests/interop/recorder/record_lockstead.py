"""Records what one version of lockstead writes: objects, a database, tickets. Run by that version's own Python.

`cd $(mktemp -d) && PYTHON record_lockstead.py --version NAME --into FOLDER`; README.md of the recordings says more.
Uses what the first version had, so that every later one can be recorded too. The name of this machine is left out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import lockstead
from gcs_emulator import GcsServer

HOST = "host.example"
FULL: dict[str, Any] = {
    "ttl": 300,
    "owner": "recorder:full",
    "purpose": "publish APT packages",
    "expected": 600,
    "alert_after": 900,
    "auto_unlock_after": 7200,
    "labels": {"run": "7", "team": "packages"},
    "backtrace": True,
    "lock_delay": 5,
}


def write(url: str) -> dict[str, str]:
    """Leave one lease of each kind, none of them released; give the tickets."""
    client = lockstead.connect(url)
    plain = client.lock("plain", ttl=300, owner="recorder:plain").acquire(timeout=10)
    full = client.lock("full", **FULL).acquire(timeout=10)
    full.sequencer()
    tickets = {"full": str(full.share()), "plain": str(plain.detach())}
    revoked = client.lock("revoked", ttl=300, owner="recorder:revoked")
    revoked.acquire(timeout=10).detach()
    revoked.break_lease(reason="for the record", by="operator")
    closing = client.lock("closing", ttl=300, owner="recorder:closing")
    ticket = closing.acquire(timeout=10).detach()
    closing.attach(ticket)
    closing.release(ticket, drain=0)
    tickets["closing"] = str(ticket)
    return tickets


def without_this_machine(text: str) -> str:
    """Leave out the name of this machine and the place of this file."""
    return text.replace(os.uname().nodename, HOST).replace(str(Path(__file__).parent), "/srv/app")


def main() -> None:
    """Record both stores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--into", type=Path, required=True)
    wanted = parser.parse_args()
    logging.getLogger("lockstead").addHandler(logging.NullHandler())
    with GcsServer(buckets=["bucket"]) as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        tickets = write("gs://bucket/locks")
        objects = {
            name: {"metadata": dict(stored.draft.metadata), **stored.draft.fields}
            for name, stored in sorted(server.objects("bucket").items())
        }
    told = {"version": wanted.version, "tickets": tickets, "objects": objects}
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    (wanted.into / f"lockstead-{wanted.version}.json").write_text(without_this_machine(text))
    tickets = write("sqlite:///locks.db")
    with sqlite3.connect("locks.db") as database:
        pragmas = [
            f"PRAGMA {name} = {database.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        lines = [*database.iterdump(), *pragmas, *(f"-- ticket {key} {one}" for key, one in tickets.items())]
    (wanted.into / f"lockstead-{wanted.version}.sql").write_text(without_this_machine("\n".join(lines) + "\n"))
    os._exit(0)  # leave the leases as they stand


if __name__ == "__main__":
    main()
