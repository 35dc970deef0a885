"""Fencing of a Cloud Storage object by the highest token in its metadata.

Admission and write are two requests, made atomic by the object's metageneration: an admission changes it, and a write
expects the one of its admission. Must not know any lock store; requests go through the caller's own
`google.cloud.storage` blob.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.fencing.guard import superseded
from lockstead.values import SHARED, Sequencer

if TYPE_CHECKING:
    from google.cloud.storage import Blob

FENCE: Final = "lockstead-fence"
"""The metadata field: the highest sequencer that was admitted."""

TURNS_MAX: Final = 16
TIMEOUT: Final = 60.0
_CARRIED: Final = ("cache_control", "content_disposition", "content_encoding", "content_language")


class GcsFenceStore:
    """The highest token of one lock, in the metadata of the object that the lock protects.

    Admit first, before you read what you will overwrite; then `rewrite`. The service itself refuses a rewrite after a
    later holder was admitted; a reader's admission permits none. A missing object is created empty, to carry the token.
    For one lock, or one slot of a semaphore: ValueError for the token of another. For one thread at a time.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._writer: Sequencer | None = None
        self._metadata: dict[str, str] = {}
        self._conditions: dict[str, int] = {}

    @property
    def conditions(self) -> dict[str, int]:
        """The preconditions of a write, as arguments for the blob's own methods; empty before a writer's admission."""
        return dict(self._conditions)

    def advance(self, sequencer: Sequencer) -> Sequencer:
        """Keep the sequencer, unless one with a higher rank is kept; return what is kept.

        StoreRefused without permission, StoreUnavailable or OutcomeUnknown if the service does not answer.
        """
        for _ in range(TURNS_MAX):
            seen = self._seen()
            if seen is None:
                continue
            highest = _highest(seen)
            if highest is not None and highest.fence != sequencer.fence:
                raise ValueError(
                    f"{seen.name!r} is fenced by {highest.fence!r}, not by {sequencer.fence!r}: "
                    "tokens of two locks have no order"
                )
            if highest is not None and highest.rank > sequencer.rank:
                return highest
            if highest == sequencer or self._patched(seen, sequencer):
                if sequencer.mode != SHARED:
                    self._admitted(seen, sequencer)
                return sequencer
        raise StoreUnavailable(f"{self._blob.name!r} changes too fast to be fenced; retry")

    def rewrite(self, data: bytes | str, content_type: str = "application/octet-stream") -> None:
        """Replace the object's data under the writer's token admitted last; its other metadata is kept.

        LeaseLost (TAKEN) if a later holder was admitted meanwhile, StoreRefused if somebody else wrote without a
        token, OutcomeUnknown if no answer came: read before you write again.
        """
        writer = self._writer
        if writer is None:
            raise ValueError("no writer was admitted yet: call FenceGuard.admit first")
        fresh = self._fresh()
        fresh.metadata = {**self._metadata, FENCE: str(writer)}
        for name in _CARRIED:
            setattr(fresh, name, getattr(self._blob, name))
        written = _asked(
            lambda: fresh.upload_from_string(data, content_type=content_type, **self._conditions, **_ONCE),
            "the object may have been written; read it before you write again",
        )
        if written is _REFUSED:
            raise self._overtaken(writer)
        self._admitted(fresh, writer)

    # --- requests ------------------------------------------------------------------------------------------------

    def _fresh(self) -> Blob:
        return self._blob.bucket.blob(self._blob.name)

    def _seen(self) -> Blob | None:
        """Return the current object; None if it was created or changed just now: read again."""
        fresh = self._fresh()
        if _asked(lambda: fresh.reload(**_ONCE), "") is not _ABSENT:
            return fresh
        created = _asked(lambda: fresh.upload_from_string(b"", if_generation_match=0, **_ONCE), "", is_doubt_fine=True)
        if created is _ABSENT:
            raise StoreRefused(f"there is no bucket {self._blob.bucket.name!r}, or this account may not see it")
        return None

    def _patched(self, seen: Blob, sequencer: Sequencer) -> bool:
        seen.metadata = {**(seen.metadata or {}), FENCE: str(sequencer)}
        expected = {"if_generation_match": seen.generation, "if_metageneration_match": seen.metageneration}
        return _asked(lambda: seen.patch(**expected, **_ONCE), "", is_doubt_fine=True) is _DONE

    def _admitted(self, seen: Blob, writer: Sequencer) -> None:
        self._writer = writer
        self._metadata = dict(seen.metadata or {})
        self._conditions = {
            "if_generation_match": int(seen.generation),
            "if_metageneration_match": int(seen.metageneration),
        }

    def _overtaken(self, writer: Sequencer) -> Exception:
        seen = self._seen()
        highest = None if seen is None else _highest(seen)
        if highest is not None and highest.rank > writer.rank:
            return superseded(writer, highest)
        return StoreRefused(
            f"{self._blob.name!r} was changed since token {writer.token} was admitted, not by a later holder: "
            "every writer must present a token; admit again, and read before you write"
        )


class _Answer:
    pass


_DONE: Final = _Answer()
_REFUSED: Final = _Answer()
_ABSENT: Final = _Answer()
_DOUBT: Final = _Answer()

# the library's own retries turn our own success into a conflict
_ONCE: Final[dict[str, Any]] = {"retry": None, "timeout": TIMEOUT}


def _asked(request: Any, doubt: str, *, is_doubt_fine: bool = False) -> _Answer:
    """Send one request and return its result as one of four answers."""
    import requests
    from google.api_core import exceptions as api

    try:
        request()
    except (api.PreconditionFailed, api.Conflict):
        return _REFUSED
    except api.NotFound:
        return _ABSENT
    except (api.Forbidden, api.Unauthorized, api.BadRequest) as error:
        raise StoreRefused(f"the service refused: {error.message}") from error
    except (api.GoogleAPIError, requests.RequestException, OSError) as error:
        if is_doubt_fine:
            return _DOUBT  # the next read finds out
        raise (OutcomeUnknown if doubt else StoreUnavailable)(
            doubt or f"the service did not answer: {error}"
        ) from error
    return _DONE


def _highest(seen: Blob) -> Sequencer | None:
    """Return the highest sequencer in an object's metadata; None if there is none. StoreRefused if it is damaged."""
    text = (seen.metadata or {}).get(FENCE)
    if text is None:
        return None
    try:
        return Sequencer.parse(text)
    except ValueError as error:
        raise StoreRefused(f"the object's metadata {FENCE} is damaged: {error}") from None
