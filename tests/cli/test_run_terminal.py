"""`lockstead run` at a terminal: the command is in the foreground, and the shell gets its terminal back."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Runs, until
from tests.cli.screen import Screen

LOCKSTEAD = f"{sys.executable} -m lockstead.cli.main"


@pytest.fixture
def screens(runs: Runs) -> Iterator[list[Screen]]:
    """Terminals that are hung up at the end, with all that ran in them."""
    opened: list[Screen] = []
    try:
        yield opened
    finally:
        for screen in opened:
            screen.close()


FOREGROUND = f"{sys.executable} -S -c 'import os; print(\"in front:\", os.tcgetpgrp(0) == os.getpgrp())'"


def test_the_command_has_the_foreground_then_the_shell(runs: Runs, screens: list[Screen]) -> None:
    screen = Screen(runs.where, f"{LOCKSTEAD} run '{runs.url}' -- {FOREGROUND}; echo then; {FOREGROUND}")
    screens.append(screen)
    screen.shows("then")
    until(lambda: screen.read().count("in front: True") == 2, "both in front")


def test_ctrl_c_ends_the_command_and_the_script_around_it(runs: Runs, screens: list[Screen]) -> None:
    screen = Screen(runs.where, f"{LOCKSTEAD} run '{runs.url}' -- cat; echo survived")
    screens.append(screen)
    screen.type(b"up\n")
    screen.shows("up\r\nup\r\n")
    screen.type(b"\x03")
    screen.process.wait(20)
    assert "survived" not in screen.read()
    assert screen.process.returncode in (-2, 130)
    assert runs.start("--timeout", "0", "--", "true").code() == 0


def test_ctrl_z_does_not_suspend_who_holds_a_lock(runs: Runs, screens: list[Screen]) -> None:
    waits = "echo up; while ! test -e over; do sleep 0.05; done; echo on"
    screen = Screen(runs.where, f"{LOCKSTEAD} run '{runs.url}' -- sh -c '{waits}'; echo then")
    screens.append(screen)
    screen.shows("up")
    screen.type(b"\x1a")
    screen.shows("cannot suspend")
    (runs.where / "over").touch()
    screen.shows("on\r\n")
    screen.shows("then")


VFORKS = """
import ctypes, os, platform, sys, time
# what vfork asks for, without the memory in common: the parent waits until the child has become something else
clone, flags = {"x86_64": 56, "aarch64": 220}[platform.machine()], 0x4000 | 17
if ctypes.CDLL(None).syscall(clone, flags, 0, 0, 0, 0) == 0:
    print("up", flush=True)
    while not os.path.exists("over"):
        time.sleep(0.05)
    os._exit(0)
print("on")
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the call's number is not known")
def test_ctrl_z_does_not_suspend_who_is_about_to_start_a_process(runs: Runs, screens: list[Screen]) -> None:
    # within vfork it cannot be stopped, but its child is: both stand still, and nobody is told
    (runs.where / "vforks.py").write_text(VFORKS)
    screen = Screen(runs.where, f"{LOCKSTEAD} run '{runs.url}' -- {sys.executable} vforks.py; echo then")
    screens.append(screen)
    screen.shows("up")
    screen.type(b"\x1a")
    screen.shows("cannot suspend")
    (runs.where / "over").touch()
    screen.shows("on\r\n")
    screen.shows("then")


def test_the_terminal_is_restored_when_its_command_is_killed(runs: Runs, screens: list[Screen]) -> None:
    screen = Screen(
        runs.where, f"{LOCKSTEAD} run '{runs.url}' -- sh -c 'stty raw -echo; echo messy; kill -9 $$'; stty -a; echo end"
    )
    screens.append(screen)
    screen.shows("end\r\n")
    assert "messy" in screen.read()
    assert " echo " in screen.read()
    assert "-icanon" not in screen.read()


def test_a_command_in_a_pipeline_gets_the_terminal_on_demand(runs: Runs, screens: list[Screen]) -> None:
    # writing into a pipe, it is not put in front from the start: the reader may be a pager
    screen = Screen(runs.where, f"{LOCKSTEAD} run '{runs.url}' -- sh -c 'read line; echo got $line' | cat; echo then")
    screens.append(screen)
    screen.type(b"words\n")
    screen.shows("got words")
    screen.shows("then")


def test_on_a_terminal_who_waits_is_told_for_whom(runs: Runs, screens: list[Screen]) -> None:
    holder = runs.script("import time; open('ready', 'w').close(); time.sleep(1000)", "--owner", "nightly")
    holder.ready()
    screen = Screen(runs.where, f"{LOCKSTEAD} run '{runs.url}' -- true; echo then")
    screens.append(screen)
    screen.shows("waiting for 'apt', held by 'nightly' for")
    screen.type(b"\x03")
    screen.process.wait(20)
