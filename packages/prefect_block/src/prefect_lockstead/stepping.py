"""How a generator is guarded: while its own code runs, and never while who asked it for an item works.

An interrupt that came between two items would hit the consumer, who did not ask for a lock. A loss that is found there
is raised within the generator at its next step, so that it cleans up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from lockstead import Lease


def stepped(steps: Generator[Any, Any, Any], lease: Lease) -> Generator[Any, Any, Any]:
    """Run a generator step by step, each guarded; give what it returns. LeaseLost where it is interrupted."""
    step: Callable[[], Any] = steps.__next__
    try:
        while True:
            with lease.guard():
                item = step()
            try:
                sent = yield item
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is the body's to catch
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, sent)
            if not lease.is_held:
                steps.throw(lease.lost_error())
    except StopIteration as ended:
        return ended.value
    finally:
        steps.close()
