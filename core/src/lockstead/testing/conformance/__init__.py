"""The conformance suite of stores. Authors of a store subclass it; a store that passes can hold locks.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...        # an empty store, closed after the test

        @pytest.fixture
        def twin(self, store): ...  # a second store object on the same data

The tests of a store with `aperform` also subclass `AwaitingConformance`; with `subscribe`, `WaitingConformance`; with
`enqueue`, `QueueConformance`; with `perform_many`, `BatchConformance`. If other programs can write to the data, they
also subclass `HostileConformance`, with a fixture `damage` that does so.
H-numbers are hazards of the lock protocol that the store must prevent. Must not know any store.
"""

from lockstead.testing.conformance.awaiting import AwaitingConformance
from lockstead.testing.conformance.batches import BatchConformance
from lockstead.testing.conformance.hostile import HostileConformance
from lockstead.testing.conformance.queueing import QueueConformance
from lockstead.testing.conformance.store import StoreConformance
from lockstead.testing.conformance.waiting import WaitingConformance

__all__ = [
    "AwaitingConformance",
    "BatchConformance",
    "HostileConformance",
    "QueueConformance",
    "StoreConformance",
    "WaitingConformance",
]
