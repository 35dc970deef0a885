"""Decides what a template of a lock's name means: `{parameter}`, as of `str.format`. Must not know Prefect nor stores.

A value goes into a URL percent-quoted, so that it can be no more than a piece of the key or of a setting. In the part
of the URL that names the store it must be a plain word: there a store reads more than a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any, Final
from urllib.parse import quote

_FORMATTER: Final = Formatter()
_ROOT: Final = re.compile(r"[^.\[]*")
_WORD: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def is_template(text: str) -> bool:
    """Tell whether a text has braces, which a parameter or a doubled brace is written with."""
    return "{" in text or "}" in text


def names_in(what: str, template: str) -> frozenset[str]:
    """Give the parameters that a template names; ValueError with one line if it cannot be read."""
    return frozenset(root for _, root, *_ in _pieces(what, template) if root)


def rendered(what: str, template: str, parameters: Mapping[str, Any]) -> str:
    """Give a template's text; ValueError with one line for a parameter that is missing or cannot be written."""
    return _joined(what, template, parameters, lambda text, _: text)


def rendered_url(template: str, parameters: Mapping[str, Any]) -> str:
    """Give a lock's URL; ValueError with one line, also for a value that cannot stand where the store is named."""
    return _joined("lock", template, parameters, _quoted)


def sample_url(template: str) -> str | None:
    """Give a URL that the template may become, to check it; None if a setting of it is templated."""
    made, asks = "", False
    for literal, root, *_ in _pieces("lock", template):
        made += literal
        asks = asks or "?" in literal
        if root and asks:
            return None
        made += "x" if root else ""
    return made


def _joined(what: str, template: str, parameters: Mapping[str, Any], write: Callable[[str, bool], str]) -> str:
    made, names_store = "", True
    has_fragment = any("#" in literal for literal, *_ in _pieces(what, template))
    for literal, root, field, spec, conversion in _pieces(what, template):
        made += literal
        names_store = names_store and "#" not in literal
        if not root:
            continue
        if root not in parameters:
            raise ValueError(f"{what}={template!r} names the parameter {root!r}, which this call has not")
        try:
            value, _ = _FORMATTER.get_field(field, (), parameters)
            text = format(_FORMATTER.convert_field(value, conversion), spec) if conversion else format(value, spec)
            made += write(text, names_store and has_fragment)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise ValueError(f"{what}={template!r}: {{{field}}} cannot be written: {error}") from None
    return made


def _quoted(text: str, names_store: bool) -> str:
    if not text:
        raise ValueError("it is empty")
    if names_store and not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} stands in the store's name, where letters, digits, '.', '_' and '-' may stand only")
    return quote(text, safe="")


def _pieces(what: str, template: str) -> Iterator[tuple[str, str, str, str, str | None]]:
    """Give (literal, the parameter's name, field, format, conversion) one after the other; an empty name is none."""
    try:
        pieces = list(_FORMATTER.parse(template))
    except ValueError as error:
        raise ValueError(f"{what}={template!r} is no template that can be read: {error}") from None
    for literal, field, spec, conversion in pieces:
        if field is None:
            yield literal, "", "", "", None
            continue
        found = _ROOT.match(field)
        root = found[0] if found else ""
        if not root.isidentifier():
            raise ValueError(
                f"{what}={template!r}: {{{field}}} names no parameter; write {{name}}, and a brace itself twice"
            )
        if "{" in (spec or ""):
            raise ValueError(f"{what}={template!r}: the format of {{{field}}} may be no template itself")
        yield literal, root, field, spec or "", conversion
