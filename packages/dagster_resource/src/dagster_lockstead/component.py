"""Decides what a YAML file of `dg` may say of locks: `LockComponent`, by the entry point that `dg` looks for.

Must not be imported by the package itself: components cost time that a step process does not have to spend. Passwords
are named by the variable of the environment that holds them, so that none is in a file or in the definitions.
"""

# no annotation is a text here: pydantic and Dagster read them
from collections.abc import Sequence
from typing import Any, Optional

import dagster
from dagster import Component, ComponentLoadContext, Model, Resolvable

from dagster_lockstead import checks, sensors
from dagster_lockstead.resource import LockResource, LockStore


class Gate(Model, Resolvable):  # type: ignore[misc]
    """A sensor that asks for a run of a job when a lock is free; it runs as soon as it is there if `running`."""

    name: str
    key: str
    job: str
    minimum_interval_seconds: Optional[int] = None  # noqa: UP045
    running: bool = False


class NewestToken(Model, Resolvable):  # type: ignore[misc]
    """A check that an asset was materialized under the newest token of its lock."""

    asset: str
    key: str
    name: str = checks.NAME
    blocking: bool = False


class LockComponent(Component, Model, Resolvable):  # type: ignore[misc]
    """A store of locks as a resource, and what looks at its locks: gates, a janitor, asset checks.

    store: the URL, or store_env: the variable that holds it. resource: the resource's name. Durations as "5m".
    """

    store: Optional[str] = None  # noqa: UP045
    store_env: Optional[str] = None  # noqa: UP045
    username: str = ""
    password_env: Optional[str] = None  # noqa: UP045
    resource: str = "lock"
    ttl: Optional[str] = None  # noqa: UP045
    timeout: Optional[str] = None  # noqa: UP045
    purpose: Optional[str] = None  # noqa: UP045
    janitor: bool = False
    gates: Sequence[Gate] = ()
    checks: Sequence[NewestToken] = ()

    def build_defs(self, context: ComponentLoadContext) -> dagster.Definitions:  # noqa: ARG002 - Dagster gives it
        """Give the resource, the sensors and the asset checks."""
        return dagster.Definitions(
            resources={self.resource: self._resource()},
            sensors=[*map(self._gate, self.gates), *([self._janitor()] if self.janitor else [])],
            asset_checks=[self._check(one) for one in self.checks],
        )

    def _resource(self) -> LockResource:
        if (self.store is None) == (self.store_env is None):
            raise ValueError("LockComponent: name the store by one of 'store' and 'store_env'")
        url: Any = dagster.EnvVar(self.store_env) if self.store_env is not None else self.store
        password: Any = dagster.EnvVar(self.password_env) if self.password_env is not None else ""
        store = LockStore(url=url, username=self.username, password=password)
        return LockResource(store=store, ttl=self.ttl, timeout=self.timeout, purpose=self.purpose)

    def _gate(self, gate: Gate) -> dagster.SensorDefinition:
        status = dagster.DefaultSensorStatus.RUNNING if gate.running else dagster.DefaultSensorStatus.STOPPED
        return sensors.lock_free_sensor(
            gate.name,
            key=gate.key,
            target=gate.job,
            resource=self.resource,
            minimum_interval_seconds=gate.minimum_interval_seconds,
            default_status=status,
        )

    def _janitor(self) -> dagster.SensorDefinition:
        status = dagster.DefaultSensorStatus.RUNNING
        return sensors.janitor_sensor(f"{self.resource}_janitor", resource=self.resource, default_status=status)

    def _check(self, check: NewestToken) -> dagster.AssetChecksDefinition:
        asset_key = dagster.AssetKey.from_user_string(check.asset)
        return checks.newest_token_check(
            asset_key, key=check.key, name=check.name, resource=self.resource, blocking=check.blocking
        )
