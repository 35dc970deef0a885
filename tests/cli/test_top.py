"""`lockstead top`: what is shown and what keys do, without a terminal; then in a real one."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.console import Console

from gcs_emulator import GcsServer
from lockstead.cli.top.keys import keys
from lockstead.cli.top.screen import drawn
from lockstead.cli.top.state import SORTS, Action, Mode, State
from lockstead.dashboard.board import Listing
from lockstead.dashboard.breaking import Chosen
from lockstead.dashboard.rows import row_of
from lockstead.monitor.rounds import Round
from lockstead.views import LockInfo, Permits, semaphore_info
from tests.cli.conftest import until
from tests.cli.screen import Screen
from tests.cli.shell import PROGRAM, Shell

NOW = 1_800_000_000.0


def lock(key: str, **more: Any) -> LockInfo:
    said: dict[str, Any] = {"holder": "ci/7/1", "owner": "ci/7", "incarnation": "1", "ttl": 60.0}
    return LockInfo(key=key, **{**said, "acquired_epoch": NOW - 600, "expires_epoch": NOW + 50, **more})


def listed(state: State, *locks: LockInfo, error: str | None = None, at: float = NOW) -> None:
    """Show a round of the only store."""
    (listing,) = state.listings
    listing.began(at)
    for one in locks:
        listing.saw(one)
    listing.ended(Round("store", 1, at, 0.0, len(locks), error))
    state.update()


def shown(*locks: LockInfo) -> State:
    """Return a state that shows these locks."""
    state = State([Listing("sqlite:///locks.db", lambda: None, lambda _store, _at, _found: None)])
    listed(state, *locks)
    return state


def lines(state: State, width: int = 100, height: int = 20, now: float = NOW) -> list[str]:
    """Return what is drawn, without styles."""
    file = StringIO()
    console = Console(file=file, width=width, height=height, color_system=None, markup=False, emoji=False)
    console.print(drawn(state, now, width, height))
    return file.getvalue().split("\n")[:-1]


def press(state: State, *pressed: str) -> Action | None:
    """Press keys; return what the last one asks for. A text of several characters is typed."""
    asked = None
    for one in pressed:
        for key in [one] if one in ("enter", "escape", "down", "up", "backspace", "page down", "end", "home") else one:
            asked = state.press(key)
    return asked


def rows(state: State) -> list[str]:
    return [one.key for one in state.rows]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_what_is_overdue_or_unreadable_is_shown_first() -> None:
    state = shown(lock("a"), lock("b", decode_error="is damaged"), lock("z", alert_epoch=NOW - 60))
    assert rows(state) == ["z", "b", "a"]
    text = lines(state)
    assert text[0].startswith("3 locks, 1 overdue, 1 unreadable, by urgency, 2027-01-15 08:00:00 UTC")
    assert [line.split()[:3] for line in text[2:5]] == [
        [">", "z", "overdue"],
        ["b", "unreadable", "ci/7"],
        ["a", "held", "ci/7"],
    ]
    assert "10 minutes 50 seconds" in text[4]


def test_the_order_changes_and_the_cursor_stays_at_its_lock() -> None:
    state = shown(
        lock("a", owner="y", acquired_epoch=NOW - 1, expires_epoch=None),
        lock("b", owner="x", acquired_epoch=None, expires_epoch=NOW + 5),
        lock("c", owner="z", alert_epoch=NOW - 1, acquired_epoch=NOW - 9),
    )
    press(state, "end")
    assert state.chosen == ("sqlite:///locks.db", "b")
    orders = {}
    for _ in SORTS:
        orders[state.sort] = rows(state)
        assert state.rows[state.cursor].key == "b"
        press(state, "s")
    assert orders == {
        "urgency": ["c", "a", "b"],
        "key": ["a", "b", "c"],
        "owner": ["b", "a", "c"],
        "held for": ["c", "a", "b"],
        "left": ["b", "c", "a"],
    }
    listed(state, lock("a"))
    assert (rows(state), state.cursor) == (["a"], 0)
    listed(state)
    assert state.chosen is None
    assert press(state, "enter", "b", "down") is None


def test_a_filter_is_applied_as_it_is_typed_and_escape_ends_it() -> None:
    state = shown(lock("apt"), lock("yum", purpose="Publish"))
    press(state, "/", "publ")
    assert rows(state) == ["yum"]
    assert lines(state)[-1] == "filter: publ_"
    press(state, "x")
    assert rows(state) == []
    press(state, "backspace", "enter")
    assert rows(state) == ["yum"]
    assert "filter: publ" in lines(state)[0]
    press(state, "escape")
    assert rows(state) == ["apt", "yum"]


def test_only_the_key_of_the_url_is_shown() -> None:
    state = shown(lock("apt"), lock("yum"))
    state.only = {"sqlite:///locks.db": {"yum"}}
    state.update()
    assert rows(state) == ["yum"]


def test_a_store_that_is_down_is_shown_with_its_last_locks_and_their_age() -> None:
    state = shown(lock("apt"))
    listed(state, error="no answer")
    text = lines(state, now=NOW + 12)
    assert text[1] == "sqlite:///locks.db does not answer, shown as of 12 seconds ago: no answer"
    assert text[3].split()[:2] == [">", "apt"]
    listed(state, lock("apt"))
    assert "does not answer" not in "".join(lines(state))
    new = State([Listing("zk://h/x", lambda: None, lambda _store, _at, _found: None)])
    assert lines(new)[1] == "zk://h/x is being read"
    new.listings[0].failed("refused")
    assert lines(new)[1] == "zk://h/x does not answer, nothing is known yet: refused"


def test_a_lock_is_shown_with_all_its_fields_and_its_backtrace() -> None:
    trace = "\n".join(f"line {number}" for number in range(100))
    state = shown(lock("apt", purpose="publish", labels={"team": "deb"}, backtrace=trace))
    press(state, "enter")
    text = "\n".join(lines(state))
    assert "apt is held by ci/7" in text
    assert "  labels     team=deb\n" in text
    assert "  backtrace  100 lines: press t" in text
    press(state, "t")
    assert lines(state)[1:3] == ["line 0", "line 1"]
    press(state, "end")
    assert lines(state)[-2] == "line 99"
    press(state, "up")
    assert lines(state)[-2] == "line 98"
    listed(state, lock("other"))
    press(state, "t")
    assert "apt is free: the store has no lease of it" in lines(state)
    press(state, "escape")
    assert rows(state) == ["other"]
    press(state, "t")
    assert "other has no backtrace: only a lock with backtrace=True stores one" in lines(state)


SIZES = [(1, 1), (2, 3), (10, 2), (20, 5), (40, 10), (80, 24), (300, 60)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_screen_fits_the_terminal(width: int, height: int) -> None:
    wide = "語" * 400
    state = shown(*(lock(f"{wide}{number}", owner=wide, purpose=wide, backtrace=wide) for number in range(100)))
    views: Sequence[tuple[str, ...]] = ((), ("end",), ("enter",), ("t",), ("escape", "/", wide), ("enter", "b", wide))
    for pressed in views:
        press(state, *pressed)
        text = lines(state, width, height)
        assert len(text) == height
        console = Console(width=width)
        assert all(console.measure(line).maximum <= width or width == 1 for line in text if line)
    if height > 4:
        state = shown(*(lock(str(number)) for number in range(100)))
        press(state, "end")
        assert any(line.startswith("> 99") for line in lines(state, width, height))


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\x1b[6n\r\n\x00\u202e[red]evil[/red]\x08"


def test_no_text_of_a_record_or_store_controls_the_terminal() -> None:
    said = dict.fromkeys(
        (
            "holder",
            "owner",
            "purpose",
            "progress",
            "host",
            "where",
            "backtrace",
            "value",
            "revoked_by",
            "revoke_reason",
            "wanted_by",
        ),
        HOSTILE,
    )
    state = shown(
        lock(HOSTILE, **said, labels={HOSTILE: HOSTILE}),
        lock("b", **said),
        lock("c", decode_error=HOSTILE),
        semaphore_info(Permits("d" + HOSTILE, 1, (lock("d", **said, mode="permit/0"),))),
        lock("e", readers=(lock("e", **said),), mode="shared"),
    )
    listed_error = Listing(HOSTILE, lambda: None, lambda _store, _at, _found: None)
    listed_error.failed(HOSTILE)
    state.listings = [*state.listings, listed_error]
    for _lock in state.rows:
        for pressed in ((), ("enter",), ("t",), ("escape",), ("b",), ("escape", "down")):
            press(state, *pressed)
            for line in lines(state, 200, 60):
                assert line.isprintable(), repr(line)
    state.message = HOSTILE
    assert all(line.isprintable() for line in lines(state))
    assert "[red]evil[/red]" in "".join(lines(state, 200, 60))


# --- breaking -------------------------------------------------------------------------------------------------------


def chosen(state: State) -> Chosen:
    held = state.held
    assert held is not None
    any_client: Any = None
    return Chosen(
        client=any_client, row=row_of("store", held, NOW), held=held, part=None, revoking="It stops.", removing=""
    )


def test_a_break_asks_for_a_reason_and_a_confirmation() -> None:
    state = shown(lock("apt"))
    assert press(state, "b", "stuck ", "enter") is Action.CHOOSE
    assert state.asked is not None
    assert (state.asked.key, state.asked.incarnation, state.asked.reason) == ("apt", "1", "stuck")
    state.found(chosen(state))
    assert lines(state)[-1].startswith("Break apt, held by ci/7? It stops.  [y: revoke  R: remove at once")
    assert press(state, "y") is Action.BREAK
    assert not state.asked.now
    state.found(chosen(state))
    assert press(state, "R") is Action.BREAK
    assert state.asked.now


@pytest.mark.parametrize("key", ["n", "q", "enter", "escape", "Y", " "])
def test_any_other_key_than_the_two_breaks_nothing(key: str) -> None:
    state = shown(lock("apt"))
    press(state, "b", "stuck", "enter")
    state.found(chosen(state))
    assert press(state, key) is None
    assert (state.mode, state.message) == (Mode.LIST, "nothing was broken")


def test_a_break_is_of_the_lease_that_was_shown_when_it_was_asked_for() -> None:
    state = shown(lock("apt"), lock("yum"))
    press(state, "b", "stu")
    listed(state, lock("aaa"), lock("apt", incarnation="2", holder="other/1"))
    assert press(state, "ck", "enter") is Action.CHOOSE
    assert state.asked is not None
    assert (state.asked.key, state.asked.incarnation) == ("apt", "1")
    state.found("apt is no longer held by the lease that was shown. Nothing was broken.")
    assert lines(state)[-1].startswith("apt is no longer held")


def test_what_cannot_be_broken_says_so() -> None:
    state = shown(lock("apt", ttl=None))
    press(state, "b")
    assert lines(state)[-1] == "this record is not of lockstead: it cannot be broken here"
    state = shown(lock("apt"))
    press(state, "b", "   ", "enter")
    assert lines(state)[-1] == "nothing was broken: a break needs a reason"
    press(state, "b", "escape")
    assert (state.mode, state.message) == (Mode.LIST, "")
    press(state, "enter")
    listed(state)
    press(state, "b")
    assert lines(state)[-1] == "there is nothing to break"


def test_of_a_semaphore_one_permit_is_broken() -> None:
    permits = (lock("api", mode="permit/0"), lock("api", mode="permit/1", incarnation="7"))
    state = shown(semaphore_info(Permits("api", 3, permits)))
    assert "2 of 3" in lines(state)[2]
    press(state, "b", "2", "enter")
    assert lines(state)[-1] == "no permit '2' is held"
    assert press(state, "b", "1", "enter", "stuck", "enter") is Action.CHOOSE
    assert state.asked is not None
    assert (state.asked.slot, state.asked.incarnation) == (1, "7")


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "named"),
    [
        ("q/ä", ["q", "/", "ä"]),
        ("\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["page up", "page down", "home", "end"]),
        ("\r\n\x7f\x08\x15", ["enter", "enter", "backspace", "backspace", "clear"]),
        ("\x1b", ["escape"]),
        ("\x1b[1;5C\x1b[15~\x00\x01\x1b[200~", []),
    ],
)
def test_keys_are_named_and_unknown_ones_left_out(read: str, named: list[str]) -> None:
    assert list(keys(read)) == named


# --- in a terminal --------------------------------------------------------------------------------------------------


class Terminal(Screen):
    """A program in a terminal whose screen can be read."""

    def __init__(self, where: Path, script: str, columns: int = 90, rows: int = 16) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        super().__init__(where, f"stty cols {columns} rows {rows}; {script}")

    def read(self) -> str:
        """Return the screen as it is now."""
        with suppress(OSError):
            while read := os.read(self.master, 65536):
                self.raw += read
                self.stream.feed(read)
        return "\n".join(line.rstrip() for line in self.screen.display)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, of which the program is told by a signal."""
        self.read()
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, condition: Callable[[str], object], what: str) -> None:
        """Wait until the screen is as it should be."""
        try:
            until(lambda: condition(self.read()), what, 60)
        except AssertionError:
            raise AssertionError(f"{what} did not come about:\n{self.read()}") from None

    def shows(self, text: str) -> None:
        """Wait until the screen shows this."""
        self.until(lambda shown: text in shown, repr(text))

    @property
    def echoes(self) -> bool:
        """Whether the terminal is as a shell needs it."""
        local: int = termios.tcgetattr(self.master)[3]
        return bool(local & termios.ECHO) and bool(local & termios.ICANON)


@contextmanager
def top(shell: Shell, *words: str, **environment: str) -> Iterator[Terminal]:
    """Run `top` in a terminal."""
    said = " ".join(f"{name}={text}" for name, text in {"TERM": "xterm-256color", **environment}.items())
    script = f"trap : INT; unset COLUMNS LINES; {said} {PROGRAM} top --every 0.2s {' '.join(words)}; echo code $?"
    with Terminal(shell.where, script) as terminal:
        yield terminal


def test_a_lock_is_found_looked_at_and_broken_in_a_terminal(files: Shell) -> None:
    files.hold("apt", owner="ci/7", purpose="publish", labels={"evil": "\x1b[2J\x1b]0;owned\x07"})
    files.hold("nightly", owner="cron/1", alert_after=0.001, expected=60)
    with top(files, files.store, NO_COLOR="1") as terminal:
        terminal.until(
            lambda shown: re.search(r"^> nightly +overdue +cron/1.*\n  apt +held +ci/7", shown, re.M), "the table"
        )
        assert not terminal.echoes
        terminal.type(b"\x1b[B")
        terminal.shows("> apt")
        terminal.type(b"/night")
        terminal.until(lambda shown: "1 lock, 1 overdue" in shown and "apt" not in shown, "the filter")
        terminal.type(b"\x1b")
        terminal.shows("2 locks")
        terminal.resize(40, 8)
        terminal.until(
            lambda shown: shown.splitlines()[7:] == ["/ filter  s sort  enter details  t back…"], "the small screen"
        )
        assert "PURPOSE" not in terminal.read()
        terminal.resize(100, 20)
        terminal.shows("PURPOSE")
        terminal.type(b"g\r")
        terminal.shows("nightly is held by cron/1, OVERDUE")
        terminal.type(b"\r/apt\r\r")
        terminal.shows("labels     evil=")
        terminal.type(b"bstuck since noon\r")
        terminal.shows("Break apt, held by ci/7? Its holder stops at its next renewal, at the latest in ")
        terminal.type(b"y")
        terminal.shows("apt is revoked. Its holder stops by ")
        terminal.type(b"\r")
        terminal.until(lambda shown: re.search(r"^> apt +revoked", shown, re.M), "the revoked lock")
        assert terminal.screen.title == ""
        assert b"\x1b[3" not in terminal.raw.replace(b"\x1b[39m", b"")
        terminal.type(b"q")
        terminal.shows("code 0")
        assert terminal.echoes
        # the other screen was left, and the cursor is shown again
        assert terminal.raw.count(b"\x1b[?1049h") == terminal.raw.count(b"\x1b[?1049l") == 1
        assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")
    (entry,) = files.run("history", "--json", files.store).lines
    assert (entry["key"], entry["what"], entry["reason"]) == ("apt", "revoked", "stuck since noon")


def test_a_store_that_goes_down_and_comes_back(bucket: Shell, server: GcsServer) -> None:
    bucket.hold("apt", owner="ci/7")
    with top(bucket, f"'{bucket.store}?request_timeout=2'") as terminal:
        terminal.shows("> apt")
        server.pause()
        terminal.until(lambda shown: "does not answer, shown as of " in shown and "> apt" in shown, "the outage")
        server.resume()
        terminal.until(lambda shown: "does not answer" not in shown and "> apt" in shown, "the end of the outage")
        terminal.type(b"\x03")
        terminal.shows("code 130")
        assert terminal.echoes


def test_top_gives_the_terminal_back_while_it_is_stopped(files: Shell) -> None:
    files.hold("apt")
    with Terminal(files.where, f"TERM=xterm exec {PROGRAM} top {files.store}") as terminal:
        terminal.shows("> apt")
        pid = terminal.process.pid

        def state() -> str:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

        os.kill(pid, signal.SIGTSTP)
        until(lambda: state() == "T", "the stop")
        assert terminal.echoes
        os.kill(pid, signal.SIGCONT)
        until(lambda: not terminal.echoes, "the continuation")
        terminal.shows("> apt")
        os.kill(pid, signal.SIGTERM)
        assert terminal.process.wait(20) == 143
        terminal.read()
        assert terminal.echoes


def test_without_a_terminal_one_line_says_to_use_list(files: Shell) -> None:
    files.run("top", files.store).fails(64, "top needs a terminal: use 'lockstead list'")
    with Screen(files.where, f"TERM=dumb {PROGRAM} top {files.store}") as screen:
        screen.shows("top needs a terminal: use 'lockstead list'")
    files.run("top", "--every", "0", files.store).fails(64, "--every is at least 0.1 s")
    files.run("top", "nowhere://anna:hunter2@x").fails(64, "no store has the scheme 'nowhere'")
