"""Preconditions: may this request touch this object?

Pure. `ifGenerationMatch` and its three sisters, as one value that is judged against an object or its absence.
The rules, for the generation and for the metageneration alike:

* match: 0 holds when the object is absent, any other number when it is equal; else 412.
* not-match: 0 holds when the object is present, any other number when it differs; else 304.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gcs_emulator.errors import ApiError


class Versioned(Protocol):
    """What a precondition looks at."""

    @property
    def generation(self) -> int:
        """The incarnation of the object."""
        ...

    @property
    def metageneration(self) -> int:
        """The version of its metadata within the incarnation."""
        ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """The preconditions of one request; None where the request has none."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def judge(self, found: Versioned | None) -> None:
        """Return if all hold for what was found (None: absent).

        Raises ApiError 412 for a match that fails, 304 for a not-match that fails; match is judged first.
        """
        generation = found.generation if found is not None else 0
        metageneration = found.metageneration if found is not None else 0
        if _differs(self.generation_match, generation) or _differs(self.metageneration_match, metageneration):
            raise ApiError(412)
        if self.generation_not_match == generation or self.metageneration_not_match == metageneration:
            raise ApiError(304)


ALWAYS = Conditions()


def _differs(wanted: int | None, actual: int) -> bool:
    return wanted is not None and wanted != actual


def conditions_of(query: Mapping[str, str], prefix: str = "if") -> Conditions:
    """Read the preconditions out of a query; prefix `ifSource` reads those on the source of a copy.

    Raises ApiError 400 for one that is not a whole number.
    """
    if not any(key.startswith("if") for key in query):
        return ALWAYS
    return Conditions(
        whole_number(query, f"{prefix}GenerationMatch"),
        whole_number(query, f"{prefix}GenerationNotMatch"),
        whole_number(query, f"{prefix}MetagenerationMatch"),
        whole_number(query, f"{prefix}MetagenerationNotMatch"),
    )


def whole_number(query: Mapping[str, str], key: str) -> int | None:
    """Return a query's whole number, None if it is not there; raises ApiError 400 for anything else."""
    text = query.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise ApiError(400, f"Invalid value for {key}: {text!r} is not an unsigned whole number.")
    return int(text)
