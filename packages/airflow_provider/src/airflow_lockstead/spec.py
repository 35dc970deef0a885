"""`LockSpec`, a lock's parameters in a DAG file, with their checks; and `Section`, what a member knows of its lock.

Must not know Airflow or open anything: both are made while a DAG file is parsed. The results of templates and the
fields of a connection are known only when a task runs; everything else is checked here, with one clear line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lockstead import Lock, Settings, urls
from lockstead.values import checked_key
from lockstead.wrapping.spec import LockSpecBase, check_choice, check_text

DEFAULT_CONN_ID: Final = "lockstead_default"

NAMES: Final = {"lock": "lock", "key": "key", "lockstead_conn_id": "conn_id", "purpose": "purpose", "mode": "mode"}
"""The parameters that may be templates: the name that DAG files use, and the field of `LockSpec`."""

WHICH: Final = ("lock", "key", "lockstead_conn_id")
"""Those parameters that name the lock, for tasks that only read it."""

OnStaleLease = Literal["fail", "reacquire"]


_INSERTED: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


def has_password(url: str) -> bool:
    """Return whether a URL, or the template of one, contains a password."""
    return urls.has_password(_INSERTED.sub("x", url))


def is_template(text: str) -> bool:
    """Return whether a text is a Jinja template."""
    return "{{" in text or "{%" in text or "{#" in text


@dataclass(frozen=True, slots=True)
class LockSpec(LockSpecBase):
    """The parameters of one lock in a DAG. Invalid ones raise ValueError or TypeError, with one line.

    Durations become seconds. lock: the lock's URL; or key with conn_id, the connection that names its store; lock, key,
    conn_id, purpose and mode may be templates. ttl None: the URL's value, or 300 s. timeout None: wait forever. keeper:
    whether a deferred task renews between the tasks. on_stale_lease: what a member does that starts after its lease is
    gone. on_unclean: what acquire does if the previous holder did not end cleanly.
    """

    lock: str | None = None
    key: str | None = None
    conn_id: str | None = None
    keeper: bool = True
    on_stale_lease: OnStaleLease = "fail"

    def __post_init__(self) -> None:
        """Check everything that is known when the file is parsed, and convert durations to seconds."""
        _check_name(self)
        self.complete(is_mode_final=not is_template(self.mode or ""))
        check_choice("on_stale_lease", self.on_stale_lease, ("fail", "reacquire"))
        if not isinstance(self.keeper, bool):
            raise TypeError(f"keeper must be True or False, not {self.keeper!r}")
        settings = _checked_settings(self)
        object.__setattr__(self, "labels", settings.labels)

    @property
    def believed_ttl(self) -> float:
        """Return the ttl in seconds, as far as it is known when the file is parsed: a templated URL may change it."""
        return _checked_settings(self).ttl

    @property
    def templates(self) -> dict[str, str]:
        """Return the parameters that are templates, by the names of `NAMES`."""
        texts = {name: getattr(self, own) for name, own in NAMES.items()}
        return {name: text for name, text in texts.items() if text is not None and is_template(text)}

    def named(self, said: Mapping[str, Any]) -> LockSpec:
        """Return a copy with rendered texts, by the names of `NAMES`; ValueError for one that became empty."""
        for name, text in said.items():
            before = getattr(self, NAMES[name])
            if before is not None and not (isinstance(text, str) and text.strip()):
                raise ValueError(f"{name}={before!r} renders to {text!r}: it names nothing")
        return replace(self, **{NAMES[name]: text for name, text in said.items()})


@dataclass(frozen=True, slots=True)
class Section:
    """What a member knows of its lock. The member's class is a closure over it, so that it is not serialized.

    All ids are full ids. upstream: the direct upstream members in the group, without acquire and release. mapped: the
    group is inside a mapped group, so that each map index has its own acquire and lease; otherwise there is one
    acquire, with map index -1, for all members.

    single: the task has a lock of its own, and acquires it itself. Then all ids are empty: a decorator does not know
    the id that its task will have.
    """

    spec: LockSpec
    group_id: str = ""
    acquire_id: str = ""
    release_id: str = ""
    upstream: tuple[str, ...] = ()
    single: bool = False
    mapped: bool = False


def check_keeper(spec: LockSpec, at_least: float) -> None:
    """Raise ValueError if the ttl is less than `at_least` seconds: it must outlast the restart of a dead triggerer."""
    if spec.keeper and spec.believed_ttl < at_least:
        raise ValueError(
            f"ttl is {spec.believed_ttl:g} s; with a keeper it must be at least {at_least:g} s, because the triggers "
            "of a triggerer that dies run again only after about 30 s; take a longer ttl, or keeper=False ([lockstead] "
            "keeper_ttl_min in Airflow's settings)"
        )


def check_templates(spec: LockSpec, environment: Callable[[], Any]) -> None:
    """Raise ValueError, with one line, for a template that Jinja cannot parse.

    environment: returns the DAG's own Jinja environment, which may have more tags; called only if there is a template.
    """
    templates = spec.templates
    if not templates:
        return
    from jinja2 import TemplateSyntaxError

    jinja = environment()
    for name, text in templates.items():
        try:
            jinja.parse(text)
        except TemplateSyntaxError as error:
            raise ValueError(f"{name}={text!r} is not a valid template: {error.message}") from None


def _check_name(spec: LockSpec) -> None:
    if isinstance(spec.lock, str) and has_password(spec.lock):
        # checked first, since later messages show the URL
        raise ValueError(
            "lock= has a password in it, which would be stored with the DAG and shown in Airflow: put the store into a "
            "connection of the type lockstead (key=, lockstead_conn_id=), or let the workers' environment provide the "
            "credentials"
        )
    if spec.lock is not None and (spec.key is not None or spec.conn_id is not None):
        raise ValueError("name the lock once: either lock= (its URL), or key= with lockstead_conn_id=, not both")
    if spec.lock is None and spec.key is None:
        raise ValueError(
            "name the lock: give lock= (its URL, as in 'gs://bucket/locks/apt'), or key= with lockstead_conn_id="
        )
    for name, given in (("lock", spec.lock), ("key", spec.key), ("lockstead_conn_id", spec.conn_id)):
        check_text(name, given)
    if spec.key is not None:
        if spec.conn_id is None:
            object.__setattr__(spec, "conn_id", DEFAULT_CONN_ID)
        if not is_template(spec.key):
            checked_key(spec.key)


def _checked_settings(spec: LockSpec) -> Settings:
    """Return the settings of the URL and the spec, checked together. Opens nothing, and imports no client library."""
    settings = spec.settings
    for name in ("purpose", "mode"):
        if is_template(settings.get(name) or ""):
            del settings[name]
    if spec.lock is None or is_template(spec.lock):
        return Settings.make(**settings)
    checked = spec.of_permits(Lock(spec.lock, **settings)).settings
    if not urls.spans_processes(spec.lock):
        raise ValueError(
            f"a {spec.lock.partition(':')[0]}: lock lives in one process and cannot be handed over: every task is a "
            "process of its own; take sqlite: on one machine, or another store"
        )
    return checked
