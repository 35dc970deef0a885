"""The settings of a lock and the relations between them, each with its own message.

Knows no store and no clock; reads no environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypedDict

from lockstead.reading import clean
from lockstead.renewal import MAX_FAILURES, default_renew_every, renews_late, time_for_failures
from lockstead.values import EXCLUSIVE, SHARED, Duration, seconds

TTL_MIN: Final = 1.0
LOCK_DELAY_MAX: Final = 60.0
MARGINS_PER_TTL: Final = 6
"""`abort_margin` is the ttl divided by this, if it is not set."""


class Given(TypedDict, total=False):
    """The settings of a lock as a caller gives them, each as in `Settings.make`."""

    ttl: Duration
    renew_every: Duration | None
    max_failures: int | str
    request_timeout: Duration | None
    abort_margin: Duration | None
    drift: float | str
    backoff_min: Duration
    backoff_max: Duration
    lock_delay: Duration
    drain: Duration | None
    owner: str | None
    purpose: str | None
    expected: Duration | None
    alert_after: Duration | None
    auto_unlock_after: Duration | None
    labels: Mapping[str, str] | str | None
    backtrace: bool | str
    foreign_ttl: Duration | None
    mode: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one lock, complete and checked. All durations are seconds; build them with `make`.

    ttl: how long a lease lives without renewal. renew_every: counted from the send of the last success. max_failures:
    rounds of renewal without success until the loss is reported. request_timeout: of one request. abort_margin: time
    left until the deadline when the loss is reported at the latest. drift: the greatest tolerated difference in clock
    rate. drain: maximum wait for members at release; None: derived from ttl and store. mode: "exclusive", or "shared"
    for a reader, which holds the lock together with other readers.
    """

    ttl: float = 300.0
    renew_every: float = default_renew_every(300.0)
    max_failures: int = MAX_FAILURES
    request_timeout: float = 30.0
    abort_margin: float = 50.0
    drift: float = 0.01
    backoff_min: float = 0.1
    backoff_max: float = 5.0
    lock_delay: float = 0.0
    drain: float | None = None
    owner: str | None = None
    purpose: str | None = None
    expected: float | None = None
    alert_after: float | None = None
    auto_unlock_after: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    backtrace: bool = False
    foreign_ttl: float | None = None
    mode: str = EXCLUSIVE

    @classmethod
    def make(
        cls,
        *,
        ttl: Duration = 300.0,
        renew_every: Duration | None = None,
        max_failures: int | str = MAX_FAILURES,
        request_timeout: Duration | None = None,
        abort_margin: Duration | None = None,
        drift: float | str = 0.01,
        backoff_min: Duration = 0.1,
        backoff_max: Duration = 5.0,
        lock_delay: Duration = 0.0,
        drain: Duration | None = None,
        owner: str | None = None,
        purpose: str | None = None,
        expected: Duration | None = None,
        alert_after: Duration | None = None,
        auto_unlock_after: Duration | None = None,
        labels: Mapping[str, str] | str | None = None,
        backtrace: bool | str = False,
        foreign_ttl: Duration | None = None,
        mode: str = EXCLUSIVE,
    ) -> Self:
        """Derive missing settings from the ttl and check every relation; ValueError or TypeError with one line."""
        lease_ttl = seconds(ttl, "ttl")
        made = cls(
            ttl=lease_ttl,
            renew_every=default_renew_every(lease_ttl) if renew_every is None else seconds(renew_every, "renew_every"),
            max_failures=_whole(max_failures, "max_failures"),
            request_timeout=min(lease_ttl / 10, 30.0)
            if request_timeout is None
            else seconds(request_timeout, "request_timeout"),
            abort_margin=lease_ttl / MARGINS_PER_TTL if abort_margin is None else seconds(abort_margin, "abort_margin"),
            drift=_number(drift, "drift"),
            backoff_min=seconds(backoff_min, "backoff_min"),
            backoff_max=seconds(backoff_max, "backoff_max"),
            lock_delay=seconds(lock_delay, "lock_delay"),
            drain=_optional(drain, "drain"),
            owner=_text(owner, "owner"),
            purpose=_text(purpose, "purpose"),
            expected=_optional(expected, "expected"),
            alert_after=_optional(alert_after, "alert_after"),
            auto_unlock_after=_optional(auto_unlock_after, "auto_unlock_after"),
            labels=_labels(labels),
            backtrace=_truth(backtrace, "backtrace"),
            foreign_ttl=_optional(foreign_ttl, "foreign_ttl"),
            mode=_mode(mode),
        )
        made.check()
        return made

    def check(self) -> None:
        """Raise ValueError for the first relation that does not hold."""
        if self.ttl < TTL_MIN:
            raise ValueError(f"ttl is {self.ttl:g} s; it must be at least {TTL_MIN:g} s")
        if self.max_failures < 1:
            raise ValueError(f"max_failures is {self.max_failures}; it must be at least 1")
        if not 0 <= self.drift < 0.5:
            raise ValueError(f"drift is {self.drift:g}; it must be at least 0 and below 0.5")
        if self.renew_every <= 0:
            raise ValueError("renew_every must be above 0")
        needed = time_for_failures(self.renew_every, self.max_failures) + self.abort_margin
        usable = self.ttl * (1 - self.drift)
        # with a tolerance, so that the defaults do not fail by rounding
        if needed > usable * (1 + 1e-9):
            raise ValueError(
                f"ttl is {self.ttl:g} s, too short: (1 + max_failures) * renew_every + abort_margin is {needed:g} s, "
                f"above ttl * (1 - drift) = {usable:g} s; renew more often, tolerate fewer failures, or use a longer "
                "ttl or a smaller abort_margin"
            )
        if not 0 < self.request_timeout < self.renew_every:
            raise ValueError(
                f"request_timeout is {self.request_timeout:g} s; it must be above 0 and below renew_every "
                f"({self.renew_every:g} s)"
            )
        if not 0 < self.backoff_min <= self.backoff_max:
            raise ValueError(
                f"backoff_min is {self.backoff_min:g} s and backoff_max {self.backoff_max:g} s; needed is "
                "0 < backoff_min <= backoff_max"
            )
        if self.lock_delay > LOCK_DELAY_MAX:
            raise ValueError(f"lock_delay is {self.lock_delay:g} s; it may be at most {LOCK_DELAY_MAX:g} s")
        if self.foreign_ttl is not None and self.foreign_ttl < TTL_MIN:
            raise ValueError(f"foreign_ttl is {self.foreign_ttl:g} s; it must be at least {TTL_MIN:g} s")
        overdue_after, unlock_after = self.overdue_after, self.auto_unlock_after
        if overdue_after is not None and unlock_after is not None and unlock_after < overdue_after:
            raise ValueError(
                f"auto_unlock_after is {unlock_after:g} s, before the lock becomes overdue ({overdue_after:g} s, by "
                "alert_after or else expected); nothing is unlocked without an alert"
            )

    @property
    def overdue_after(self) -> float | None:
        """How long the work may take until it is overdue; counted from the acquisition, and from each progress."""
        return self.expected if self.alert_after is None else self.alert_after

    @property
    def renews_late(self) -> bool:
        """Whether renewals are rarer than by default, which causes a warning."""
        return renews_late(self.renew_every, self.ttl)

    def in_mode(self, mode: str | None) -> Self:
        """Return the settings for one acquisition in a mode; None: as they are."""
        return self if mode is None or mode == self.mode else replace(self, mode=_mode(mode))

    def for_ttl(self, ttl: float) -> Self:
        """Return the settings scaled to another ttl, that of an attached lease."""
        if ttl == self.ttl:
            return self
        scale = ttl / self.ttl
        return replace(
            self,
            ttl=ttl,
            renew_every=self.renew_every * scale,
            request_timeout=min(self.request_timeout * scale, 30.0),
            abort_margin=self.abort_margin * scale,
        )

    def drain_bound(self, clock_skew_max: float, *, observing: bool = False) -> float:
        """Return the maximum wait for members at release, within which a dead member's registration expires."""
        if self.drain is not None:
            return self.drain
        bound = self.ttl * (1 + self.drift) + clock_skew_max + 2 * self.request_timeout
        return 2 * bound if observing else bound


SETTING_NAMES: Final = frozenset(Settings.__dataclass_fields__)
"""Names that are allowed after `?` in a URL and as keyword arguments."""


def _optional(value: Duration | None, what: str) -> float | None:
    return None if value is None else seconds(value, what)


def _number(value: float | str, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, not {value!r}") from None


def _whole(value: int | str, what: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (isinstance(value, float) and value != number):
        raise ValueError(f"{what} must be a whole number, not {value!r}")
    return number


_TRUTH: Final = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


def _truth(value: bool | str, what: str) -> bool:
    said = value if isinstance(value, bool) else _TRUTH.get(str(value).lower())
    if said is None:
        raise ValueError(f"{what} must be true or false, not {value!r}")
    return said


def _labels(value: Mapping[str, str] | str | None) -> Mapping[str, str]:
    """Parse labels, in a URL a JSON object. Their text is cleaned, as it is for display."""
    said: object = value or {}
    if isinstance(said, str):
        import json

        try:
            said = json.loads(said)
        except ValueError:
            raise ValueError(f"labels must be a JSON object, not {value!r}") from None
    if not isinstance(said, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in said.items()):
        raise TypeError("labels must map text to text")
    return {clean(name): clean(text) for name, text in said.items()}


def _mode(value: str) -> str:
    if value not in (EXCLUSIVE, SHARED):
        raise ValueError(f"mode must be {EXCLUSIVE!r} or {SHARED!r}, not {value!r}")
    return value


def _text(value: str | None, what: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {type(value).__name__}")
    if not value.strip() or not all(c.isprintable() for c in value):
        raise ValueError(f"{what} must be printable text, not {value!r}")
    return value
