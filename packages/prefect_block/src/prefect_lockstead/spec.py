"""The parameters of a lock, checked: `LockSpec`.

Made at import time, so it must not import Prefect, nor open anything. Templates and blocks are resolved when the flow
runs; everything else is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import unquote

from lockstead import Lock, Settings, templates, urls
from lockstead.wrapping.spec import LockSpecBase, check_choice, check_text

Waiting = Literal["in_process", "reschedule"]

TEXTS: Final = ("lock", "block", "purpose", "mode")
"""The parameters that may be templates."""


@dataclass(frozen=True, slots=True)
class LockSpec(LockSpecBase):
    """The parameters of one lock of a flow or task. Invalid ones raise ValueError or TypeError, with one line.

    Durations become seconds. lock: the lock's URL, without a password; or block: the name of a saved block. Both,
    purpose and mode may be templates of the parameters. ttl None: the URL's or the block's value, or 300 s. timeout
    None: wait forever. on_unclean: what to do if the previous lease did not end cleanly. waiting: in the process, or
    without a worker slot, which needs a deployment. labels are stored with the lock and shown to waiters. is_named: its
    templates are rendered.
    """

    lock: str | None = None
    block: str | None = None
    waiting: Waiting = "in_process"
    is_named: bool = False

    def __post_init__(self) -> None:
        """Check everything that is known at import time, and convert durations to seconds."""
        _check_name(self)
        self.complete(is_mode_final=self.is_named or not templates.is_template(self.mode or ""))
        check_choice("waiting", self.waiting, ("in_process", "reschedule"))
        object.__setattr__(self, "labels", dict(_checked_settings(self).labels))

    @property
    def names(self) -> frozenset[str]:
        """Return the parameters that occur in its templates."""
        if self.is_named:
            return frozenset()
        texts = {name: getattr(self, name) for name in TEXTS}
        return frozenset().union(*(templates.names_in(name, text) for name, text in texts.items() if text is not None))

    def check_parameters(self, function: str, known: frozenset[str], *, takes_any: bool) -> None:
        """Raise ValueError, with one line, for a template that names a parameter that the function does not have."""
        missing = sorted(self.names - known)
        if missing and not takes_any:
            has = f"has {', '.join(sorted(known))}" if known else "has none"
            raise ValueError(f"the lock's template names {missing[0]!r}, no parameter of {function!r}, which {has}")

    def named(self, parameters: Mapping[str, Any]) -> LockSpec:
        """Return a copy with rendered templates. ValueError, with one line, for a missing value or an invalid lock."""
        said: dict[str, Any] = {}
        if self.is_named:
            return self
        if self.lock is not None and templates.is_template(self.lock):
            said["lock"] = templates.rendered_url(self.lock, parameters)
        for name in ("block", "purpose", "mode"):
            text = getattr(self, name)
            if text is not None and templates.is_template(text):
                said[name] = templates.rendered(name, text, parameters)
        return replace(self, is_named=True, **said) if said else self


def place_of(url: str) -> tuple[str, str]:
    """Return (store, key) of a lock's URL, the same for every spelling, without settings."""
    before, has_fragment, after = url.partition("#")
    store, key = before.partition("?")[0], after.partition("?")[0]
    if not has_fragment:
        store, _, key = store.rpartition("/")
    return store.rstrip("/"), unquote(key)


def _check_name(spec: LockSpec) -> None:
    if isinstance(spec.lock, str) and urls.has_password(spec.lock):
        # checked first, since later messages show the URL
        raise ValueError(
            "the lock's URL has a password in it, which everybody can read who sees the flow or the parameters of its "
            "runs: name a block (block=), whose password Prefect encrypts, or keep the URL of the store in a variable "
            "or a file of the worker, as in 'env:LOCK_STORE#apt' or 'file:/run/secrets/lock-store#apt'"
        )
    if (spec.lock is None) == (spec.block is None):
        raise ValueError(
            "name the lock once: by its URL, as in @locked('gs://bucket/locks/apt'), or by block=, the name of a block"
        )
    for name in TEXTS:
        check_text(name, getattr(spec, name))


def _checked_settings(spec: LockSpec) -> Settings:
    """Return the settings of the URL and the spec, checked together. Opens nothing, and imports no client library."""
    settings, url = spec.settings, spec.lock
    if not spec.is_named:
        spec.names  # noqa: B018 - it raises for a template that cannot be read
        url = None if url is None else templates.sample_url(url)
        for name in ("purpose", "mode"):
            if templates.is_template(getattr(spec, name) or ""):
                del settings[name]
    return Settings.make(**settings) if url is None else spec.of_permits(Lock(url, **settings)).settings
