"""What the pictures show: assets that want one lock. Served by `pictures`, not tested."""

# No `from __future__ import annotations`: Dagster reads the annotations.
import time

import dagster as dg

from dagster_lockstead import LockResource, locked


@dg.asset
@locked("apt", ttl="5m", purpose="publish APT packages")
def repository() -> dg.MaterializeResult:
    """Publish, at once."""
    return dg.MaterializeResult(metadata={"packages": 12})


@dg.asset
@locked("apt", ttl="5m", purpose="publish APT packages")
def nightly() -> None:
    """Publish, until the pictures are taken."""
    time.sleep(3600)


@dg.asset
@locked("apt", ttl="5m", purpose="rebuild the index")
def index() -> None:
    """Want the lock meanwhile."""


defs = dg.Definitions(
    assets=[repository, nightly, index],
    resources={"lock": LockResource(store="gs://my-bucket/locks")},
)
