"""Words of the scenarios of permits: wishes for them, and an operator, on a bench."""

from __future__ import annotations

import math
from typing import Any

from lockstead.protocol.acquire import AcquireRequest, Grant
from lockstead.protocol.commands import Create, Traits
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.permits import (
    PermitRequest,
    SemaphoreRequest,
    acquire_permit,
    resize,
    slot_name,
    turn_name,
)
from lockstead.protocol.record import Record, encode
from lockstead.settings import Settings
from lockstead.values import Name
from tests.protocol.bench import Bench, Session
from tests.simulation.store import SHARED, Entry

API = "api"
GATE = Name(API)
TURN_SETTINGS = Settings.make(ttl=30)


class SemaphoreBench(Bench):
    """A bench with a semaphore."""

    def __init__(self, traits: Traits = SHARED, **settings: Any) -> None:
        super().__init__(traits, **settings)
        self.abandoned: list[AcquireRequest] = []
        self.seen: list[Any] = []

    def wish(self, holder: str, permits: int | None = 3, on_mismatch: str = "refuse", **more: Any) -> PermitRequest:
        fields = encode(Record(holder, self.settings.ttl, owner=holder))
        turn_fields = encode(Record(f"{holder}/turn", TURN_SETTINGS.ttl, owner=holder))
        return PermitRequest(
            SemaphoreRequest(API, permits, on_mismatch, holder, self.seen.append),
            AcquireRequest(GATE, holder, holder, fields),
            AcquireRequest(turn_name(API), f"{holder}/turn", holder, turn_fields),
            TURN_SETTINGS,
            on_abandoned=self.abandoned.append,
            on_wait=self.seen.append,
            **more,
        )

    def taking(
        self,
        wish: PermitRequest | str,
        context: ProtocolContext | None = None,
        *,
        gives_up_at: float = math.inf,
        tries_once: bool = False,
        permits: int | None = 3,
    ) -> Session:
        asked = self.wish(wish, permits) if isinstance(wish, str) else wish
        script = acquire_permit(asked, context or self.context(), gives_up_at=gives_up_at, tries_once=tries_once)
        return self.session(script)

    def taken(self, holder: str, permits: int = 3, slot: int | None = None) -> Grant:
        """Take a permit, the one with this number if it is given."""
        grant = self.taking(self.wish(holder, permits, guess=slot)).run()
        assert isinstance(grant, Grant)
        return grant

    def resizing(self, limit: int, by: str, *, wait_until: float | None = None) -> Session:
        return self.session(resize(API, limit, by, self.context(), wait_until=wait_until))

    def resized(self, limit: int, by: str) -> bool:
        result: bool = self.resizing(limit, by).run()
        return result

    def to_slot(self, session: Session) -> int:
        """Let a wish go on until it writes to a slot; return which."""
        for _ in range(20):
            if isinstance(session.command, Create) and session.command.name.is_slot:
                return int(session.command.name.part)
            session.commit()
        raise AssertionError(f"no slot is tried, but {session.command or session.outcome}")

    def slot(self, number: int) -> Entry | None:
        return self.store.entries.get(slot_name(API, number))

    @property
    def limit(self) -> str | None:
        entry = self.store.entries.get(GATE)
        return None if entry is None else entry.fields["limit"]

    @property
    def turn(self) -> str | None:
        entry = self.store.entries.get(turn_name(API))
        return None if entry is None else entry.fields["identity"]


def slot_number(grant: Grant) -> int:
    return int(grant.lease.name.part)
