"""`LockComponent`, for locks in a YAML file of `dg`, which finds it by its entry point.

Must not be imported by the package itself: importing components takes time that a step process should not spend.
Passwords are given as names of environment variables, so that none is in a file or in the definitions.
"""

# annotations here are not strings: pydantic and Dagster read them
from collections.abc import Sequence
from typing import Annotated, Any, Optional, Union

import dagster
from dagster import Component, ComponentLoadContext, Model, Resolvable, ResolvedAssetKey, Resolver
from pydantic import Field

from dagster_lockstead import checks, sensors
from dagster_lockstead.resource import LockResource, LockStore


def _said(text: str) -> Any:
    """Return a resolver with a description: for a field with a default, Dagster reads only the resolver's."""
    return Resolver.default(description=text)


Length = Union[str, int, float, None]  # noqa: UP007 - Dagster reads the annotations
"""A duration in a YAML file."""


class Gate(Model, Resolvable):  # type: ignore[misc]
    """A sensor that requests a run of a job when a lock is free; it is on from the start if `running`."""

    name: Annotated[str, _said("The name of the sensor.")]
    key: Annotated[str, _said("The key of the lock.")]
    job: Annotated[str, _said("The job whose run it requests.")]
    mode: Annotated[str, _said("Whether that run holds the lock exclusive, or shared with other readers.")] = (
        "exclusive"
    )
    permits: Annotated[Optional[int], _said("The limit of a semaphore, which is free while a permit is.")] = None  # noqa: UP045
    minimum_interval_seconds: Annotated[Optional[int], _said("The minimum seconds between two evaluations.")] = None  # noqa: UP045
    running: Annotated[bool, _said("Whether the sensor is on from the start.")] = False


class NewestToken(Model, Resolvable):  # type: ignore[misc]
    """A check that an asset was materialized under the newest token of its lock."""

    asset: ResolvedAssetKey = Field(description="The key of the asset, as in repository or apt/packages.")
    key: Annotated[str, _said("The key of its lock, which may name the partition: part-{partition_key}.")]
    name: Annotated[str, _said("The name of the check.")] = checks.NAME
    blocking: Annotated[bool, _said("Whether a failure blocks downstream assets.")] = False


class FromEnvironment(Model, Resolvable):  # type: ignore[misc]
    """A value from an environment variable instead of the file."""

    env: Annotated[str, _said("The environment variable with the value.")]


class LockScaffolder(dagster.Scaffolder):  # type: ignore[misc]
    """A scaffolder of a component that works unchanged: its locks are in a file, for one machine."""

    def scaffold(self, request: dagster.ScaffoldRequest) -> None:
        """Write the file."""
        dagster.scaffold_component(request, {"store": "sqlite:///locks.db"})


@dagster.scaffold_with(LockScaffolder)
class LockComponent(Component, Model, Resolvable):  # type: ignore[misc]
    """A store of locks as a resource, with sensors and checks for its locks: gates, a janitor, asset checks.

    store: the URL, or the environment variable that has it. resource: the resource's name. Durations are seconds, or
    text like "5m".
    """

    store: Union[str, FromEnvironment] = Field(  # noqa: UP007
        description="The URL of the store, as in redis://locks.example/0, or {env: VARIABLE}."
    )
    username: Annotated[str, _said("The user name for the store, if it requires one.")] = ""
    password_env: Annotated[
        Optional[str],  # noqa: UP045
        _said("The environment variable with the password of that user."),
    ] = None
    resource: Annotated[str, _said("The name of the resource, as in @locked(resource=...).")] = "lock"
    ttl: Annotated[Length, _said("How long a lease lasts without a renewal: seconds, or text such as 5m.")] = None
    timeout: Annotated[Length, _said("How long to wait: seconds, or text such as 10m. Default: forever.")] = None
    purpose: Annotated[Optional[str], _said("Why locks are acquired; shown to waiters.")] = None  # noqa: UP045
    janitor: Annotated[bool, _said("Whether a sensor frees locks that ended runs left held.")] = False
    gates: Annotated[Sequence[Gate], _said("Sensors that request a run when a lock is free.")] = ()
    checks: Annotated[Sequence[NewestToken], _said("Checks that assets were written with the newest token.")] = ()

    def build_defs(self, context: ComponentLoadContext) -> dagster.Definitions:  # noqa: ARG002 - Dagster passes it
        """Return the resource, the sensors and the asset checks."""
        return dagster.Definitions(
            resources={self.resource: self._resource()},
            sensors=[*map(self._gate, self.gates), *([self._janitor()] if self.janitor else [])],
            asset_checks=[self._check(one) for one in self.checks],
        )

    def _resource(self) -> LockResource:
        url: Any = dagster.EnvVar(self.store.env) if isinstance(self.store, FromEnvironment) else self.store
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
            mode=gate.mode,
            permits=gate.permits,
            minimum_interval_seconds=gate.minimum_interval_seconds,
            default_status=status,
        )

    def _janitor(self) -> dagster.SensorDefinition:
        status = dagster.DefaultSensorStatus.RUNNING
        return sensors.stale_lock_sensor(f"{self.resource}_janitor", resource=self.resource, default_status=status)

    def _check(self, check: NewestToken) -> dagster.AssetChecksDefinition:
        return checks.fencing_token_check(
            check.asset, key=check.key, name=check.name, resource=self.resource, blocking=check.blocking
        )
