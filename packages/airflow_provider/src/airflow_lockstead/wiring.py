"""The edges between a group's tasks and its acquire and release tasks, and errors and warnings about the group. Pure.

Must not know Airflow's classes or stores: a task is a `Node`; the result is task ids to connect, and texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from airflow_lockstead.spec import LockSpec

WAITS_FOR_ALL: Final = frozenset({"all_done", "all_done_min_one_success", "all_done_setup_success"})
"""Trigger rules by which a task waits until all its upstream tasks are done."""

HEAVIEST: Final = 1_000_000
"""Maximum weight of a keeper: in a long chain of groups each would double the weight, and Airflow uses 32 bits."""


class Role(Enum):
    """The role of a task for the group's lock."""

    MEMBER = "works under the lock"
    LOCK = "acquires or releases a lock of its own within the group"
    KEEPER = "renews a lock of its own within the group"


@dataclass(frozen=True, slots=True)
class Node:
    """A task in the group or in a group within it. Ids are full ids; retry_delay is in seconds.

    mapped_in: the mapped groups within the locked group that contain it, outermost first.
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
    """The edges of a group: from acquire to each task of `first`, and from each task of `last` to release.

    upstream: the direct upstream members of each member. warnings: one line each.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    upstream: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...] = ()


def plan(group_id: str, nodes: Iterable[Node], spec: LockSpec) -> Plan:
    """Return the edges of a group. ValueError, with one line, for a group that cannot have a lock."""
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
    """Return the members that wait for tasks outside the group for which the acquire does not wait, and those tasks.

    Until those tasks are done, the lock would be held without any work under it. edges: the direct upstream tasks of
    all tasks of the DAG.
    """
    inside = {node.task_id for node in nodes} | {acquire_id}
    outside = {node.task_id: node.upstream - inside for node in nodes}
    if not any(outside.values()):
        return {}
    before = ancestors(acquire_id, edges)
    return {task_id: tuple(sorted(others - before)) for task_id, others in outside.items() if others - before}


def ancestors(task_id: str, edges: Mapping[str, Set[str]]) -> set[str]:
    """Return all tasks upstream of a task; or downstream, if the edges are given in that direction."""
    found: set[str] = set()
    asked = [task_id]
    while asked:
        fresh = edges.get(asked.pop(), frozenset()) - found
        found |= fresh
        asked.extend(fresh)
    return found


def idle_warning(group_id: str, task_id: str, others: Iterable[str]) -> str:
    """Return the warning that a lock will be held idle."""
    named = ", ".join(map(repr, others))
    return (
        f"LockedTaskGroup {group_id!r}: its task {task_id!r} waits for {named} outside the group, so the lock is held "
        "idle meanwhile; let the whole group wait for it (task >> group), or put it into the group"
    )


def keeper_weights(
    weights: Mapping[str, int], downstream: Mapping[str, Set[str]], keepers: Mapping[str, str]
) -> dict[str, int]:
    """Return for each keeper the lowest priority weight with which it is queued before the tasks of its group.

    Airflow adds to the weight of a task those of all its downstream tasks. A keeper is downstream of its acquire, so
    its weight also raises the tasks before the group above the rest of the installation. weights, downstream: of all
    other tasks of the DAG. keepers: the acquire task of each keeper.
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
    """Return the tasks that were added to a group after it was closed, which no lock covers."""
    return [task_id for task_id in now if task_id not in known]


def _needs_release_behind(node: Node, inside: Mapping[str, Node]) -> bool:
    """Return whether the release must be directly downstream of a task, since no other task guarantees that it is done.

    A task with several upstream tasks fails as soon as one of them does, while the others still run or have not started
    yet. So its end does not mean that they are done, and a release then would take the lock away from them.
    """
    if node.role is Role.KEEPER:
        return False  # the keeper of an inner group ends after its own release, for which this release waits
    return not any(_is_over_after(node, inside[below]) for below in node.downstream if below in inside)


def _is_over_after(node: Node, below: Node) -> bool:
    """Return whether a task with all its mapped instances is certainly done when a direct downstream task is done."""
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
