"""The blocks `LocksteadLock` and `LocksteadStore`, and loading them by name.

Prefect imports this module by itself to register the blocks. A field that is added later needs a default, or older
saved documents no longer load. The common fields are in `fields`, their meaning in `places`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from pydantic import Field, HttpUrl, ValidationError, field_validator

from lockstead import AsyncLock, Lock, connect, connect_async
from lockstead.telemetry import install_once
from prefect_lockstead import places
from prefect_lockstead.fields import Access
from prefect_lockstead.places import Place

if TYPE_CHECKING:
    from lockstead.aio_hold import AsyncHold
    from lockstead.hold import Hold
    from lockstead.values import Duration
    from lockstead.views import LockInfo

DOCUMENTATION: Final = HttpUrl("https://github.com/OWNER/lockstead/blob/main/docs/prefect.md")
LOGO: Final = HttpUrl("https://raw.githubusercontent.com/OWNER/lockstead/main/docs/pictures/prefect-logo.svg")

T = TypeVar("T", bound="LocksteadLock | LocksteadStore")
L = TypeVar("L", Lock, AsyncLock)


class LocksteadLock(Access, Block):
    """A saved lock: its URL, credentials, ttl, timeout and purpose.

    The block holds nothing itself; each `hold()` acquires a separate lease.
    """

    _block_type_name: ClassVar[str] = "Lockstead Lock"
    _block_type_slug: ClassVar[str] = "lockstead-lock"
    _documentation_url: ClassVar[HttpUrl] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl] = LOGO
    _description: ClassVar[str] = (
        "A distributed lock on the store of your choice: one flow run at a time, on any worker."
    )
    _code_example: ClassVar[str] = """
```python
from prefect import flow
from prefect_lockstead import LocksteadLock, locked

@flow
@locked(block="prod-apt")
def publish():
    ...

with LocksteadLock.load("prod-apt").hold() as lease:
    ...
```"""

    url: str = Field(
        title="Lock URL",
        description="Store and name of the lock: gs://bucket/locks/apt, redis://host:6379/0#apt, sqlite:///locks.db#apt.",
        min_length=1,
    )

    @field_validator("url")
    @classmethod
    def _names_a_lock(cls, said: str) -> str:
        places.check_lock(said)
        return said

    def lock(self, **settings: Any) -> Lock:
        """Return the lock. settings: those of `lockstead.Lock`, which override those of the block."""
        return _named(Lock, self.place, settings)

    def alock(self, **settings: Any) -> AsyncLock:
        """Return the async lock; as `lock`."""
        return _named(AsyncLock, self.place, settings)

    def hold(self, timeout: Duration | None = None, *, interrupt: bool = False, **settings: Any) -> Hold:
        """Hold the lock for a `with` block. timeout: overrides the block's. interrupt: end the body on a loss."""
        place = self.place
        return _named(Lock, place, settings).hold(place.timeout if timeout is None else timeout, interrupt=interrupt)

    def ahold(
        self,
        timeout: Duration | None = None,
        *,
        interrupt: bool = False,
        **settings: Any,
    ) -> AsyncHold:
        """Hold the lock for an `async with` block; as `hold`."""
        place = self.place
        return _named(AsyncLock, place, settings).hold(
            place.timeout if timeout is None else timeout, interrupt=interrupt
        )

    def inspect(self) -> LockInfo | None:
        """Return the holder of the lock, since when, why and until when; None if it is free."""
        return self.lock().inspect()

    async def ainspect(self) -> LockInfo | None:
        """Return the holder of the lock; as `inspect`."""
        return await self.alock().inspect()


class LocksteadStore(Access, Block):
    """A saved store of locks, whose keys the flow names. The block holds nothing itself."""

    _block_type_name: ClassVar[str] = "Lockstead Store"
    _block_type_slug: ClassVar[str] = "lockstead-store"
    _documentation_url: ClassVar[HttpUrl] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl] = LOGO
    _description: ClassVar[str] = "A store of many distributed locks, whose names the flow chooses."
    _code_example: ClassVar[str] = """
```python
from prefect_lockstead import LocksteadStore

store = LocksteadStore.load("prod")
with store.lock("apt").hold() as lease:
    ...
for holding in store.list():
    print(holding.key, holding.owner)
```"""

    url: str = Field(
        title="Store URL",
        description="Where the locks are: gs://bucket/locks, redis://host:6379/0, sqlite:///locks.db.",
        min_length=1,
    )

    @field_validator("url")
    @classmethod
    def _names_a_store(cls, said: str) -> str:
        places.check_store(said)
        return said

    def lock(self, key: str, **settings: Any) -> Lock:
        """Return a lock of this store. settings: those of `lockstead.Lock`, which override those of the block."""
        return _named(Lock, self.place.of_key(key), settings)

    def alock(self, key: str, **settings: Any) -> AsyncLock:
        """Return an async lock of this store; as `lock`."""
        return _named(AsyncLock, self.place.of_key(key), settings)

    def inspect(self, key: str) -> LockInfo | None:
        """Return the holder of one of the locks; None if it is free."""
        return self.lock(key).inspect()

    async def ainspect(self, key: str) -> LockInfo | None:
        """Return the holder of one of the locks; as `inspect`."""
        return await self.alock(key).inspect()

    def list(self) -> Sequence[LockInfo]:
        """Return every lock that is held, by name."""
        place = self.place
        with connect(place.url, client=place.client) as client:
            return client.list()

    async def alist(self) -> Sequence[LockInfo]:
        """Return every lock that is held, by name; as `list`."""
        place = self.place
        async with await connect_async(place.url, client=place.client) as client:
            return await client.list()


def _named(kind: type[L], place: Place, settings: dict[str, Any]) -> L:
    install_once()
    return kind(place.url, client=place.client, **{**place.settings, **settings})


# --- what a name means ------------------------------------------------------------------------------------------------


async def find_lock(name: str) -> Place:
    """Return the lock of a saved block: `prod-apt`, or `prod#apt` for a key of the store `prod`.

    ValueError, with one line, if there is no such block or it cannot be used here. Asks Prefect's API.
    """
    saved, is_store, key = name.partition("#")
    if is_store:
        return (await _load(LocksteadStore, saved)).place.of_key(key)
    return (await _load(LocksteadLock, saved)).place


async def find_store(name: str) -> Place:
    """Return the store of a saved block, read from Prefect's API; ValueError, with one line, if there is none."""
    return (await _load(LocksteadStore, name)).place


async def _load(kind: type[T], name: str) -> T:
    slug = kind._block_type_slug
    saved = name.removeprefix(f"{slug}/")
    async with get_client() as client:
        try:
            document = await client.read_block_document_by_name(saved, slug)
        except ObjectNotFound:
            others = sorted(str(one.name) for one in await client.read_block_documents_by_type(slug))
            there = f"there are {', '.join(map(repr, others))}" if others else "there are none yet"
            raise ValueError(f"there is no block {saved!r} of the type {slug}; {there}") from None
    try:
        block: T = kind._from_block_document(document)
    except ValidationError as error:
        raise ValueError(f"the block {slug}/{saved} cannot be used: {_first_line(error)}") from error
    return block


def _first_line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    said = str(first["msg"]).removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
