"""Workers killed by SIGKILL at 500 seeded random moments, on each store (H1): what stays is what was promised."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gcs_emulator import GcsServer
from tests.processes.counter import Counter
from tests.processes.journal import Event, Journal
from tests.processes.judge import judge, kills

KILLS = int(os.environ.get("LOCKSTEAD_KILLS", "500"))
KEYS = {"sqlite": 60, "gs": 100}
"""So many that the locks of the dead, one ttl each, leave enough to the living."""

ROOT = Path(__file__).parents[2]


def journal_of(program: str, url: str, folder: Path, *words: str) -> list[Event]:
    """Let a program kill, and give the journal."""
    command = [sys.executable, "-m", f"tests.processes.{program}", url, str(folder), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    with Journal(folder / "journal") as journal:
        return journal.events()


def faults(events: list[Event], folder: Path) -> list[str]:
    return judge(events, {file.stem: Counter(file).history() for file in folder.glob("*.counter")})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_h01_500_random_kills_leave_one_holder_and_all_counts(shared_url: str, tmp_path: Path) -> None:
    """After each kill the store is read whole, and at the end every lock is taken once more."""
    seed = random.SystemRandom().randrange(2**32)
    keys = KEYS[shared_url.partition(":")[0]]
    events = journal_of(
        "kill_run", shared_url, tmp_path, "--seed", f"{seed}", "--kills", f"{KILLS}", "--keys", f"{keys}"
    )
    assert faults(events, tmp_path) == [], f"seed {seed}"
    done = kills(events)
    print(f"seed {seed}: {done}")
    assert done.all >= KILLS
    # it happened to be shown, not only not contradicted
    assert done.holding > KILLS / 10
    assert done.taken_over > KILLS / 10
    assert done.tokens > KILLS / 10
    assert done.writes > KILLS / 10


TROUBLE = (
    ("fail", "insert,patch,delete,get"),
    ("fail_after_commit", "insert,patch,delete"),
    ("lose_request", "insert,patch,delete,get"),
    ("lose_answer", "insert,patch,delete"),
    ("stall", "patch,delete"),
    ("stall_answer", "insert,patch,delete,get"),
    ("repeat", "patch,delete"),
)
"""What may befall a request. An insert that commits late or twice leaves, by right, a record of nobody for a ttl."""


def trouble(gcs: GcsServer, journal: Path, seed: int, until_killed: int) -> None:
    """Let one request after the other go wrong, until so many processes were killed."""
    dice = random.Random(seed)
    while not journal.exists() or journal.read_bytes().count(b'"killed"') < until_killed:
        action, kinds = dice.choice(TROUBLE)
        gcs.faults.inject(action, kind=kinds, skip=dice.randrange(3), seconds=dice.uniform(0.02, 0.4))
        time.sleep(dice.uniform(0.0, 0.03))
    gcs.faults.clear()


@pytest.mark.slow
def test_h20_kills_amid_lost_late_or_duplicated_requests(gcs: GcsServer, tmp_path: Path) -> None:
    """The processes die while others read wrong answers, or none, and requests of the dead still arrive."""
    seed = random.SystemRandom().randrange(2**32)
    words = ("--seed", f"{seed}", "--kills", "60", "--keys", "14", "--life", "2")
    breaking = threading.Thread(target=trouble, args=(gcs, tmp_path / "journal", seed, 50), daemon=True)
    breaking.start()
    events = journal_of("kill_run", "gs://b/locks", tmp_path, *words)
    breaking.join(60)
    assert faults(events, tmp_path) == [], f"seed {seed}"
    done = kills(events)
    assert done.writes > 3
    assert sum(event.what == "silent" for event in events) > 5


@pytest.mark.slow
def test_h01_a_kill_around_any_command_locks_nobody_out(shared_url: str, tmp_path: Path) -> None:
    """Asked for, fenced, shared, renewed, given back: cut off where nothing was sent, and where nothing was heard."""
    events = journal_of("command_run", shared_url, tmp_path)
    assert faults(events, tmp_path) == []
    done = kills(events)
    # alone the grant, a renewal, a registration, the renewals of both, and the giving back are ten commands
    assert done.all >= 20
    assert done.taken_over >= 10
    # of both lives that were cut off nowhere, the lock was removed
    assert sum(event.what == "removed" for event in events) >= 2


@pytest.mark.slow
def test_the_judge_sees_workers_that_take_over_from_the_living(shared_url: str, tmp_path: Path) -> None:
    words = ("--seed", "1", "--kills", "40", "--keys", "4", "--sabotage", "takes over at once")
    told = "\n".join(faults(journal_of("kill_run", shared_url, tmp_path, *words), tmp_path))
    assert "had to stop" in told
    assert "may believe" in told
