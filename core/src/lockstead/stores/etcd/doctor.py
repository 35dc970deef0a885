"""Diagnosis of an etcd: members, versions, quorum, alarms, space. Must not know how requests are sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

from lockstead.errors import StoreError
from lockstead.stores.etcd import encoding
from lockstead.stores.etcd.encoding import Json, Request, Response
from lockstead.stores.etcd.errors import NEEDED, error_details
from lockstead.stores.etcd.url import Target
from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.stores.kept import json_object

BEHIND: Final[Mapping[Guarantee, str]] = {
    Guarantee.CREATE_PRESENT: "the comparison of create_revision over the record's range",
    Guarantee.CREATE_RACE: "the comparison of create_revision over the record's range",
    Guarantee.EXTEND_REVISION: "the comparison of mod_revision",
    Guarantee.REPLACE_REVISION: "the comparison of mod_revision",
    Guarantee.REMOVE_INCARNATION: "the comparison of create_revision",
    Guarantee.TOKEN: "the create revision, which the cluster counts",
}

FULL: Final = 0.8
"""The fraction of the quota above which there is a warning."""

Each = Callable[[Request], "dict[str, Response | StoreError]"]
"""Sends a request to every member; returns the answers by endpoint."""


def examination(target: Target, each: Each) -> Iterator[Finding]:
    """Yield what is found, member by member."""
    yield from _versions(each)
    states = yield from _members(target, each)
    yield from _alarms(each)
    yield from _space(each, states)


def _versions(each: Each) -> Iterator[Finding]:
    for endpoint, answer in each(Request("Version", "/version", b"")).items():
        if isinstance(answer, StoreError):
            yield Finding(Severity.WARNING, "member", f"{endpoint}: {answer}", "start it, or take it out of the URL")
            continue
        said = str(json_object(answer.body).get("etcdserver", ""))
        found = re.match(r"(\d+)\.(\d+)", said)
        if found is None:
            text = f"{endpoint}: what answers there is not etcd"
            yield Finding(Severity.FAILURE, "version", text, "correct host and port")
        elif (int(found[1]), int(found[2])) < tuple(map(int, NEEDED.split("."))):
            text = f"{endpoint}: etcd {said} is too old"
            yield Finding(Severity.FAILURE, "version", text, f"upgrade it to {NEEDED} or later")
        else:
            yield Finding(Severity.OK, "version", f"{endpoint}: etcd {said}")


def _members(target: Target, each: Each) -> Generator[Finding, None, list[Json]]:
    states: list[Json] = []
    for endpoint, answer in each(encoding.request("Status", "maintenance/status", {})).items():
        if isinstance(answer, StoreError) or answer.status != 200:
            continue
        body = json_object(answer.body)
        states.append(body)
        if not int(body.get("leader", 0) or 0):
            text = f"{endpoint}: this member knows no leader: there is no majority, and no lock can be taken through it"
            yield Finding(
                Severity.FAILURE, "quorum", text, "start the other members, or repair the network between them"
            )
    leaders = {body.get("leader") for body in states if int(body.get("leader", 0) or 0)}
    if len(leaders) == 1:
        yield Finding(Severity.OK, "quorum", f"{len(states)} of the members in the URL agree on a leader")
    if len(target.endpoints) == 1:
        text = "the URL names one member: while that is down, no lock can be taken or renewed"
        yield Finding(Severity.NOTE, "members", text, "name all members: etcd://host1,host2,host3/prefix")
    return states


def _alarms(each: Each) -> Iterator[Finding]:
    for answer in each(encoding.request("Alarm", "maintenance/alarm", {"action": "GET"})).values():
        if isinstance(answer, StoreError):
            continue
        said = error_details(json_object(answer.body))[1]
        if said:
            yield Finding(Severity.NOTE, "alarms", f"alarms cannot be seen: {said}", "ask as root: etcdctl alarm list")
            return
        alarms = [str(one.get("alarm", "")) for one in json_object(answer.body).get("alarms", ())]
        if alarms:
            text = f"an alarm is raised ({', '.join(sorted(set(alarms)))}): etcd takes no writes"
            remedy = "compact and defragment it, raise its quota, then: etcdctl alarm disarm"
            yield Finding(Severity.FAILURE, "alarms", text, remedy)
        else:
            yield Finding(Severity.OK, "alarms", "no alarm is raised")
        return


def _space(each: Each, states: list[Json]) -> Iterator[Finding]:
    sizes = [int(body.get("dbSize", 0)) for body in states]
    if not sizes:
        return
    quotas = [quota for quota in map(_quota, each(Request("Metrics", "/metrics", b"")).values()) if quota]
    size, quota = max(sizes), min(quotas, default=0.0)
    figures = {"db_bytes": float(size), **({"quota_bytes": quota} if quota else {})}
    if not quota:
        yield Finding(Severity.NOTE, "space", f"the database has {size} bytes; its quota is not shown", figures=figures)
    elif size > FULL * quota:
        text = f"the database fills {size / quota:.0%} of its quota; once it is full, no lock can be taken"
        remedy = "compact and defragment it (--auto-compaction-retention), or raise --quota-backend-bytes"
        yield Finding(Severity.WARNING, "space", text, remedy, figures)
    else:
        yield Finding(Severity.OK, "space", f"the database fills {size / quota:.0%} of its quota", figures=figures)


def _quota(answer: Response | StoreError) -> float | None:
    if isinstance(answer, StoreError):
        return None
    found = re.search(rb"^etcd_server_quota_backend_bytes (\S+)", answer.body, re.MULTILINE)
    return float(found[1]) if found else None
