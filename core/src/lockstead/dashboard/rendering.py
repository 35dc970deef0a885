"""The templates and their variables. Every text is escaped; there is no inline script and no inline style."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lockstead.dashboard.rows import URGENCY, Row
from lockstead.reading import date_text

if TYPE_CHECKING:
    from lockstead.dashboard.board import View
    from lockstead.dashboard.filters import Filter

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"


@cache
def static(name: str) -> str:
    """Return the address of a file of the folder `static`, relative to a page: it changes with the file."""
    return f"static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


@cache
def environment() -> Environment:
    """Return the templates, compiled once."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters["date"] = lambda epoch: date_text(epoch) or ""
    made.filters |= {"span": span, "soft": soft, "machine": machine}
    made.globals |= {"static": static, "states": URGENCY}
    return made


def span(seconds: float | None) -> str:
    """Return a duration for people: "2 h 10 min"; empty if it is unknown. dashboard.js writes it the same way."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    for size, unit, less, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            rest = whole % size // less
            return f"{whole // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"


def soft(text: str) -> Markup:
    """Return a name as HTML that may be broken after its separators."""
    return Markup(re.sub(r"(?<=[/:@])(?=[^/:@])", "<wbr>", str(escape(text))))  # noqa: S704 - it is escaped before


def machine(epoch: float) -> str:
    """Return an instant for an attribute `datetime`."""
    return (date_text(epoch) or "").replace(" UTC", "Z").replace(" ", "T")


class Rendered:
    """A view as HTML: rendered once for all tabs that show it."""

    def __init__(self, templates: Environment, view: View, wanted: Filter) -> None:
        self.view = view
        self._templates = templates
        self._wanted = wanted
        self._rows: dict[str, Markup] | None = None
        self._prints: dict[str, int] | None = None
        self._summary: str | None = None

    @property
    def rows(self) -> dict[str, Markup]:
        """Each row by its id, in order."""
        if self._rows is None:
            row = self._templates.get_template("_row.html").module.row  # type: ignore[attr-defined]  # a macro
            many = len(self.view.stores) > 1
            self._rows = {one.id: row(one, many=many) for one in self.view.rows}
        return self._rows

    @property
    def prints(self) -> dict[str, int]:
        """A fingerprint of each row."""
        if self._prints is None:
            self._prints = {one.id: hash(lasting(one)) for one in self.view.rows}
        return self._prints

    def summary(self) -> str:
        """Return counts and the states of the stores."""
        if self._summary is None:
            self._summary = self._render("_summary.html")
        return self._summary

    def everything(self) -> str:
        """Return the whole list."""
        return self._render("_list.html")

    def changed(self, ids: list[str]) -> str:
        """Return some rows, each to be put in place of the old one."""
        row = self._templates.get_template("_row.html").module.row  # type: ignore[attr-defined]  # a macro
        many = len(self.view.stores) > 1
        return "".join(row(one, oob=True, many=many) for one in self.view.rows if one.id in ids)

    def _render(self, name: str) -> str:
        given: dict[str, Any] = {"view": self.view, "rows": self.rows, "filter": self._wanted}
        return self._templates.get_template(name).render(given)


def lasting(row: Row) -> Row:
    """Return a row without what grows with time alone: the page counts that on by itself."""
    return replace(row, left=None, held=None, overdue=None)
