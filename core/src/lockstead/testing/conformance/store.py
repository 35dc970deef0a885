"""The complete contract of a store, combined from the parts of the suite."""

from __future__ import annotations

from lockstead.testing.conformance.commands import CommandsConformance
from lockstead.testing.conformance.life import LifeConformance, TimeConformance
from lockstead.testing.conformance.names import NamesConformance
from lockstead.testing.conformance.races import RacesConformance


class StoreConformance(CommandsConformance, TimeConformance, NamesConformance, RacesConformance, LifeConformance):
    """The complete contract of a store. Override the fixtures `store` and `twin`."""
