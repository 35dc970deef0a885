"""What the models of the protocol prove, and that they can fail: every fault that is switched on is found."""

from __future__ import annotations

import os

import pytest

from tests.model import checker
from tests.model.claims import FAULTS, HARMLESS, LARGE, PROOFS, SECOND_LINES, Fault, Proof

LONG = os.environ.get("LOCKSTEAD_LONG") == "1"

ENDLESS = {"-end-"}
"""A process that runs forever does not come to its end."""


@pytest.fixture(autouse=True)
def spin() -> None:
    """Spin and a C compiler are here; where the project checks itself they must be."""
    absent = checker.missing()
    if absent and os.environ.get("CI") == "true":
        pytest.fail(f"not here: {', '.join(absent)}; see requirements/debian.list")
    if absent:
        pytest.skip(f"not here: {', '.join(absent)}")


def _title(one: Proof | Fault) -> str:
    return "+".join((one.model, *one.switches)).lower()


@pytest.mark.slow
@pytest.mark.parametrize("proof", [*PROOFS, *((*SECOND_LINES, *HARMLESS, *LARGE) if LONG else ())], ids=_title)
def test_the_promises_hold_in_every_state(proof: Proof) -> None:
    verdict = checker.check(proof.model, *proof.switches, is_progress=proof.is_progress)
    assert verdict.violated is None, verdict.output
    assert verdict.is_whole, verdict.output
    assert verdict.states >= proof.states_min
    if proof.is_progress:
        return  # in a world without faults nothing handles them
    left_out = {
        process: places
        for process, lines in verdict.unreached.items()
        if (places := [line for line in lines if line.partition(": ")[2] not in ENDLESS])
    }
    assert left_out == {}, "a model proves nothing of what it never does"


@pytest.mark.parametrize("fault", FAULTS, ids=_title)
def test_a_fault_breaks_its_promise(fault: Fault) -> None:
    verdict = checker.refute(fault.model, *fault.switches, is_progress=fault.is_progress)
    assert verdict.violated is not None, f"{fault.name} was not found in {verdict.states} states"
    assert verdict.violated.startswith(fault.breaks), verdict.violated


def test_a_search_that_was_cut_short_proves_nothing() -> None:
    verdict = checker.check("tokens", depth=100)
    assert verdict.violated is None or "depth" in verdict.violated
    assert not verdict.is_proved
