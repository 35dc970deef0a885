"""The templates and what they are given. Every text is escaped; there is no inline script and no inline style."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lockstead.dashboard.rows import URGENCY, Row, duration
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


def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters["date"] = lambda epoch: date_text(epoch) or ""
    made.filters["duration"] = duration
    made.globals |= {"static": static, "states": URGENCY}
    return made


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
            self._rows = {one.id: row(one) for one in self.view.rows}
        return self._rows

    @property
    def prints(self) -> dict[str, int]:
        """A fingerprint of each row, without what grows with time alone: the page counts that on by itself."""
        if self._prints is None:
            self._prints = {one.id: hash(_lasting(one)) for one in self.view.rows}
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
        return "".join(row(one, oob=True) for one in self.view.rows if one.id in ids)

    def _render(self, name: str) -> str:
        given: dict[str, Any] = {"view": self.view, "rows": self.rows, "filter": self._wanted}
        return self._templates.get_template(name).render(given)


def _lasting(row: Row) -> Row:
    return replace(row, left=None, held=None, overdue=None)
