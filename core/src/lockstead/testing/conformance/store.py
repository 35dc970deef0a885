"""The whole contract of a store: the parts of the suite put together."""

from __future__ import annotations

from lockstead.testing.conformance.commands import CommandsConformance
from lockstead.testing.conformance.life import LifeConformance, TimeConformance
from lockstead.testing.conformance.names import NamesConformance
from lockstead.testing.conformance.races import RacesConformance


class StoreConformance(CommandsConformance, TimeConformance, NamesConformance, RacesConformance, LifeConformance):
    """The contract of a store in full. Override the fixtures `store` and `twin`."""
