"""The content of the next version. Pure."""

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
"""Number of versions for which an index file stays readable after it was current."""
CLOCK_SLACK = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of the next version.

    packages: all its packages. added: those that come from `incoming/`. kept: the paths that are copied from the base,
    both packages and old index files. old_index: the ages of the old index files.
    """

    packages: tuple[Package, ...]
    added: tuple[Package, ...]
    kept: Mapping[str, FileFacts]
    old_index: Mapping[str, int]

    @property
    def is_idle(self) -> bool:
        """Return whether nothing changes, so that no version is needed."""
        return not self.added


def plan(
    offered: Iterable[Package],
    files: Mapping[str, FileFacts],
    index_ages: Mapping[str, int],
    wanted: Iterable[Package],
    *,
    overwrite: bool = False,
) -> Plan:
    """Return the plan for the base's packages and the packages to add.

    files and index_ages are the base's. A package that the base has with the same bytes stays as it is; with other
    bytes it is Refused unless `overwrite` is true.
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
            # Two versions that differ only in their epoch have the same file name.
            raise Refused(f"{package} and {other} would both be {package.path}")


def meant_files(
    decided: Plan, index: Mapping[str, FileFacts], added: Mapping[str, FileFacts], claim: FileFacts
) -> dict[str, FileFacts]:
    """Return all files of the next version; files that its index replaces are not copied."""
    return {**decided.kept, **added, **index, CLAIM: claim}


def ages(decided: Plan, index: Iterable[str]) -> dict[str, int]:
    """Return the next version's index ages: 0 for its own files, one more than before for the others."""
    return {**decided.old_index, **dict.fromkeys(index, 0)}


def to_copy(decided: Plan, index: Iterable[str]) -> tuple[str, ...]:
    """Return the paths to copy from the base: all kept ones that are not written anew."""
    return tuple(sorted(set(decided.kept) - set(index)))


def wait_before_index(last_at: float, bucket_now: float) -> float:
    """Return the seconds to wait until the bucket's clock shows a later second than the last index has.

    apt asks whether the index has changed since the second in which its own was written, so it would never fetch the
    second of two indexes of the same second. Both instants are of the bucket's clock.
    """
    return max(0.0, min(math.floor(last_at) + 1 - bucket_now, 1.0))


def signing_instant(now: datetime, base: datetime | None) -> datetime:
    """Return the instant to sign with, to the second: never before the base's; Refused if the base's is far ahead of
    now.

    Readers silently keep the newer of two indexes, so a publisher whose clock is behind must not use an earlier date;
    and they reject an index from the future.
    """
    now = now.replace(microsecond=0)
    if base is None or base <= now:
        return now
    if base > now + CLOCK_SLACK:
        raise Refused(f"the last version is dated {base}, and it is {now} here; one of the two clocks is wrong")
    return base
