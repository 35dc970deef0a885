"""One template with the same values is one key in every wrapper; what cannot be written is refused in one line."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pytest

from lockstead import templates, urls


class Dist(str, Enum):  # noqa: UP042 - its text differs between versions of Python
    """A choice, as a form offers it."""

    TRIXIE = "trixie"


class Repository:
    """A value with a field."""

    name = "apt"


VALUES: dict[str, Any] = {
    "dist": "trixie",
    "number": 7,
    "share": 0.5,
    "price": Decimal("1.50"),
    "day": date(2026, 11, 24),
    "choice": Dist.TRIXIE,
    "where": PurePosixPath("pool/main"),
    "id": UUID(int=1),
    "odd": "a/b?c=d#e %&ü{x}",
    "tags": {"team": "release"},
    "repository": Repository(),
    "none": None,
    "empty": " ",
    "many": ["a"],
    "raw": b"a",
}

WRITTEN = {
    "apt-{dist}": "apt-trixie",
    "{number:03d}": "007",
    "{share}/{price}": "0.5/1.50",
    "{day}": "2026-11-24",
    "{day:%Y}": "2026",
    "{choice}": "trixie",
    "{where}": "pool/main",
    "{id}": "00000000-0000-0000-0000-000000000001",
    "x-{odd}": "x-a/b?c=d#e %&ü{x}",
    "{tags[team]}-{repository.name}": "release-apt",
    "{{{dist}}}": "{trixie}",
    "{dist!r}": "'trixie'",
}


@pytest.mark.parametrize("template", WRITTEN)
def test_a_key_is_the_same_from_a_url_and_as_a_plain_key(template: str) -> None:
    by_itself = templates.rendered("key", template, VALUES)
    url = templates.rendered_url(f"sqlite:///locks.db#{template}", VALUES)
    assert by_itself == unquote(url.partition("#")[2]) == WRITTEN[template]
    # and either is one lock, also where Dagster makes a URL of it
    assert unquote(urls.lock_url("sqlite:///locks.db", by_itself).partition("#")[2]) == by_itself


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{missing}", "names 'missing', which is not known here: known are choice, day,"),
        ("{none}", "{none} cannot be written: it is None"),
        ("{empty}", "{empty} cannot be written: it is empty"),
        ("{many}", "{many} cannot be written: it is of the type list"),
        ("{many!s}", "{many} cannot be written: it is of the type list"),
        ("{raw}", "{raw} cannot be written: it is of the type bytes"),
        ("{repository}", "it is of the type Repository: name one of its fields, as in {name.field}"),
        ("{tags}", "{tags} cannot be written: it is of the type dict"),
        ("{tags[nobody]}", "{tags[nobody]} cannot be written: 'nobody'"),
        ("{repository.nothing}", "{repository.nothing} cannot be written"),
        ("{dist:d}", "{dist} cannot be written"),
    ],
)
def test_an_invalid_value_is_refused_alike_in_both(template: str, why: str) -> None:
    lines = []
    for call in (
        lambda: templates.rendered("lock", f"sqlite:///locks.db#{template}", VALUES),
        lambda: templates.rendered_url(f"sqlite:///locks.db#{template}", VALUES),
    ):
        with pytest.raises(ValueError) as refused:
            call()
        lines.append(str(refused.value))
    assert lines[0] == lines[1]
    assert why in lines[0]
    assert "\n" not in lines[0]


@pytest.mark.parametrize("template", ["{", "}", "{}", "{0}", "{a:{b}}", "{.x}", "{!}"])
def test_an_invalid_template_is_refused_without_values(template: str) -> None:
    for call in (templates.sample, templates.names_in):
        with pytest.raises(ValueError, match="key=") as refused:
            call("key", template)
        assert "\n" not in str(refused.value)
