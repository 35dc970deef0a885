"""No reader of what others wrote raises but what it documents: a few seconds of what `make fuzz` does for hours."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import SEEDS, TARGETS, Fields, maps, texts


@pytest.mark.parametrize("target", TARGETS)
def test_a_reader_is_total(target: str) -> None:
    read = TARGETS[target]
    for text, fields in SEEDS:
        read(text, fields)

    @given(text=texts, fields=maps)
    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def any_input(text: str, fields: Fields) -> None:
        read(text, fields)

    any_input()
