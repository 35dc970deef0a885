"""How a group's tasks hang on the acquire and the release of its lock, and what is wrong with them. Pure.

Must not know Airflow's classes, nor stores: a task is a `Node`, and what comes out is ids to connect and lines to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from airflow_lockstead.spec import LockSpec

WAITS_FOR_ALL: Final = frozenset({"all_done", "all_done_min_one_success", "all_done_setup_success"})
"""Trigger rules by which a task is not decided before each task upstream of it is done."""

HEAVIEST: Final = 1_000_000
"""No keeper weighs more: a long line of groups would double the weight with each, and Airflow counts in 32 bits."""


class Role(Enum):
    """What a task is to the lock of the group."""

    MEMBER = "works under the lock"
    LOCK = "acquires or releases a lock of its own within the group"
    KEEPER = "renews a lock of its own within the group"


@dataclass(frozen=True, slots=True)
class Node:
    """A task in the group, groups within it included. Ids are full; retry_delay is seconds.

    mapped_in: the mapped groups within the locked group that it stands in, outermost first.
    """

    task_id: str
    upstream: frozenset[str] = frozenset()
    downstream: frozenset[str] = frozenset()
    role: Role = Role.MEMBER
    trigger_rule: str = "all_success"
    is_teardown: bool = False
    is_mapped: bool = False
    mapped_in: tuple[str, ...] = ()
    retries: int = 0
    retry_delay: float = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: acquire goes before `first`, each of `last` goes before release.

    upstream: for each member those members that stand directly before it. warnings: one line each.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    upstream: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...] = ()


def plan(group_id: str, nodes: Iterable[Node], spec: LockSpec) -> Plan:
    """Decide how a group is wired. ValueError, with one line, for a group that no lock can be put around."""
    inside = {node.task_id: node for node in nodes}
    members = [node for node in inside.values() if node.role is Role.MEMBER]
    if not members:
        raise ValueError("it has no task; put at least one into its block")
    first = [node for node in inside.values() if node.upstream.isdisjoint(inside)]
    for node in first:
        if node.trigger_rule != "all_success" and not node.is_teardown:
            raise ValueError(
                f"its first task {node.task_id!r} has the trigger rule {node.trigger_rule!r}: what follows an acquire "
                "directly must have all_success; put the rule on a task before the group, or on the acquire "
                f"(acquire_args={{'trigger_rule': {node.trigger_rule!r}}})"
            )
    return Plan(
        first=tuple(node.task_id for node in first),
        last=tuple(node.task_id for node in inside.values() if _needs_release_behind(node, inside)),
        upstream={node.task_id: _members_before(node, inside) for node in members},
        warnings=tuple(_late_retries(group_id, members, spec)),
    )


def idle_for(nodes: Iterable[Node], acquire_id: str, edges: Mapping[str, Set[str]]) -> dict[str, tuple[str, ...]]:
    """Return the members that wait for tasks outside which the acquire does not wait for, and those tasks.

    The lock would be held, and nobody work under it, until those are done. edges: what stands directly upstream, for
    all tasks of the DAG.
    """
    inside = {node.task_id for node in nodes} | {acquire_id}
    outside = {node.task_id: node.upstream - inside for node in nodes}
    if not any(outside.values()):
        return {}
    before = ancestors(acquire_id, edges)
    return {task_id: tuple(sorted(others - before)) for task_id, others in outside.items() if others - before}


def ancestors(task_id: str, edges: Mapping[str, Set[str]]) -> set[str]:
    """Return everything upstream of a task; downstream of it, if that is where the edges lead."""
    found: set[str] = set()
    asked = [task_id]
    while asked:
        fresh = edges.get(asked.pop(), frozenset()) - found
        found |= fresh
        asked.extend(fresh)
    return found


def idle_warning(group_id: str, task_id: str, others: Iterable[str]) -> str:
    """Say that a lock will be held idle."""
    named = ", ".join(map(repr, others))
    return (
        f"LockedTaskGroup {group_id!r}: its task {task_id!r} waits for {named} outside the group, so the lock is held "
        "idle meanwhile; let the whole group wait for it (task >> group), or put it into the group"
    )


def keeper_weights(
    weights: Mapping[str, int], downstream: Mapping[str, Set[str]], keepers: Mapping[str, str]
) -> dict[str, int]:
    """Return each keeper the least priority weight by which it is queued before the tasks of its group.

    To the weight of a task Airflow adds those of all tasks downstream. A keeper stands behind its acquire, so the more
    it weighs, the more it lifts whatever leads to the group above the rest of the installation. weights, downstream:
    of all other tasks of the DAG. keepers: the acquire of each.
    """
    behind = {acquire_id: ancestors(acquire_id, downstream) for acquire_id in keepers.values()}
    known: dict[str, int] = {}

    def weight(keeper_id: str) -> int:
        if keeper_id not in known:
            tasks = behind[keepers[keeper_id]]
            within = (weight(other) for other, acquire_id in keepers.items() if acquire_id in tasks)
            known[keeper_id] = min(1 + sum(weights[task_id] for task_id in tasks) + sum(within), HEAVIEST)
        return known[keeper_id]

    return {keeper_id: weight(keeper_id) for keeper_id in keepers}


def strangers(known: Set[str], now: Iterable[str]) -> list[str]:
    """Return the tasks that came into a group after it was closed, which no lock covers."""
    return [task_id for task_id in now if task_id not in known]


def _needs_release_behind(node: Node, inside: Mapping[str, Node]) -> bool:
    """Return whether the release has to wait for a task by itself, for no other task says that it is over.

    A task after several others is failed as soon as one of them is, while the rest still run or have yet to start: it
    cannot stand for them. A release in their midst would take the lock from under them.
    """
    if node.role is Role.KEEPER:
        return False  # a keeper within ends after its own release, which is waited for
    return not any(_is_over_after(node, inside[below]) for below in node.downstream if below in inside)


def _is_over_after(node: Node, below: Node) -> bool:
    """Return whether a task is surely over when one directly below it is, with all its mapped instances."""
    if below.role is Role.KEEPER or below.trigger_rule == "always":
        return False
    if below.trigger_rule in WAITS_FOR_ALL:
        return True
    sees_all = not node.is_mapped and node.mapped_in == below.mapped_in[: len(node.mapped_in)]
    return below.upstream == {node.task_id} and sees_all


def _members_before(node: Node, inside: Mapping[str, Node]) -> tuple[str, ...]:
    return tuple(sorted(name for name in node.upstream if name in inside and inside[name].role is Role.MEMBER))


def _late_retries(group_id: str, members: Iterable[Node], spec: LockSpec) -> Iterable[str]:
    if spec.keeper:
        return
    ttl = spec.believed_ttl
    for node in members:
        if node.retries > 0 and node.retry_delay > ttl:
            yield (
                f"LockedTaskGroup {group_id!r}: its task {node.task_id!r} is retried after {node.retry_delay:g} s, and "
                f"without a keeper the lease ends after {ttl:g} s (ttl): the retry will find it gone; take a longer "
                "ttl, a shorter retry_delay, or keeper=True"
            )
