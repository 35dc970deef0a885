"""Dagster resources for a store and its locks: `LockStore` and `LockResource`, with secrets by `EnvVar`.

Dagster reads the annotations of these classes unresolved, so those of fields must not be strings. Nothing is opened
when a resource is set up, which the multiprocess executor does once for each step. The store is opened when a lock is
first used, shared by the process, and closed with its last user.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Optional, TypeVar

import dagster
from pydantic import Field, PrivateAttr

import lockstead
from dagster_lockstead import compat
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.spec import LockSpec, refuse_template
from lockstead import urls
from lockstead.telemetry import install_once
from lockstead.values import Duration, seconds
from lockstead.wrapping.spec import OnUnclean

if TYPE_CHECKING:
    from lockstead import AsyncLock, Client, Lease, Lock, LockInfo

L = TypeVar("L", "Lock", "AsyncLock")


def _check_arguments(kind: type[dagster.ConfigurableResource], given: dict[str, Any]) -> None:
    """Raise TypeError, with one line, for an unknown argument: a misspelled timeout would be dropped silently."""
    unknown = sorted(set(given) - set(kind.model_fields))
    if unknown:
        known = ", ".join(sorted(kind.model_fields))
        raise TypeError(f"{kind.__name__} has no argument {unknown[0]!r}; it has {known}")


def checked_resource(name: str, found: object) -> "LockResource":
    """Return the resource of a name. TypeError, with one line, if it is not a LockResource."""
    if not isinstance(found, LockResource):
        raise TypeError(f"the resource {name!r} must be a LockResource, and is {type(found).__name__}")
    return found


def unmocked(resource: Any) -> Any:
    """Return the resource; for a mock, which only a test uses, return one whose locks are in this process's memory."""
    mock = sys.modules.get("unittest.mock")
    if mock is not None and isinstance(resource, mock.NonCallableMock):
        return LockResource(store="memory:mock")
    return resource


class LockStore(dagster.ConfigurableResource):
    """The address of a store: its URL, and separately the user and the password, so that they can be an `EnvVar`."""

    url: str = Field(description="The URL of the store, as in gs://my-bucket/locks, without user and password.")
    username: str = Field(default="", description="The user name for the store, if it requires one.")
    password: str = Field(default="", description="The password of that user; use an EnvVar.")

    def __init__(self, **given: Any) -> None:
        _check_arguments(type(self), given)
        super().__init__(**given)
        # environment variables are read when the resource is set up, and checked then
        if not any(isinstance(given.get(name), dagster.EnvVar) for name in ("url", "username", "password")):
            self.location()

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Yield the fields without secrets: the URL without user and password, and the user name."""
        if isinstance(self.url, dagster.EnvVar):
            yield "url", self.url
        else:
            scheme, mark, rest = self.url.partition("://")
            yield "url", f"{scheme}{mark}{rest.rpartition('@')[2]}"
        yield "username", self.username

    def location(self) -> str:
        """Return the URL with user and password. ValueError, with one line, if it is not a store's URL."""
        urls.check_store(self.url)
        return urls.with_user(self.url, self.username, self.password)


class LockResource(dagster.ConfigurableResource):
    """A store of locks, for the ops, assets, sensors and schedules of a code location.

    store: its URL, or a LockStore. ttl, timeout, purpose: the defaults of its locks; durations are seconds or text like
    "5m"; without a timeout it waits forever. gcs: any resource with a `get_client()` that returns a Cloud Storage
    client, such as the GCSResource of dagster-gcp; only for gs: stores.
    """

    store: LockStore
    ttl: Optional[str] = Field(  # noqa: UP045 - Dagster reads the annotation
        default=None,
        description="How long a lease lasts without a renewal: seconds, or text such as 5m. Default: 5 minutes.",
    )
    timeout: Optional[str] = Field(  # noqa: UP045
        default=None, description="How long to wait for a lock: seconds, or text such as 10m. Default: forever."
    )
    purpose: Optional[str] = Field(  # noqa: UP045
        default=None, description="Why locks are acquired; shown to waiters."
    )
    gcs: dagster.ResourceDependency[Optional[object]] = Field(  # noqa: UP045
        default=None, description="A resource whose get_client() returns a Cloud Storage client; only for gs: stores."
    )

    _kept: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, **given: Any) -> None:
        _check_arguments(type(self), given)
        if isinstance(given.get("store"), str):
            given["store"] = LockStore(url=given["store"])
        for name in ("ttl", "timeout"):
            # converted to text: the config field has one type, for seconds, timedelta and text
            if given.get(name) is not None and not isinstance(given[name], str):
                given[name] = f"{seconds(given[name], name):g}"
            if isinstance(given.get(name), str) and not isinstance(given[name], dagster.EnvVar):
                seconds(given[name], name)
        gcs = given.get("gcs")
        if gcs is not None and not hasattr(gcs, "get_client") and not isinstance(gcs, compat.ConfiguredLater):
            raise TypeError(f"gcs= needs a method get_client(), as GCSResource has; {type(gcs).__name__} has none")
        super().__init__(**given)

    @classmethod
    def configure_at_launch(cls, **_given: Any) -> NoReturn:
        """Raise TypeError: which lock a step acquires must not depend on the input of a launchpad."""
        raise TypeError(
            "LockResource cannot be configured at launch, or two runs could take two locks: "
            "use LockResource(store=EnvVar('LOCKS')) for a value from the environment"
        )

    @property
    def _is_cm_resource(self) -> bool:
        # Dagster assumes that a resource with a nested resource has to be closed, and then rejects it in
        # `build_op_context` outside of a `with`. Nothing is open here, except maybe in the nested gcs resource.
        return self.gcs is not None

    def hold(
        self,
        context: Any,
        key: str,
        *,
        ttl: "Duration | None" = None,
        timeout: "Duration | None" = None,
        purpose: str | None = None,
        expected: "Duration | None" = None,
        on_unclean: OnUnclean = "warn",
        mode: str | None = None,
        permits: int | None = None,
    ) -> "AbstractContextManager[Lease]":
        """Hold a lock for a `with` block, whose value is the lease; in an op, an asset, a sensor or a schedule.

        In a step the block is interrupted when the lease is lost, and the step fails. The return value of the step is
        written after the block: use `@locked` if the lock must cover the write.
        """
        from dagster_lockstead import section

        refuse_template(key, "write an f-string")
        spec = LockSpec(
            key=key,
            ttl=ttl,
            timeout=timeout,
            purpose=purpose,
            expected=expected,
            on_unclean=on_unclean,
            mode=mode,
            permits=permits,
            is_named=True,
        )
        return section.held(context, self, spec)

    def lock(self, key: str, **settings: Any) -> "Lock":
        """Return a lock of this store; sends no request.

        Settings are those of `lockstead.Lock`, and override those of the resource.
        """
        return self._named(lockstead.Lock, key, settings)

    def alock(self, key: str, **settings: Any) -> "AsyncLock":
        """Return an async lock of this store."""
        return self._named(lockstead.AsyncLock, key, settings)

    def _named(self, kind: Callable[..., L], key: str, settings: dict[str, Any]) -> L:
        install_once()
        said = {"ttl": self.ttl, "purpose": self.purpose}
        given = {name: value for name, value in {**said, **settings}.items() if value is not None}
        location = self.store.location()
        made = kind(urls.lock_url(location, key), client=self._client(location), **given)
        self._kept["lock"] = made  # the store stays open while a lock of it is referenced
        return made

    @bears_interrupts
    def inspect(self, key: str) -> "LockInfo | None":
        """Return the holder of a lock, since when, why and until when; None if the lock is free."""
        return self.lock(key).inspect()

    @bears_interrupts
    def list(self) -> "Sequence[LockInfo]":
        """Return every lock that is held, by name."""
        with self.opened() as client:
            return client.list()

    @contextmanager
    @bears_interrupts
    def try_many(self, keys: Iterable[str], *, context: Any = None, **settings: Any) -> "Iterator[lockstead.Batch]":
        """Acquire the locks that are free now, without waiting; release those still held at the end of the block.

        The block's value is the batch: its leases, and the keys that other holders have. In a step a loss is detected
        at the end of the block, or by `lease.check()`, and fails the step; nothing is interrupted.
        """
        from dagster_lockstead import errors, section

        said = {"ttl": self.ttl, "purpose": self.purpose, "owner": section.owner_of(context)}
        given = {name: value for name, value in {**said, **settings}.items() if value is not None}
        try:
            with self.opened() as client, client.try_many(keys, **given) as batch:
                yield batch
        except lockstead.LeaseLost as error:
            if compat.step_of(context) is None:
                raise
            # not retried: a retry would continue without the lock
            raise errors.lost(error) from error

    @contextmanager
    def opened(self) -> "Iterator[Client]":
        """Open the store for a block, and yield the client, for operations that are not on a single lock."""
        location = self.store.location()
        with lockstead.connect(location, client=self._client(location)) as client:
            yield client

    def _client(self, location: str) -> object | None:
        """Return the Cloud Storage client of the gcs resource, made once; None without that resource."""
        if self.gcs is None:
            return None
        if not location.startswith("gs:"):
            raise ValueError(f"gcs= is for a store at gs:, not at {location.partition(':')[0]}:")
        if "gcs" not in self._kept:
            self._kept["gcs"] = self.gcs.get_client()
        made: object = self._kept["gcs"]
        return made
