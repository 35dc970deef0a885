"""What the next version is to consist of. Pure: it chooses, and is told everything it chooses by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from examples.publishing.errors import Refused
from examples.publishing.layout import CLAIM
from examples.publishing.manifest import FileFacts
from examples.publishing.packages import Identity, Package

CARRY_AGE_MAX = 5
"""For how many versions an index file stays readable after it was the current one."""
CLOCK_SLACK = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for the next version.

    packages: all it will offer. added: those of them that come from `incoming/`. kept: paths that are copied from the
    version it builds upon, packages and old index files alike. old_index: of those, the ages of the index files.
    """

    packages: tuple[Package, ...]
    added: tuple[Package, ...]
    kept: Mapping[str, FileFacts]
    old_index: Mapping[str, int]

    @property
    def is_idle(self) -> bool:
        """Nothing would change, so no version is needed."""
        return not self.added


def plan(
    offered: Iterable[Package],
    files: Mapping[str, FileFacts],
    index_ages: Mapping[str, int],
    wanted: Iterable[Package],
    *,
    overwrite: bool = False,
) -> Plan:
    """Choose the next version's content from what the base offers and what is to be added.

    files and index_ages are the base's. A package the base has, with the same bytes, is left as it is; with other bytes
    it is Refused, unless overwrite says otherwise.
    """
    packages: dict[Identity, Package] = {package.identity: package for package in offered}
    missing = [package.path for package in packages.values() if package.path not in files]
    if missing:
        raise Refused(f"the index names {missing[0]}, which is not in the version it belongs to")
    added: dict[Identity, Package] = {}
    for package in wanted:
        there = packages.get(package.identity)
        if there is not None and there.sha256 == package.sha256:
            continue
        if package.identity in added or (there is not None and not overwrite):
            raise Refused(
                f"{package} is already there with other content; give it a new version, or overwrite it on purpose"
            )
        packages[package.identity] = added[package.identity] = package
    _refuse_shared_paths(packages.values())
    old = {path: age + 1 for path, age in index_ages.items() if age < CARRY_AGE_MAX and path in files}
    replaced = {package.path for package in added.values()}
    stays = {package.path for package in packages.values()} - replaced
    kept = {path: facts for path, facts in files.items() if path in stays or path in old}
    return Plan(tuple(packages.values()), tuple(added.values()), kept, old)


def _refuse_shared_paths(packages: Iterable[Package]) -> None:
    owners: dict[str, Package] = {}
    for package in packages:
        other = owners.setdefault(package.path, package)
        if other is not package:
            # Two versions that differ only in their epoch have one file name.
            raise Refused(f"{package} and {other} would both be {package.path}")


def meant_files(
    decided: Plan, index: Mapping[str, FileFacts], added: Mapping[str, FileFacts], claim: FileFacts
) -> dict[str, FileFacts]:
    """Return exactly what the next version must consist of; what its own index replaces is not carried."""
    return {**decided.kept, **added, **index, CLAIM: claim}


def ages(decided: Plan, index: Iterable[str]) -> dict[str, int]:
    """Return the next version's index ages: its own files are current, the others a version older than before."""
    return {**decided.old_index, **dict.fromkeys(index, 0)}


def to_copy(decided: Plan, index: Iterable[str]) -> tuple[str, ...]:
    """Return the paths to copy from the base: all that is kept and not written anew."""
    return tuple(sorted(set(decided.kept) - set(index)))


def wait_before_index(last_at: float, bucket_now: float) -> float:
    """Return how many seconds to wait, so that the bucket dates the next index in a later second than the last one.

    apt asks whether the index has changed since the second in which the one it has was written. Of two in one second
    it would never fetch the other. Both instants are the bucket's.
    """
    return max(0.0, min(math.floor(last_at) + 1 - bucket_now, 1.0))


def signing_instant(now: datetime, base: datetime | None) -> datetime:
    """Return the instant to sign with, to the second: never before the base's; Refused if that is far ahead of now.

    Readers keep the newer of two indexes without a word, so a publisher whose clock is behind must not date its own
    back; and they refuse one from the future.
    """
    now = now.replace(microsecond=0)
    if base is None or base <= now:
        return now
    if base > now + CLOCK_SLACK:
        raise Refused(f"the last version is dated {base}, and it is {now} here; one of the two clocks is wrong")
    return base
