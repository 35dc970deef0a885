"""Preconditions of a request on an object.

No I/O. `ifGenerationMatch` and the other three parameters, as one value that is checked against an object or its
absence. The rules are the same for generation and metageneration:

* match: 0 holds if the object is absent, any other number if it is equal; else 412.
* not-match: 0 holds if the object is present, any other number if it differs; else 304.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gcs_emulator.errors import ApiError


class Versioned(Protocol):
    """An object with the attributes that preconditions check."""

    @property
    def generation(self) -> int:
        """The generation of the object's content."""
        ...

    @property
    def metageneration(self) -> int:
        """The version of its metadata within the generation."""
        ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """The preconditions of one request; None for those it does not have."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def judge(self, found: Versioned | None) -> None:
        """Check all preconditions against an object (None: absent).

        Raises ApiError 412 if a match fails, 304 if a not-match fails; match is checked first.
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
    """Return the preconditions in a query; with prefix `ifSource`, those on the source of a copy.

    Raises ApiError 400 if one is not an unsigned integer.
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
    """Return an unsigned integer parameter of a query, None if it is missing; raises ApiError 400 if invalid."""
    text = query.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise ApiError(400, f"Invalid value for {key}: {text!r} is not an unsigned whole number.")
    return int(text)
