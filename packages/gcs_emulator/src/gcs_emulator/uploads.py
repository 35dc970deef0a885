"""Resumable uploads: sessions that collect content until it is complete.

The store creates the object when the last chunk has arrived.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

from gcs_emulator.conditions import Conditions
from gcs_emulator.errors import ApiError
from gcs_emulator.objects import StoredObject

CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Session:
    """One upload in progress."""

    bucket: str
    name: str
    resource: Mapping[str, object]
    conditions: Conditions
    content: bytes = field(default=b"", repr=False)
    made: StoredObject | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The chunk of one PUT: content from an offset; offset None: no content, only a status query."""

    offset: int | None
    content: bytes = field(repr=False)
    total: int | None

    @property
    def is_last(self) -> bool:
        """Whether the content is complete with this chunk."""
        return self.offset is not None and self.offset + len(self.content) == self.total


class Sessions:
    """The uploads in progress; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def start(self, session: Session) -> str:
        """Add a new session and return its id."""
        upload_id = uuid4().hex
        with self._lock:
            self._sessions[upload_id] = session
        return upload_id

    def get(self, upload_id: str) -> Session:
        """Return a session; raises ApiError 404."""
        with self._lock:
            if upload_id not in self._sessions:
                raise ApiError(404, "No such upload.")
            return self._sessions[upload_id]

    def forget(self, upload_id: str) -> None:
        """Delete a session, if it exists."""
        with self._lock:
            self._sessions.pop(upload_id, None)

    def finish(self, upload_id: str, made: StoredObject) -> None:
        """Keep the object that a session created, for a client that lost the response and asks again."""
        with self._lock:
            if upload_id in self._sessions:
                self._sessions[upload_id] = replace(self._sessions[upload_id], content=b"", made=made)

    def take(self, upload_id: str, chunk: Chunk) -> tuple[Session, bool]:
        """Add a chunk; return the session, and whether its content is complete.

        The part of a chunk that was already received is ignored. Raises ApiError 404, or 400 for a gap.
        """
        with self._lock:
            if upload_id not in self._sessions:
                raise ApiError(404, "No such upload.")
            session = self._sessions[upload_id]
            if session.made is not None:
                return session, True
            if chunk.offset is not None:
                known = len(session.content)
                if chunk.offset > known:
                    raise ApiError(400, f"The chunk starts at {chunk.offset}, expected was {known}.")
                session = replace(session, content=session.content + chunk.content[known - chunk.offset :])
                self._sessions[upload_id] = session
            return session, len(session.content) == chunk.total


def chunk_of(content_range: str | None, body: bytes) -> Chunk:
    """Return the chunk of a PUT by its Content-Range; without one, the body is everything. Raises ApiError 400."""
    if content_range is None:
        return Chunk(0, body, len(body))
    found = CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise ApiError(400, f"Invalid Content-Range: {content_range!r}")
    first, last, total_text = found.groups()
    total = None if total_text == "*" else int(total_text)
    if first is None:
        return Chunk(None, b"", total)
    if len(body) != int(last) - int(first) + 1:
        raise ApiError(400, f"Content-Range {content_range!r} does not fit a body of {len(body)} bytes.")
    return Chunk(int(first), body, total)
