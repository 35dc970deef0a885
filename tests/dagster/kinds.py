"""Ops of every kind, locked and bare, in one job. Loaded by path, also in step processes.

No annotation is a text here: Dagster reads them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import dagster as dg

from dagster_lockstead import LockResource, locked


def value() -> int:
    return 1


def follows(value: int) -> int:
    return value + 1


def nothing() -> None:
    return None


def pair() -> tuple[int, str]:
    return 1, "b"


def chooses():
    yield dg.Output(2, output_name="a")


def tells() -> Iterator[object]:
    yield dg.AssetMaterialization("seen", metadata={"mine": 1})
    yield dg.ExpectationResult(success=True, label="fine")
    yield dg.Output(3, metadata={"mine": 2})


def gives_metadata() -> dg.Output[int]:
    return dg.Output(7, metadata={"mine": 1})


async def awaits() -> int:
    await asyncio.sleep(0)
    return 4


async def awaits_and_yields() -> AsyncIterator[dg.Output[int]]:
    await asyncio.sleep(0)
    yield dg.Output(5)


def rest(number: int = 1, **more: int) -> int:
    return number + len(more)


def fan() -> list[dg.DynamicOutput[int]]:
    return [dg.DynamicOutput(n, mapping_key=f"n{n}", metadata={"mine": n}) for n in range(2)]


def fan_by_yield() -> Iterator[dg.DynamicOutput[int]]:
    yield from fan()


TWO = {"a": dg.Out(int), "b": dg.Out(str, is_required=False)}
GIVEN = {
    pair: {"out": TWO},
    chooses: {"out": TWO},
    tells: {"out": dg.Out(int)},
    awaits_and_yields: {"out": dg.Out(int)},
    fan: {"out": dg.DynamicOut(int)},
    fan_by_yield: {"out": dg.DynamicOut(int)},
}
ALONE = (nothing, pair, chooses, tells, gives_metadata, awaits, awaits_and_yields, rest)
FEW = (pair, tells, awaits_and_yields)
"""What stands for all of them where every step costs a process."""

FORKS = {"start_method": {"forkserver": {"preload_modules": ["tests.dagster.kinds"]}}, "max_concurrent": 2}


def job_of(way: str, where: str, many: str) -> dg.JobDefinition:
    """Return the job. way: locked or bare. where: here or apart, with a process for each step. many: all or few."""

    def op(function):
        return dg.op(**GIVEN.get(function, {}))(function if way == "bare" else locked("k")(function))

    executor = dg.in_process_executor if where == "here" else dg.multiprocess_executor.configured(FORKS)
    alone = [op(function) for function in (ALONE if many == "all" else FEW)]
    first, second = op(value), op(follows)
    fans = [op(fan), *([op(fan_by_yield)] if many == "all" else [])]
    lock = LockResource(store=dg.EnvVar("LOCKSTEAD_TEST_STORE"))

    @dg.job(name=f"all_{way}", executor_def=executor, resource_defs={} if way == "bare" else {"lock": lock})
    def made():
        for one in alone:
            one()
        second(first())
        for many in fans:
            many().map(second.alias(f"each_of_{many.name}"))

    return made
