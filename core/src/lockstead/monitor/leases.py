"""The leases of a listing: of a lock the one, of a shared lock each reader's, of a semaphore each permit's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lockstead.values import SHARED
from lockstead.views import LockInfo


def leases(info: LockInfo) -> Iterator[LockInfo]:
    """Yield each lease that an entry of a listing stands for; none for a record that cannot be read.

    The mode of each says what it is: exclusive, shared, or a permit's.
    """
    if info.decode_error is not None:
        return
    if info.permits is not None:
        yield from (one for one in info.permits.held if one.decode_error is None)
    elif info.mode == SHARED:
        yield from (replace(one, mode=SHARED) for one in info.readers if one.decode_error is None)
    else:
        yield info
