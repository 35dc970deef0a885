"""Which bodies the tests of marks and kills end, as one DAG: each in a locked group of its own.

This is a DAG file behind the head of `sections`, which brings `note`; DIRECTORY and TTL are put before it. A body that
is asked to end goes on for a while, as one does that cleans up, so that who does not wait for it is seen beside it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

GOES_ON = 8.0
"""Seconds for which a body works on after it was asked to end; Airflow kills some of them before."""


def url(name):
    return f"sqlite:///{DIRECTORY}/{name}.db#{name}"  # noqa: F821 - put before this


def children(name):
    """Return what earlier tries have started."""
    lines = [json.loads(line) for line in Path(NOTES).read_text().splitlines()]  # noqa: F821
    return [line["child"] for line in lines if line["what"] == "child" and line["name"] == name]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def work(name, ti=None):
    """Say ten times a second that it works under this token, in its first try; later ones do so once."""
    token = lockstead.current_lease().sequencer().token  # noqa: F821
    told = {"name": name, "token": token, "try_number": ti.try_number}
    if ti.try_number > 1:
        note("found", left=[child for child in children(name) if is_alive(child)], **told)  # noqa: F821
    note("began", **told)  # noqa: F821
    if name in ("supervisor_killed", "body_killed") and ti.try_number == 1:
        child = subprocess.Popen(["bash", "-c", "trap '' TERM; while true; do sleep 1; done"], start_new_session=True)
        note("child", child=child.pid, **told)  # noqa: F821
    ends_at = None if ti.try_number == 1 else 0.0
    while ends_at is None or time.monotonic() < ends_at:  # noqa: F821
        note("works", **told)  # noqa: F821
        try:
            time.sleep(0.1)  # noqa: F821
        except BaseException as error:
            note("asked to end", kind=type(error).__name__, **told)  # noqa: F821
            ends_at = ends_at or time.monotonic() + GOES_ON  # noqa: F821
    note("ended", **told)  # noqa: F821


def follow(name):
    note("follows", name=name, token=lockstead.current_lease().sequencer().token)  # noqa: F821


with DAG("ended_by_force", schedule=None, start_date=datetime(2024, 1, 1)):  # noqa: F821
    for name in ("marked_failed", "marked_success", "body_killed", "supervisor_killed"):
        retries = {"retries": 1 if name == "body_killed" else 0, "retry_delay": timedelta(seconds=1)}  # noqa: F821
        with LockedTaskGroup(  # noqa: F821
            name,
            lock=url(name),
            ttl=120 if name == "body_killed" else TTL,  # noqa: F821  # between two tries nobody renews here
            keeper=False,
            acquire_args={"deferrable": False},
        ):
            first = task(task_id="work", **retries)(work)(name)  # noqa: F821
            if name == "marked_success":
                first >> task(task_id="follow")(follow)(name)  # noqa: F821
