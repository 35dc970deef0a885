"""The peer of a hand-over: acquires a key on request, reports when it has it, and releases it.

It runs as a process (`python -m lockstead.cli.bench.peer`), which gets the store on its first line of input, or in a
thread.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from lockstead.errors import LocksteadError, OutcomeUnknown
from lockstead.events import LockEvent, Waiting
from lockstead.lock import Client
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.stores import url as urls

PATIENCE: Final = 60.0
"""Seconds that one hand-over may take."""


def serve(store: str, settings: Mapping[str, Any], keys: Iterable[str], say: Callable[[str], None]) -> None:
    """Acquire and release each key in turn; send "ready", then "waiting", "got INSTANT" and "gave" for each key."""

    def told(event: LockEvent) -> None:
        if isinstance(event, Waiting):
            say("waiting")

    try:
        with Client(urls.open_store(store), listener=told) as client:
            say("ready")
            for key in keys:
                lease = client.lock(key, **settings).acquire(PATIENCE)
                got_at = SYSTEM_CLOCK.now()
                say(f"got {got_at!r}")
                lease.release()
                say("gave")
    except LocksteadError as error:
        say(f"failed {error}")


class Peer(Protocol):
    """The peer's interface for the measuring side."""

    def take(self, key: str) -> None:
        """Ask the peer to acquire a key."""
        ...

    def hears(self, word: str) -> str:
        """Wait for a message that begins with `word`; return the rest. Raises OutcomeUnknown on failure or silence."""
        ...

    def close(self) -> None:
        """Stop the peer."""
        ...


class _Said:
    """The messages of the peer, in order."""

    def __init__(self) -> None:
        self._words: queue.Queue[str] = queue.Queue()
        self.put = self._words.put

    def hears(self, word: str) -> str:
        """Wait for a message that begins with `word`; any other message means that the peer failed."""
        try:
            said = self._words.get(timeout=PATIENCE)
        except queue.Empty:
            said = f"failed no word of {word!r} within {PATIENCE:g} s"
        first, _, rest = said.partition(" ")
        if first != word:
            raise OutcomeUnknown(f"the other side of the hand-over failed: {rest or said}")
        return rest


class ProcessPeer(_Said):
    """The peer as a separate process."""

    def __init__(self, store: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lockstead.cli.bench.peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only this process, which then stops the peer
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        # not as an argument: arguments are public, and the URL may contain credentials
        self._tell(json.dumps([store, dict(settings)]))

    def take(self, key: str) -> None:
        """Ask the peer to acquire a key."""
        self._tell(key)

    def close(self) -> None:
        """Kill the process; the side that knows the keys cleans up the locks it holds."""
        self._process.kill()
        self._reading.join(PATIENCE)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        except OSError as error:
            raise OutcomeUnknown("the other side of the hand-over has ended") from error

    def _read(self) -> None:
        with self._process.stdout or () as lines:  # type: ignore[union-attr]  # it is a pipe
            for line in lines:
                self.put(line.rstrip("\n"))
        self.put("failed it has ended")


class ThreadPeer(_Said):
    """The peer as another client in this process, for a store that other processes cannot see."""

    def __init__(self, store: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._keys: queue.Queue[str | None] = queue.Queue()
        arguments = (store, settings, iter(self._keys.get, None), self.put)
        self._thread = threading.Thread(target=serve, args=arguments, daemon=True)
        self._thread.start()

    def take(self, key: str) -> None:
        """Ask the peer to acquire a key."""
        self._keys.put(key)

    def close(self) -> None:
        """Stop the peer after its current key."""
        self._keys.put(None)
        self._thread.join(1.0)


def main() -> None:
    """Serve as the peer process, from standard input to standard output."""
    store, settings = json.loads(sys.stdin.readline())

    def keys() -> Iterator[str]:
        for line in sys.stdin:
            yield line.rstrip("\n")

    def say(word: str) -> None:
        sys.stdout.write(word.replace("\n", " ") + "\n")
        sys.stdout.flush()

    serve(store, settings, keys(), say)


if __name__ == "__main__":
    main()
