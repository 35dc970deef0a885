"""Fencing of a Cloud Storage object by the highest token in its metadata.

Admission and write are two requests, made atomic by the object's metageneration: an admission changes it, and a write
expects the one of its admission. Must not know any lock store; requests go through the caller's own
`google.cloud.storage` blob.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import LeaseLost, LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from google.cloud.storage import Blob

FENCE: Final = "lockstead-fence"
"""The metadata field: token, a colon, and the lock's key."""

TURNS_MAX: Final = 16
TIMEOUT: Final = 60.0
_CARRIED: Final = ("cache_control", "content_disposition", "content_encoding", "content_language")


class GcsFenceStore:
    """The highest token of one lock, in the metadata of the object that the lock protects.

    Admit first, before you read what you will overwrite; then `rewrite`. The service itself refuses a rewrite after a
    later holder was admitted. A missing object is created empty, to carry the token. For one lock: ValueError for the
    token of another. For one thread at a time.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._key = ""
        self._token = 0
        self._metadata: dict[str, str] = {}
        self._conditions: dict[str, int] = {}

    @property
    def conditions(self) -> dict[str, int]:
        """The preconditions of a write, as arguments for the blob's own methods; empty before an admission."""
        return dict(self._conditions)

    def advance(self, key: str, token: int) -> int:
        """Raise the highest token to `token` if it is lower, and return the highest token.

        StoreRefused without permission, StoreUnavailable or OutcomeUnknown if the service does not answer.
        """
        for _ in range(TURNS_MAX):
            seen = self._seen()
            if seen is None:
                continue
            said, highest = _fence(seen.metadata or {})
            if said and said != key:
                raise ValueError(
                    f"{seen.name!r} is fenced by the lock {said!r}, not by {key!r}: tokens of two locks have no order"
                )
            if highest > token:
                return highest
            if highest == token or self._patched(seen, key, token):
                self._admitted(seen, key, token)
                return token
        raise StoreUnavailable(f"{self._blob.name!r} changes too fast to be fenced; retry")

    def rewrite(self, data: bytes | str, content_type: str = "application/octet-stream") -> None:
        """Replace the object's data under the token that was admitted last; its other metadata is kept.

        LeaseLost (TAKEN) if a later holder was admitted meanwhile, StoreRefused if somebody else wrote without a
        token, OutcomeUnknown if no answer came: read before you write again.
        """
        if not self._conditions:
            raise ValueError("nothing was admitted yet: call FenceGuard.admit first")
        fresh = self._fresh()
        fresh.metadata = {**self._metadata, FENCE: f"{self._token}:{self._key}"}
        for name in _CARRIED:
            setattr(fresh, name, getattr(self._blob, name))
        written = _asked(
            lambda: fresh.upload_from_string(data, content_type=content_type, **self._conditions, **_ONCE),
            "the object may have been written; read it before you write again",
        )
        if written is _REFUSED:
            raise self._overtaken()
        self._admitted(fresh, self._key, self._token)

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

    def _patched(self, seen: Blob, key: str, token: int) -> bool:
        seen.metadata = {**(seen.metadata or {}), FENCE: f"{token}:{key}"}
        expected = {"if_generation_match": seen.generation, "if_metageneration_match": seen.metageneration}
        return _asked(lambda: seen.patch(**expected, **_ONCE), "", is_doubt_fine=True) is _DONE

    def _admitted(self, seen: Blob, key: str, token: int) -> None:
        self._key, self._token = key, token
        self._metadata = dict(seen.metadata or {})
        self._conditions = {
            "if_generation_match": int(seen.generation),
            "if_metageneration_match": int(seen.metageneration),
        }

    def _overtaken(self) -> Exception:
        seen = self._seen()
        highest = self._token if seen is None else _fence(seen.metadata or {})[1]
        if highest > self._token:
            return LeaseLost(
                f"token {self._token} of {self._key!r} is superseded: {highest} was admitted before",
                reason=LossReason.TAKEN,
                key=self._key,
                token=self._token,
            )
        return StoreRefused(
            f"{self._blob.name!r} was changed since token {self._token} was admitted, not by a later holder: "
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


def _fence(metadata: dict[str, str]) -> tuple[str, int]:
    """Return (key, token) of an object's metadata; ("", 0) if there is none. StoreRefused if it is damaged."""
    text = metadata.get(FENCE)
    if text is None:
        return "", 0
    token, colon, key = text.partition(":")
    if not (token.isdigit() and colon and key):
        raise StoreRefused(f"the object's metadata {FENCE} is damaged: {text[:40]!r}; expected token:key")
    return key, int(token)
