"""What a lock in a SQLite file promises when many processes want it at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES = 32
SECONDS = 60.0 if os.environ.get("LOCKSTEAD_LONG") == "1" else 15.0

WORKER = """
import sys, time
from pathlib import Path
import lockstead

url, counter, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
ends_at, mine, tokens = time.monotonic() + seconds, 0, []
lock = lockstead.Lock(url, ttl=60)
while time.monotonic() < ends_at:
    with lock.hold() as lease:
        value = int(counter.read_text())
        tokens.append(lease.sequencer().token)
        counter.write_text(str(value + 1))
        mine += 1
assert tokens == sorted(set(tokens)), "tokens do not grow"
print(mine, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_32_processes_on_one_lock_lose_no_increment(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    url = f"sqlite:///{tmp_path}/locks.db#counter"
    command = [sys.executable, "-c", WORKER, url, str(counter), str(SECONDS)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        outputs = [worker.communicate(timeout=SECONDS + 120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    done = [int(output) for output in outputs]
    assert int(counter.read_text()) == sum(done)
    assert sum(done) > PROCESSES, "they hardly ever got in"
