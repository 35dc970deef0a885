"""Keys of a terminal: their names, and the mode in which each arrives at once, without an echo."""

from __future__ import annotations

import re
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

ESCAPE: Final = "escape"

_KEY: Final = re.compile("\x1b\\[([0-9;]*)([A-Za-z~])|\x1bO(.)|(.)", re.DOTALL)
_OF_LETTER: Final = {"A": "up", "B": "down", "H": "home", "F": "end"}
_OF_NUMBER: Final = {"1": "home", "4": "end", "5": "page up", "6": "page down", "7": "home", "8": "end"}
_OF_CONTROL: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
    "\x0c": "redraw",
    "\x1b": ESCAPE,
}


def keys(read: str) -> Iterator[str]:
    """Yield the name of each key in what was read: a character, or a word such as `enter`. Others are left out."""
    for number, letter, application, character in _KEY.findall(read):
        name = _OF_LETTER.get(letter or application) or _OF_NUMBER.get(number if letter == "~" else "")
        name = name or _OF_CONTROL.get(character) or (character if character.isprintable() else "")
        if name:
            yield name


@contextmanager
def keys_at_once(descriptor: int) -> Iterator[None]:
    """Let each key arrive at once and without an echo. ^C and ^Z stay signals."""
    before = termios.tcgetattr(descriptor)
    after = termios.tcgetattr(descriptor)
    after[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, after)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
