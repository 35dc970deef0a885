"""`lockstead schema`: the schemas are valid, refuse what is unknown or missing, and describe the docs' examples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator, ValidationError

import lockstead
from lockstead.cli.exits import say_error
from lockstead.cli.main import COMMANDS, call
from lockstead.cli.schemas import ERROR_KINDS, OTHERS, OUTPUTS, document
from lockstead.errors import (
    LeaseLost,
    LossReason,
    NotAcquired,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from tests.cli.shell import Shell
from tests.cli.test_help import loaded
from tests.cli.valid import parsed, validator

PAGE: Final = Path(__file__).parents[2] / "docs/json.md"
SHOWN: Final = re.findall(r"^(\{.*\})$", PAGE.read_text("utf-8"), re.MULTILINE)
REFUSED: Final = r"'new' was unexpected|is a required property|is not valid under any"


def test_each_command_with_json_has_a_schema() -> None:
    with_json = {name for name in COMMANDS if any(option.name == "json" for option in loaded(name).params)}
    assert with_json == set(OUTPUTS)


@pytest.mark.parametrize("name", [*OUTPUTS, *OTHERS])
def test_the_schema_is_valid_and_names_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["schema", name]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    schema = json.loads(line)
    assert schema == json.loads(json.dumps(document(name)))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:lockstead:{lockstead.__version__}:{name}"


def test_without_a_command_all_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["schema"]) == 0
    ids = [json.loads(line)["$id"].rpartition(":")[2] for line in capsys.readouterr().out.splitlines()]
    assert ids == [*OUTPUTS, *OTHERS]
    assert call(["schema", "run"]) == 64


def objects(value: Any) -> list[dict[str, Any]]:
    """Return each object of a value, the outermost first."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [one for each in inner for one in objects(each)]
    return [value, *found] if isinstance(value, dict) else found


def test_a_key_that_is_unknown_or_missing_is_refused(files: Shell) -> None:
    for owner in ("ci/1", "ci/2"):
        files.hold(mode="shared", owner=owner)
    with files.client() as client:
        client.semaphore("api", 2).acquire(0).detach()
    outputs = [("list", one) for one in files.run("list", "--json", files.store).lines] + [
        ("inspect", files.run("inspect", "--json", files.url()).said),
        ("wait", files.run("wait", "--json", "--timeout", "0", files.url()).said),
        ("break", files.run("break", "--json", "--yes", "--reason", "x", files.url()).said),
        ("history", files.run("history", "--json", files.store).lines[0]),
        ("error", {"error": files.run("inspect", "--json", "nowhere://x#apt").error}),
    ]
    assert sum(len(objects(value)) for _name, value in outputs) > 12
    for name, value in outputs:
        validator(name).validate(value)
        for one in objects(value):
            one["new"] = None
            with pytest.raises(ValidationError, match=REFUSED):
                validator(name).validate(value)
            del one["new"]
            for key in list(one):
                kept = one.pop(key)
                with pytest.raises(ValidationError, match=REFUSED):
                    validator(name).validate(value)
                one[key] = kept
        validator(name).validate(value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailable("x"), "store_unavailable"),
        (OutcomeUnknown("x"), "outcome_unknown"),
        (StoreRefused("x"), "store_refused"),
        (NotAcquired("x", key="apt", holder="a", held_for=2.0), "not_acquired"),
        (LeaseLost("x", key="apt", reason=LossReason.TAKEN), "lease_lost"),
    ],
)
def test_an_error_says_what_its_caller_can_do(error: Exception, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    say_error(75, "\x1b[2J\x9b31m\u202e", error)
    said = parsed("error", capsys.readouterr().err[:-1])["error"]
    assert (said["kind"], said["message"]) == (kind, "\x1b[2J\x9b31m\u202e")
    assert said["lost_reason"] == ("TAKEN" if kind == "lease_lost" else None)
    assert said["owner"] == ("a" if kind == "not_acquired" else None)


def test_each_exit_code_has_a_kind_of_error(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = set()
    for code in (64, 69, 70, 74, 75, 76, 143):
        say_error(code, "x")
        kinds.add(parsed("error", capsys.readouterr().err[:-1])["error"]["kind"])
    assert kinds == set(ERROR_KINDS) - {"store_unavailable", "outcome_unknown"}


def test_h22_no_error_as_json_shows_a_password(files: Shell) -> None:
    for words in (["inspect", "nonsense://anna:hunter2@host/0#apt"], ["list", "gs://anna:hunter2@b/locks"]):
        done = files.run(*words, "--json")
        assert done.code in (64, 69)
        assert "hunter2" not in done.out + done.err


def test_the_example_of_the_page_is_described() -> None:
    (shown,) = SHOWN
    parsed("error", shown)
    assert all(f"`{kind}`" in PAGE.read_text("utf-8") for kind in ERROR_KINDS)
