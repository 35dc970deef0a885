"""What an answer shows of a promise: whether a refusal was one, whether a race had one winner.

Must not know which promise is on trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from lockstead.cli.doctor.prober import PAUSES, Prober
from lockstead.errors import StoreError
from lockstead.protocol.commands import Absent, Command, Conflict, Create, Read, Snapshot
from lockstead.values import Name

CARRIED_OUT: Final = "a request that had to be refused was carried out"


def created(prober: Prober, name: Name, fields: Mapping[str, str] | None = None) -> Snapshot:
    """Create a record and give it as it stands."""
    prober.settled(Create(name, {"n": "1"} if fields is None else fields))
    return prober.standing(name)


def refusal(prober: Prober, command: Command[Any], before: Snapshot | Absent) -> str:
    """Ask for what must be refused; say what happened instead, "" if it was refused and nothing changed."""
    name: Name = command.name  # type: ignore[attr-defined]  # every command that is to be refused names a record
    answer: object = None
    for pause in (0.0, *PAUSES):
        time.sleep(pause)
        answer = prober.once(command)
        seen = prober.once(Read(name))
        after = None if isinstance(seen, StoreError) else seen
        if after is not None and _state(after) != _state(before):
            return CARRIED_OUT
        if isinstance(answer, Conflict):
            return ""
        if not isinstance(answer, StoreError):
            # some stores cannot say that a record is gone; this one said that it did what it must not do
            return CARRIED_OUT if after is None else f"the answer was {kind(answer)}"
    return f"nothing was changed, but the answer was {kind(answer)}"


def _state(seen: Snapshot | Absent) -> object:
    return (seen.incarnation, seen.revision, dict(seen.fields)) if isinstance(seen, Snapshot) else None


def one_winner(prober: Prober, once: Callable[[float], tuple[Name, list[Any]]]) -> str:
    """Run a race until its outcome is clear; say how it broke the promise, "" if exactly one won.

    once(pause) runs it on a record of its own, which was left alone for `pause` seconds.
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
    """Name an answer: what it is, or what the store said."""
    return str(answer) if isinstance(answer, StoreError) else type(answer).__name__


def other(value: str) -> str:
    """Return an incarnation or a revision that is not this one and looks like it."""
    return str(int(value) + 1) if value.isdigit() else value + "0"
