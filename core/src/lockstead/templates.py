"""Templates of lock names: `{name}`, as in `str.format`, the same in every wrapper.

A value is text, a number, a date, a time, a path or a UUID; an enumeration's member counts as its value. Anything
else (None, a list, an object) is refused, because its text, and so the lock, may differ between processes. In a key
a value is inserted unchanged. In a URL it is percent-quoted, so it can only be a part of the key or of a setting; in
the part that names the store it must be a plain word. Must not know orchestrators or stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from enum import Enum
from inspect import Parameter, Signature
from numbers import Number
from pathlib import PurePath
from string import Formatter
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

_FORMATTER: Final = Formatter()
_ROOT: Final = re.compile(r"[^.\[]*")
_PLAIN: Final = (str, Number, date, time, PurePath, UUID)
_WORD: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def arguments_of(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, including defaults. TypeError as the call itself would raise."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    made: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is Parameter.VAR_KEYWORD:
            made.update(value)
        else:
            made[name] = value
    return made


def is_template(text: str) -> bool:
    """Return whether a text has braces: of a parameter, or doubled for a brace."""
    return "{" in text or "}" in text


def names_in(what: str, template: str) -> frozenset[str]:
    """Return the names in a template. ValueError, with one line, if it is not valid."""
    return frozenset(root for _, root, *_ in _pieces(what, template) if root)


def rendered(what: str, template: str, values: Mapping[str, Any]) -> str:
    """Return a template's text. ValueError, with one line, for a value that is missing, empty or of another type."""
    return _joined(what, template, values, lambda text, _: text)


def rendered_url(template: str, values: Mapping[str, Any]) -> str:
    """Return a lock's URL. ValueError as for `rendered`, and for a value that cannot be part of the store's name."""
    return _joined("lock", template, values, _quoted)


def sample(what: str, template: str) -> str:
    """Return a text that the template may produce, to check it. ValueError, with one line, if it is not valid."""
    return "".join(literal + ("x" if root else "") for literal, root, *_ in _pieces(what, template))


def sample_url(template: str) -> str | None:
    """Return a URL that the template may produce, to check it; None if one of its settings is templated."""
    made, asks = "", False
    for literal, root, *_ in _pieces("lock", template):
        made += literal
        asks = asks or "?" in literal
        if root and asks:
            return None
        made += "x" if root else ""
    return made


def _joined(what: str, template: str, values: Mapping[str, Any], write: Callable[[str, bool], str]) -> str:
    made, names_store = "", True
    has_fragment = any("#" in literal for literal, *_ in _pieces(what, template))
    for literal, root, field, spec, conversion in _pieces(what, template):
        made += literal
        names_store = names_store and "#" not in literal
        if not root:
            continue
        if root not in values:
            known = f"known are {', '.join(sorted(values))}" if values else "no name is"
            raise ValueError(f"{what}={template!r} names {root!r}, which is not known here: {known}")
        try:
            text = _text(_FORMATTER.get_field(field, (), values)[0], spec, conversion)
            made += write(text, names_store and has_fragment)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise ValueError(f"{what}={template!r}: {{{field}}} cannot be written: {error}") from None
    return made


def _text(value: Any, spec: str, conversion: str | None) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        raise ValueError("it is None")
    if not isinstance(value, _PLAIN):
        raise TypeError(f"it is of the type {type(value).__name__}: name one of its fields, as in {{name.field}}")
    text = format(_FORMATTER.convert_field(value, conversion) if conversion else value, spec)
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _quoted(text: str, names_store: bool) -> str:
    if names_store and not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} stands in the store's name, where letters, digits, '.', '_' and '-' may stand only")
    return quote(text, safe="")


def _pieces(what: str, template: str) -> Iterator[tuple[str, str, str, str, str | None]]:
    """Yield (literal, name, field, format, conversion) of each part; the name is empty if there is none."""
    try:
        pieces = list(_FORMATTER.parse(template))
    except ValueError as error:
        raise ValueError(f"{what}={template!r} is not a valid template: {error}") from None
    for literal, field, spec, conversion in pieces:
        if field is None:
            yield literal, "", "", "", None
            continue
        found = _ROOT.match(field)
        root = found[0] if found else ""
        if not root.isidentifier():
            raise ValueError(
                f"{what}={template!r}: {{{field}}} names nothing; write {{name}}, and a brace itself twice"
            )
        if "{" in (spec or ""):
            raise ValueError(f"{what}={template!r}: the format of {{{field}}} may be no template itself")
        yield literal, root, field, spec or "", conversion
