"""The models' texts: each switch is tried, and what they say they mirror is there."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstead import errors, protocol
from tests.model.checker import MODELS
from tests.model.claims import DEEP, FAULTS, HARMLESS, LARGE, PROOFS, SECOND_LINES, Fault, Proof

TEXTS = sorted(MODELS.glob("*.pml"))
MODULES = {
    one.name: importlib.import_module(f"lockstead.protocol.{one.name}")
    for one in pkgutil.iter_modules(protocol.__path__)
}
PAGE = MODELS.parent / "protocol.md"


def _stem(path: Path) -> str:
    return path.stem


def _switches(path: Path, *claims: Sequence[Proof | Fault]) -> set[str]:
    """Return the switches that these claims of a text turn on, without their values."""
    return {
        switch.partition("=")[0]
        for some in claims
        for claim in some
        if claim.model == path.stem
        for switch in claim.switches
    }


def _comments(path: Path) -> str:
    return "\n".join(re.findall(r"/\*.*?\*/", path.read_text(), re.DOTALL))


def _is_there(name: str) -> bool:
    first, *rest = name.split(".")
    for owner in (MODULES.get(first), *((module, first) for module in (*MODULES.values(), errors))):
        if owner is None:
            continue
        found, path = (owner, rest) if not isinstance(owner, tuple) else (owner[0], [owner[1], *rest])
        for part in path:
            found = getattr(found, part, None)
        if found is not None:
            return True
    return False


def test_every_model_is_to_be_proved() -> None:
    assert {path.stem for path in TEXTS} == {proof.model for proof in PROOFS}


@pytest.mark.parametrize("path", TEXTS, ids=_stem)
def test_every_switch_of_a_text_is_tried(path: Path) -> None:
    text = path.read_text()
    there = set(re.findall(r"^#ifn?def (\w+)", text, re.MULTILINE)) | set(re.findall(r"defined\((\w+)\)", text))
    derived = set(re.findall(r"^#define (\w+)$", text, re.MULTILINE))
    proved, tried = _switches(path, PROOFS, LARGE, DEEP, HARMLESS), _switches(path, FAULTS)
    assert there - derived == proved | tried
    assert not proved & {fault.switches[0] for fault in FAULTS if fault.model == path.stem}
    assert _switches(path, SECOND_LINES) <= tried


@pytest.mark.parametrize("path", TEXTS, ids=_stem)
def test_a_text_says_which_switches_are_harmless(path: Path) -> None:
    said = set(re.findall(r"^#if(?:def (\w+)| defined\((\w+)\)) +/\* harmless", path.read_text(), re.MULTILINE))
    harmless = {proof.switches[0] for proof in HARMLESS if proof.model == path.stem}
    assert {name for pair in said for name in pair if name} == harmless


@pytest.mark.parametrize("path", TEXTS, ids=_stem)
def test_what_a_text_says_it_mirrors_is_there(path: Path) -> None:
    names = set(re.findall(r"`([\w.]+)`", _comments(path)))
    assert names
    assert [name for name in sorted(names) if not _is_there(name)] == []


@pytest.mark.parametrize("path", TEXTS, ids=_stem)
def test_the_page_has_every_rule_that_a_text_names(path: Path) -> None:
    page = PAGE.read_text()
    rules = set(re.findall(r"\[(\d+)\]", _comments(path)))
    assert rules
    assert [rule for rule in sorted(rules) if f"[{rule}]" not in page] == []
    assert f"(protocol-model/{path.name})" in page
