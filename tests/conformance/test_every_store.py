"""Every store keeps the contract of a store, and none is left out.

Each has a file beside this one, with its suites in a table CONFORMING: suite to class of the store.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from lockstead.stores import url
from lockstead.stores.port import AsyncStore, SupportsBatching, SupportsFifoQueue, SupportsWatch
from lockstead.testing import conformance
from lockstead.testing.conformance import StoreConformance

PROMISED = {
    AsyncStore: conformance.AwaitingConformance,
    SupportsWatch: conformance.WaitingConformance,
    SupportsFifoQueue: conformance.QueueConformance,
    SupportsBatching: conformance.BatchConformance,
}


def every_suite() -> dict[type, type]:
    found: dict[type, type] = {}
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        if file.stem != Path(__file__).stem:
            found |= getattr(import_module(f"tests.conformance.{file.stem}"), "CONFORMING", {})
    return found


CONFORMING = every_suite()


def test_every_store_that_a_scheme_opens_keeps_the_contract() -> None:
    conforming = {suite.scheme for suite in CONFORMING if issubclass(suite, StoreConformance)}
    assert conforming == set(url.OURS)


@pytest.mark.parametrize("suite", CONFORMING, ids=lambda suite: suite.__name__)
def test_a_store_with_more_verbs_promises_them_in_suites_of_their_own(suite: type) -> None:
    store = CONFORMING[suite]
    suites = [one for one, other in CONFORMING.items() if other is store]
    for port, promises in PROMISED.items():
        assert issubclass(store, port) == any(issubclass(one, promises) for one in suites)
