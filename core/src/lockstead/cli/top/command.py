"""The command `lockstead top`: rounds of the stores, keys and the screen, in one event loop."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import click

from lockstead import registry
from lockstead.cli.exits import Exit, Failed
from lockstead.cli.options import Place, store_at, time_option
from lockstead.cli.output import is_terminal

if TYPE_CHECKING:
    from lockstead.aio_lock import AsyncClient
    from lockstead.dashboard.breaking import Asked

EPILOG: Final = """\b
Examples:
  lockstead top sqlite:///locks.db
  lockstead top --every 10s gs://my-bucket/locks postgresql://host/locks

\b
Keys: arrows, page up and down, home, end; / filter, escape no filter;
s sort; enter all fields of a lock; t backtrace; b break; r refresh; q quit

\b
Exit codes: 0 ended by q, or
  64 wrong usage, as without a terminal      74 the terminal is gone
  128 + n signal n ended it
"""

TICK: Final = 1.0
"""Seconds after which the screen is drawn again even if nothing happened: durations grow."""

EVERY_MIN: Final = 0.1


@click.command(epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@time_option("--every", "Time from one listing of a store to the next.", default="2s", show_default=True)
def top(urls: Sequence[str], every: float) -> int:
    """Show every lock of the stores at URL as a live table, urgent ones first.

    URL is a store's; with '#key' at its end, only that lock is shown. A store that does not answer is shown with its
    last known locks and their age.
    """
    places = [store_at(url) for url in urls]
    if every < EVERY_MIN:
        raise click.UsageError(f"--every is at least {EVERY_MIN:g} s")
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or os.environ.get("TERM") in (None, "", "dumb"):
        raise Failed(Exit.USAGE, "top needs a terminal: use 'lockstead list'")
    try:
        return asyncio.run(_Top(places, every).run())
    except OSError as error:
        raise Failed(Exit.OUTPUT, f"the terminal is gone: {error.strerror}") from None


class _Top:
    """The program: what happens sets `_happened`, and the screen is drawn."""

    def __init__(self, places: Sequence[Place], every: float) -> None:
        from rich.console import Console

        from lockstead.cli.top.state import State
        from lockstead.dashboard.board import Listing
        from lockstead.dashboard.watching import Watch

        self._watches: dict[str, Watch] = {}
        only: dict[str, set[str | None]] = {}
        for place in places:
            watch = Watch(place.store.text, every, always=True)
            watch.listing = Listing(watch.name, self._listed, lambda _store, _at, _found: None)
            watch.watchers = [watch.listing]
            self._watches.setdefault(watch.name, watch)
            only.setdefault(watch.name, set()).add(place.key)
        self._state = State([watch.listing for watch in self._watches.values()], only)
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._happened = asyncio.Event()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._code: int | None = None
        self._is_suspended = False
        self._working: asyncio.Future[None] | None = None

    def _listed(self) -> None:
        self._state.update()
        self._happened.set()

    def _suspend(self) -> None:
        self._is_suspended = True
        self._happened.set()

    def _end(self, code: int) -> None:
        self._code = code
        self._happened.set()

    async def run(self) -> int:
        """Show the locks until a key or a signal ends this; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            loop.add_signal_handler(number, self._end, Exit.SIGNALLED + number)
        loop.add_signal_handler(signal.SIGWINCH, self._happened.set)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        rounds = [asyncio.ensure_future(watch.run()) for watch in self._watches.values()]
        try:
            while self._code is None:
                await self._shown()
                if self._is_suspended:
                    self._is_suspended = False
                    os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            under_way = [*rounds, *([self._working] if self._working is not None else ())]
            for one in under_way:
                one.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            for watch in self._watches.values():
                await watch.close()
        return self._code

    async def _shown(self) -> None:
        """Use the terminal until the end, or until it is given back for a while."""
        from rich.console import ConsoleDimensions
        from rich.live import Live

        from lockstead.cli.top.keys import keys_at_once
        from lockstead.cli.top.screen import drawn

        loop = asyncio.get_running_loop()
        with ExitStack() as given_back:
            given_back.enter_context(keys_at_once(0))
            loop.add_reader(0, self._read)
            given_back.callback(loop.remove_reader, 0)
            live = given_back.enter_context(
                Live(
                    console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
                )
            )
            while self._code is None and not self._is_suspended:
                self._happened.clear()
                size = os.get_terminal_size(1)
                width, height = size.columns or 80, size.lines or 24
                self._console.size = ConsoleDimensions(width, height)
                live.update(drawn(self._state, time.time(), width, height), refresh=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK):
                        await self._happened.wait()

    def _read(self) -> None:
        """Take what was typed."""
        from lockstead.cli.top.keys import keys
        from lockstead.cli.top.state import Action

        try:
            read = os.read(0, 4096)
        except OSError:
            read = b""
        if not read:
            self._end(Exit.SIGNALLED + signal.SIGHUP)
        for key in keys(self._decoder.decode(read)):
            if self._working is not None and key != "q":
                continue
            match self._state.press(key):
                case Action.QUIT:
                    self._end(Exit.OK)
                case Action.REFRESH:
                    self._wake()
                case Action.CHOOSE:
                    self._start(self._choose)
                case Action.BREAK:
                    self._start(self._break)
        self._happened.set()

    # --- stores --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        for watch in self._watches.values():
            watch.wake()

    def _start(self, work: Callable[[AsyncClient, Asked], Awaitable[None]]) -> None:
        """Ask the store in a task; keys wait until it has answered."""
        asked = self._state.asked
        client = None if asked is None else self._watches[asked.store].client
        if asked is None or client is None:
            self._state.message = "the store is not open: nothing was broken"
            return
        self._state.message = "asking the store ..."
        self._working = asyncio.ensure_future(work(client, asked))
        self._working.add_done_callback(self._worked)

    def _worked(self, done: asyncio.Future[None]) -> None:
        self._working = None
        if not done.cancelled() and (error := done.exception()) is not None:
            self._state.message = f"internal error: {type(error).__name__}"
        self._happened.set()

    async def _choose(self, client: AsyncClient, asked: Asked) -> None:
        from lockstead.dashboard.breaking import chosen

        self._state.found(await chosen(client, asked, time.time()))

    async def _break(self, _client: AsyncClient, asked: Asked) -> None:
        from lockstead.dashboard.breaking import carry_out

        if self._state.breaking is not None:
            self._state.message = await carry_out(self._state.breaking, asked, registry.person())
            self._wake()
