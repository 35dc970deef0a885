"""Findings on a store's clock and latency, computed from the replies and measurements. No I/O.

The condition by which a lock calibrates (`protocol.expiry`) is used here to check whether calibration would succeed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from lockstead.cli.doctor.prober import TimedAnswer
from lockstead.protocol import expiry
from lockstead.protocol.commands import StoreClock, Traits
from lockstead.stores.examination import Finding, Severity

SKEW_MAX: Final = 2.0
"""Seconds by which this machine's wall clock may differ without a note; no lock depends on it."""

SKEW_FAR: Final = 60.0
"""Seconds beyond which other programs, which use their own clocks, may consider a held lock expired."""

WALL_CLOCKS_SINCE: Final = 1e9
"""Seconds. A wall clock has been above this since 2001, and a boot clock never is."""

REQUESTS_IN_A_TTL: Final = 100
"""The ttl in slow requests: one may take a tenth of the ttl, and may be ten times slower than the slowest seen."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile `share` by nearest rank; values must not be empty."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


# --- time --------------------------------------------------------------------------------------------------------


def of_time(answers: Sequence[TimedAnswer], traits: Traits) -> Iterator[Finding]:
    """Yield the findings on the store's clock from the replies, according to its traits."""
    match traits.clock:
        case StoreClock.NONE:
            text = "answers carry no time: a dead holder's lock is taken over after it was watched for its whole ttl"
            yield Finding(Severity.NOTE, "clock", text)
        case StoreClock.SERVER_EXPIRES:
            yield Finding(Severity.OK, "clock", "the server itself drops what is not renewed")
        case StoreClock.ONE_CLOCK:
            yield _shared(answers)
            told = [one for one in answers if (one.seen.store_now or 0.0) > WALL_CLOCKS_SINCE]
            if told:
                yield _wall(told, 0.0, is_shared=True)
        case StoreClock.TWO_CLOCKS:
            yield from _dated(answers, traits)


def _shared(answers: Sequence[TimedAnswer]) -> Finding:
    timed = [(one.seen.updated_at, one.seen.store_now) for one in answers]
    if any(updated is None or now is None for updated, now in timed):
        text = "answers do not contain the store's time: a dead holder's lock is taken over only after a whole ttl"
        return Finding(Severity.WARNING, "clock", text, "see the findings on the clock above")
    if any(updated > now for updated, now in timed if updated is not None and now is not None):
        text = "a record changed later than the store's own now: its clock was set back. Until it has caught up, a dead"
        remedy = "let the time service slew the store's clock, never set it"
        return Finding(Severity.WARNING, "clock", f"{text} holder's lock is taken over only after a whole ttl", remedy)
    return Finding(Severity.OK, "clock", "the time of a change and the time of an answer are of one clock")


def _wall(timed: Sequence[TimedAnswer], step: float, *, is_shared: bool) -> Finding:
    """Return how far this machine's wall clock is from the store's. is_shared: leases depend on the store's clock."""
    skew, figures = _ahead(timed, step)
    if abs(skew) <= SKEW_MAX:
        return Finding(Severity.OK, "clock.wall", "this machine's wall clock agrees with the store's", figures=figures)
    text = f"this machine's wall clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the store's"
    if is_shared:
        # a wrong clock will be corrected some day
        text = f"{text}: one is wrong, and if the store's is set forward, a held lease can be taken over early"
        remedy = "find out which is wrong; slew the store's clock, or set it while no lock is held"
        return Finding(Severity.WARNING, "clock.wall", text, remedy, figures)
    remedy = "set the clock (NTP): locks do not depend on it, but displayed times and foreign programs do"
    severity = Severity.NOTE if abs(skew) <= SKEW_FAR else Severity.WARNING
    return Finding(severity, "clock.wall", text, remedy, figures)


def _dated(answers: Sequence[TimedAnswer], traits: Traits) -> Iterator[Finding]:
    # a read shows an old change; only the reply to our own change compares the two clocks
    written = [one for one in answers if one.command != "Read" and one.seen.updated_at is not None]
    dated = [one for one in answers if one.seen.store_now is not None]
    if not written:
        return
    if len(dated) < len(answers):
        text = f"{len(answers) - len(dated)} of {len(answers)} answers have no Date: a dead holder's lock is taken over"
        remedy = "look for a proxy that removes the Date header"
        yield Finding(Severity.WARNING, "clock.date", f"{text} only after it was watched for its whole ttl", remedy)
        if not dated:
            return
    else:
        yield Finding(Severity.OK, "clock.date", "every answer has a Date", figures=_steps(dated))
    yield _calibration(written, traits)
    yield _wall(dated, traits.clock_resolution, is_shared=False)


def _steps(dated: Sequence[TimedAnswer]) -> dict[str, float]:
    seen = sorted({one.seen.store_now for one in dated if one.seen.store_now is not None})
    steps = [later - earlier for earlier, later in pairwise(seen)]
    return {"date_step_s": min(steps)} if steps else {}


def _calibration(written: Sequence[TimedAnswer], traits: Traits) -> Finding:
    differences, held, wrong = [], 0, 0
    for one in written:
        if one.seen.updated_at is None or one.seen.store_now is None:
            continue
        differences.append(one.seen.store_now - one.seen.updated_at)
        clocks = (one.seen.updated_at, one.seen.store_now)
        held += expiry.calibrated(*clocks, one.sent_at, one.received_at, traits.clock_skew_max, traits.clock_resolution)
        # as if the reply had taken no time
        wrong += not expiry.calibrated(*clocks, 0.0, 0.0, traits.clock_skew_max, traits.clock_resolution)
    if not differences:
        return Finding(Severity.WARNING, "clock.calibration", "no answer to a change has a Date")
    least, most = min(differences), max(differences)
    figures = {"date_minus_updated_min_s": least, "date_minus_updated_max_s": most}
    figures["updated_step_s"] = _step_of([one.seen.updated_at for one in written if one.seen.updated_at is not None])
    text = f"Date is between {least:+.2f} s and {most:+.2f} s from the `updated` of the same answer"
    if held < len(differences):
        text = f"{text}; calibration holds for {held} of {len(differences)} answers"
    if 2 * held >= len(differences) and not wrong:
        # a single slow reply says nothing about the clocks; the next one calibrates again
        text = f"{text}; {traits.clock_skew_max:g} s are allowed for"
        return Finding(Severity.OK, "clock.calibration", text, figures=figures)
    remedy = "slow requests, or a wrong clock of the service (or of an emulator); locks stay safe"
    text = f"{text}: a dead holder's lock may take a whole ttl to take over"
    return Finding(Severity.WARNING, "clock.calibration", text, remedy, figures)


def _step_of(instants: Sequence[float]) -> float:
    """Return the clock's step: the largest power of ten, from 1 s to 1 µs, of which all instants are multiples."""
    for digits in range(6):
        if all(abs(at * 10**digits - round(at * 10**digits)) < 0.05 for at in instants):
            return float(10.0**-digits)
    return 1e-6


# --- pace --------------------------------------------------------------------------------------------------------


def of_pace(took: Mapping[str, Sequence[float]], traits: Traits, ttl: float | None) -> Iterator[Finding]:
    """Yield how long requests took (seconds, by command), and the recommended ttl."""
    for command, values in took.items():
        if not values:
            continue
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        name = command.lower()
        text = f"{command} takes {in_short(p50)} (p50), {in_short(p99)} (p99 of {len(values)})"
        figures = {f"{name}_p50_s": p50, f"{name}_p99_s": p99}
        yield Finding(Severity.OK, f"latency.{name}", text, figures=figures)
    every = [value for values in took.values() for value in values]
    if not every:
        return
    least = recommended_ttl(every, traits)
    figures = {"ttl_min_s": least}
    if ttl is not None and ttl < least:
        text = f"a ttl of {ttl:g} s is short for this store"
        yield Finding(Severity.WARNING, "ttl", text, f"take {least:g} s or more", figures)
    else:
        yield Finding(Severity.OK, "ttl", f"a ttl of {least:g} s or more is recommended", figures=figures)


def recommended_ttl(took: Sequence[float], traits: Traits) -> float:
    """Return the shortest recommended ttl, in seconds, for these request durations."""
    return max(traits.ttl_recommended, math.ceil(REQUESTS_IN_A_TTL * percentile(took, 0.99)))


def in_short(seconds: float) -> str:
    """Format a short duration to three significant digits: "12.3 ms", "1.2 s"."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _ahead(timed: Sequence[TimedAnswer], step: float) -> tuple[float, dict[str, float]]:
    """Return an estimate of how far this machine's wall clock is ahead of the store's, and its bounds."""
    ahead = [
        (one.wall_sent_at - one.seen.store_now - step, one.wall_received_at - one.seen.store_now)
        for one in timed
        if one.seen.store_now is not None
    ]
    least, most = max(low for low, _ in ahead), min(high for _, high in ahead)
    skew = min(max(0.0, least), most) if least <= most else (least + most) / 2
    return skew, {"wall_clock_ahead_min_s": least, "wall_clock_ahead_max_s": most}
