"""What the commands print with `--json`, against the schemas that `lockstead schema` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker

from lockstead.cli.main import COMMANDS, wants_json
from lockstead.cli.schemas import OUTPUTS, document

INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FORMATS: Final = FormatChecker(())
FORMATS.checks("date-time")(lambda text: not isinstance(text, str) or INSTANT.fullmatch(text) is not None)


@cache
def validator(name: str) -> Any:
    """Return the validator of a command's lines, or of `error`."""
    schema = document(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FORMATS)


def parsed(name: str, line: str) -> Any:
    """Parse one line, which its schema describes, in printable ASCII."""
    assert line.isascii(), line
    assert line.isprintable(), line
    value = json.loads(line)
    validator(name).validate(value)
    return value


def checked(words: Sequence[str], code: int, out: str, err: str) -> None:
    """Check the output of a command that was asked for JSON; do nothing for any other."""
    name = next((word for word in words if word in COMMANDS), "")
    if name not in OUTPUTS or not wants_json(words[words.index(name) :]):
        return
    results = [parsed(name, line) for line in out.splitlines()]
    errors = [parsed("error", line) for line in err.splitlines() if line.startswith("{")]
    assert not out or out.endswith("\n")
    assert len(errors) <= 1
    if code and not results and code != 141:
        assert err.splitlines()[-1].startswith("{"), err
    assert all(error["error"]["code"] == code for error in errors)
