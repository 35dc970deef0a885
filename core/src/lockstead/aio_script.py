"""A script: a conversation with a store or a server, as a generator without I/O; and what drives it.

Must not know what the requests are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeAlias, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

Script: TypeAlias = Generator[Q, A, T]
"""`Script[Request, Answer, T]`: yields requests, is sent an answer (or thrown an error) for each, returns a result."""


async def drive(script: Script[Q, A, T], exchange: Callable[[Q], Awaitable[A]]) -> T:
    """Drive a script to its end and return its result. Raises what the script raises.

    An `Exception` that exchange raises is thrown into the script, which may handle it. Anything else (an interrupt, a
    cancellation) closes the script: what became of its last request is unknown.
    """
    try:
        request = next(script)
        while True:
            try:
                answer = await exchange(request)
            except Exception as error:  # noqa: BLE001 - it is the script's to handle
                request = script.throw(error)
            else:
                request = script.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()
