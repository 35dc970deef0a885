"""`LockSpec`: the parameters of a lock of an op or asset, with their checks.

Must not open anything: it is made at import time, where an op or asset is declared. A computed key is known only when
the step runs; everything else is checked here, with one clear line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dagster_lockstead.frames import bears_interrupts
from lockstead import LocksteadError, Settings, templates
from lockstead.values import checked_key
from lockstead.wrapping.spec import LockSpecBase

NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class LockSpec(LockSpecBase):
    """The parameters of one lock of an op or asset. Durations become seconds. ValueError or TypeError with one line.

    key: the lock's name in its store, or a callable that returns it for the context. resource: the name of the
    `LockResource` in the definitions. ttl, timeout, purpose: None for the resource's value. on_unclean: what to do if
    the previous holder did not end cleanly. key, purpose and mode may be templates, as in "apt-{dist}"; is_named: they
    are final, and braces have no meaning.
    """

    key: str | Callable[[Any], str]
    resource: str = "lock"
    is_named: bool = False

    def __post_init__(self) -> None:
        """Check everything that is known at import time, and convert durations to seconds."""
        if not callable(self.key):
            if not isinstance(self.key, str):
                raise TypeError(f"the key must be text, or a callable of the context, not {type(self.key).__name__}")
            _check_is_no_url(self.key)
            checked_key(self.key if self.is_named else templates.sample("key", self.key))
        else:
            _check_takes_context(self.key)
        if not isinstance(self.resource, str) or not self.resource.isidentifier():
            raise ValueError(f"resource must be the name of a resource, as in resource='lock', not {self.resource!r}")
        templated = self._templates()
        self.complete(is_mode_final="mode" not in templated)
        settings = self.settings
        if not self.is_named and isinstance(self.purpose, str):
            settings["purpose"] = templates.sample("purpose", self.purpose)
        if "mode" in templated:
            templates.sample("mode", str(settings.pop("mode")))
        Settings.make(**settings)

    @property
    def is_final(self) -> bool:
        """Return whether key, purpose and mode are final: none is a template, and the key is not a callable."""
        return self.is_named or not (callable(self.key) or self._templates())

    @bears_interrupts
    def named(self, context: Any, values: Mapping[str, Any] = NOTHING) -> LockSpec:
        """Return a copy with the final key, purpose and mode for a context.

        values: the values for templates. Raises ValueError or TypeError, with one line, if there is no valid key.
        """
        if self.is_named:
            return self
        said = {name: templates.rendered(name, text, values) for name, text in self._templates().items()}
        key = self._called(context) if callable(self.key) else said.get("key", self.key)
        return replace(
            self,
            key=key,
            purpose=said.get("purpose", self.purpose),
            mode=said.get("mode", self.mode),
            is_named=True,
        )

    def _called(self, context: Any) -> str:
        called = getattr(self.key, "__name__", type(self.key).__name__)
        try:
            key = self.key(context)  # type: ignore[operator] # called only if the key is a callable
        except Exception as error:
            said = " ".join(str(error).split())
            raise ValueError(f"the lock's key {called!r} raised {type(error).__name__}: {said}") from error
        if not isinstance(key, str):
            raise TypeError(f"the lock's key {called!r} returned {type(key).__name__}, not text")
        if not key.strip():
            raise ValueError(f"the lock's key {called!r} returned an empty text")
        return key

    def _templates(self) -> dict[str, str]:
        texts = {} if self.is_named else {"key": self.key, "purpose": self.purpose, "mode": self.mode}
        return {name: text for name, text in texts.items() if isinstance(text, str) and templates.is_template(text)}


def refuse_template(key: object, instead: str) -> None:
    """Raise ValueError, with one line, for a key with braces where no template is rendered. instead: what to write."""
    if isinstance(key, str) and templates.is_template(key):
        raise ValueError(f"the key {key!r} has braces, and is not a template here: {instead}")


def _check_is_no_url(key: str) -> None:
    """Raise ValueError for the URL of a lock, which other wrappers accept: as a key it would name a different lock."""
    if "://" not in key or "#" not in key:
        return
    from lockstead import Lock

    try:
        name = Lock(key.replace("{", "").replace("}", "")).key
    except (LocksteadError, ValueError):
        return  # not the URL of a lock
    raise ValueError(
        f"the key is a name such as {name!r}, not the URL of a lock: the resource names the store, as in "
        "LockResource(store='sqlite:///locks.db')"
    )


def _check_takes_context(key: Callable[..., object]) -> None:
    """Raise TypeError, with one line, for a callable that cannot be called with the context as its only argument."""
    try:
        signature = inspect.signature(key)
    except ValueError:  # a function written in C may have no signature
        return
    try:
        signature.bind(None)
    except TypeError:
        called = getattr(key, "__name__", type(key).__name__)
        raise TypeError(
            f"the lock's key {called!r} must take the context alone; a key comes first, as in @locked('apt')"
        ) from None
