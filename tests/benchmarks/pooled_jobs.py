"""The definitions of `make bench-dagster`: the same ops in a pool of Dagster's and under our locks.

What happens in an op is noted at once in a file that all processes share, so that a killed one has noted what it
did. No annotation is a string here: Dagster reads them.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext

from dagster_lockstead import LockResource, LockStore, locked

THEIRS: Final = "theirs"
KINDS: Final = (THEIRS, "redis", "sqlite")

NAME: Final = "bench/name"
"""The tag that names a section, and the file of notes of those who are in it."""

TTL: Final = 60
PARALLEL: Final = 4

BODY: Final = 0.05
"""Seconds that a step works whose entering and leaving is measured."""


def name_of(context: Any) -> str:
    """Return the name in the tags of the context's run."""
    return str(context.run.tags[NAME])


def note(context: Any, what: str, **more: Any) -> None:
    """Say what happens, where others can read it."""
    line = dict(more, what=what, run=context.run.run_id, who=os.getpid(), at=time.monotonic())
    path = Path(os.environ["LOCKSTEAD_BENCH_NOTES"]) / name_of(context)
    there = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(there, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(there)


# --- the critical section -----------------------------------------------------------------------------------------


def stay(context: Any) -> None:
    """Stay half a second; the first until all the others wait."""
    note(context, "enters")
    go = Path(os.environ["LOCKSTEAD_BENCH_NOTES"]) / f"{name_of(context)}.go"
    while not go.exists():
        time.sleep(0.01)
    time.sleep(0.5)
    note(context, "leaves")


def work(context: Any) -> None:
    """Note for some seconds that this is at work, even if its parent is gone."""
    note(context, "enters")
    ends_at = time.monotonic() + float(context.run.tags["bench/seconds"])
    while time.monotonic() < ends_at:
        note(context, "ticks")
        time.sleep(0.05)
    note(context, "leaves")


def _op(kind: str, body: Callable[[Any], None]) -> Any:
    """Return an op that does this in the section of its run's name; Dagster's pool has the name of the body."""

    def done(context) -> None:  # type: ignore[no-untyped-def]
        body(context)

    name = f"{body.__name__}_{kind}"
    if kind == THEIRS:
        return dg.op(name=name, pool=f"pool_{body.__name__}")(done)
    return dg.op(name=name)(locked(name_of, resource=kind, ttl=TTL)(done))


def _job(op: Any, times: int) -> Any:
    @dg.job(name=f"{op.name}_{times}", executor_def=dg.multiprocess_executor.configured({"max_concurrent": PARALLEL}))
    def made() -> None:
        for number in range(times):
            op.alias(f"{op.name}_at_{number}")()

    return made


# --- cycles ---------------------------------------------------------------------------------------------------------


@dg.op
def cycles(context, redis: LockResource, sqlite: LockResource) -> None:  # type: ignore[no-untyped-def]
    """Enter and leave each kind in turn, in one step, and note the median seconds of each round but the first."""
    rounds, times = (int(context.run.tags[f"bench/{name}"]) for name in ("rounds", "times"))
    with InstanceConcurrencyContext(context.instance, context.run) as pools:
        sections = {
            THEIRS: lambda: _claim_and_free(pools),
            "hold redis": lambda: _hold(context, redis),
            "hold sqlite": lambda: _hold(context, sqlite),
            "locked redis": lambda: _locked(context, "redis", redis),
            "locked sqlite": lambda: _locked(context, "sqlite", sqlite),
        }
        kinds = list(sections)
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(-1, rounds):
            first = number % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                seconds = [_seconds(sections[kind]) for _ in range(times)]
                if number >= 0:
                    taken[kind].append(statistics.median(seconds))
    note(context, "cycles", taken=taken)


def _seconds(section: Callable[[], float]) -> float:
    """Return the seconds that a section takes, but for its body's."""
    began = time.perf_counter()
    body = section()
    return time.perf_counter() - began - body


def _claim_and_free(pools: InstanceConcurrencyContext) -> float:
    """Do what Dagster's executors do for a step that is in a pool."""
    if not pools.claim("pool_cycle", "cycles"):
        raise RuntimeError("the pool has no slot")
    pools.free_step("cycles")
    return 0.0


def _hold(context: Any, resource: LockResource) -> float:
    with resource.hold(context, "cycle", ttl=TTL):
        pass
    return 0.0


WORKED: Final[list[float]] = []
"""The seconds that the last body took."""


def _work() -> None:
    """Work a moment: while a step works, its lock's metadata is written."""
    began = time.perf_counter()
    time.sleep(BODY)
    WORKED[:] = [time.perf_counter() - began]


LOCKED: Final = {kind: locked("cycle-locked", resource=kind, ttl=TTL)(_work) for kind in KINDS[1:]}


def _locked(context: Any, kind: str, resource: LockResource) -> float:
    """Do what Dagster does with the function of an op."""
    for _event in LOCKED[kind](context, **{kind: resource}):
        pass
    return WORKED[0]


@dg.job(executor_def=dg.in_process_executor)
def cycling() -> None:
    """Measure in the run worker."""
    cycles()


defs = dg.Definitions(
    jobs=[
        cycling,
        *(_job(op, times) for op in [_op(kind, stay) for kind in KINDS] for times in (1, PARALLEL)),
        *(_job(_op(kind, work), 1) for kind in KINDS),
    ],
    resources={
        "redis": LockResource(store=LockStore(url=dg.EnvVar("LOCKSTEAD_BENCH_REDIS"))),
        "sqlite": LockResource(store=LockStore(url=dg.EnvVar("LOCKSTEAD_BENCH_SQLITE"))),
    },
)
