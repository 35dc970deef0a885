"""What a store has to promise. Who brings a store subclasses this; what passes here can carry locks.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...        # an empty store, closed after the test

        @pytest.fixture
        def twin(self, store): ...  # the same place, opened once more

A store that has `aperform` also subclasses `AwaitingConformance`, one that has `subscribe` `WaitingConformance`, one
that has `enqueue` `QueueConformance`, one that has `perform_many` `BatchConformance`. One whose place can be written to
past it subclasses `HostileConformance` too, with a fixture `spoil` that does so.
H-numbers are hazards of the lock protocol that rest on the store. Must not know any store.
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
