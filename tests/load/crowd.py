"""Crowds of real processes: a parent that has its libraries loaded forks its workers, as an executor does."""

from __future__ import annotations

import textwrap

from tests.runtime.processes import Child

PARENT = """
import httpx

def told(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def work(number):
{work}

running, failed = set(), 0
for number in range(int(os.environ["CROWD"])):
    if len(running) >= int(os.environ["AT_ONCE"]):
        pid, status = os.wait()
        running.discard(pid)
        failed += status != 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(number)
            code = 0
        finally:
            if code:
                import traceback
                traceback.print_exc()
            os._exit(code)
    running.add(pid)
while running:
    pid, status = os.wait()
    running.discard(pid)
    failed += status != 0
told("failed", failed)
"""


def crowd(work: str, url: str, count: int, at_once: int, **environment: str) -> Child:
    """Start `count` workers, at most `at_once` of them at a time. The last line that the child says is `failed N`."""
    script = PARENT.replace("{work}", textwrap.indent(textwrap.dedent(work), "    "))
    return Child(script, url, CROWD=str(count), AT_ONCE=str(at_once), **environment)


def said(child: Child) -> list[str]:
    """Wait for the end of processes that must all succeed; return what their workers printed."""
    out, errors = child.process.communicate(timeout=150)
    lines = out.splitlines()
    assert lines, errors
    assert lines.pop() == "failed 0", errors
    return lines
