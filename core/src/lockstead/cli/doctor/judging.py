"""Checks of replies: whether a refusal had no effect, and whether a race had exactly one winner.

Must not know which guarantee is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from lockstead.cli.doctor.prober import PAUSES, Prober, attempts
from lockstead.errors import StoreError
from lockstead.protocol.commands import Absent, Command, Conflict, Create, Read, Snapshot
from lockstead.values import Name

CARRIED_OUT: Final = "a request that had to be refused was carried out"


def created(prober: Prober, name: Name, fields: Mapping[str, str] | None = None) -> Snapshot:
    """Create a record and return it as read back."""
    prober.settled(Create(name, {"n": "1"} if fields is None else fields))
    return prober.standing(name)


def refusal(prober: Prober, command: Command[Any], before: Snapshot | Absent) -> str:
    """Send a command that must be refused; return what happened instead, "" if it was refused without effect."""
    name: Name = command.name  # type: ignore[attr-defined]  # every command that is to be refused names a record
    answer: object = None
    for _pause in attempts():
        answer = prober.once(command)
        seen = prober.once(Read(name))
        after = None if isinstance(seen, StoreError) else seen
        if after is not None and _state(after) != _state(before):
            return CARRIED_OUT
        if isinstance(answer, Conflict):
            return ""
        if not isinstance(answer, StoreError):
            # the Read fails in stores that cannot report a missing record; then this reply shows the effect
            return CARRIED_OUT if after is None else f"the answer was {kind(answer)}"
    return f"nothing was changed, but the answer was {kind(answer)}"


def _state(seen: Snapshot | Absent) -> object:
    return (seen.incarnation, seen.revision, dict(seen.fields)) if isinstance(seen, Snapshot) else None


def one_winner(prober: Prober, once: Callable[[float], tuple[Name, list[Any]]]) -> str:
    """Run a race until its outcome is clear; return how it broke the guarantee, "" if exactly one won.

    once(pause) runs it on a separate record, which was not changed for `pause` seconds.
    """
    unclear: list[object] = []
    for pause in (0.0, *PAUSES):
        name, answers = once(pause)
        won = [answer for answer in answers if isinstance(answer, Snapshot)]
        unclear = [answer for answer in answers if not isinstance(answer, Snapshot | Conflict)]
        if len(won) > 1:
            return f"{len(won)} of {len(answers)} won"
        if len(won) == 1:
            now = prober.standing(name)
            return "" if dict(now.fields) == dict(won[0].fields) else "the record is not the winner's"
        if not unclear:
            return f"none of {len(answers)} won"
    if isinstance(unclear[0], StoreError):
        raise unclear[0]
    return f"an answer was {kind(unclear[0])}"


def kind(answer: object) -> str:
    """Return a description of a reply: the error's message, or the type."""
    return str(answer) if isinstance(answer, StoreError) else type(answer).__name__


def other(value: str) -> str:
    """Return a different incarnation or revision of the same format."""
    return str(int(value) + 1) if value.isdigit() else value + "0"
