"""Names of owners, metadata keys and events.

Must not know Dagster. An owner is `dagster:<run_id>` for a whole run, and `dagster:<run_id>:<step_key>:<retry>` for
one attempt of a step.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "dagster:"

KEY: Final = "lockstead/key"
HOLDER: Final = "lockstead/holder"
TOKEN: Final = "lockstead/token"  # noqa: S105 - a fencing token is not a secret
SLOT: Final = "lockstead/slot"
REASON: Final = "lockstead/reason"
PREDECESSOR: Final = "lockstead/predecessor"
WAITED: Final = "lockstead/waited"
HELD_BY: Final = "lockstead/held_by"
HELD_RUN: Final = "lockstead/held_by_run"
HELD_SINCE: Final = "lockstead/held_since"
HELD_TOKEN: Final = "lockstead/held_with_token"  # noqa: S105 - a fencing token is not a secret
HELD_UNTIL: Final = "lockstead/expected_until"
PURPOSE: Final = "lockstead/purpose"
"""The metadata keys of outputs, failures and events."""

WAITING: Final = "waiting"
ACQUIRED: Final = "acquired"
LOST: Final = "lost"
RELEASED: Final = "released"
"""The first word of an engine event's message; see `reporting`."""


def run_owner(run_id: str) -> str:
    """Return the owner name of a whole run."""
    return f"{PREFIX}{run_id}"


def step_owner(run_id: str, step_key: str, retry: int) -> str:
    """Return the owner name of one attempt of a step."""
    return f"{PREFIX}{run_id}:{step_key}:{retry}"


def run_of(owner: str) -> str | None:
    """Return the run id in an owner name; None for a name that is not from `run_owner` or `step_owner`."""
    if not owner.startswith(PREFIX):
        return None
    run_id, has_step, rest = owner.removeprefix(PREFIX).partition(":")
    step_key, _, retry = rest.rpartition(":")
    if not run_id or (has_step and not (step_key and retry.isdigit())):
        return None
    return run_id
