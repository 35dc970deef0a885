"""Fuzz the readers for as long as told: `make fuzz TARGET=record SECONDS=3600`. The first fault ends it."""

from __future__ import annotations

import os
import sys
import time

from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import TARGETS, Fields, Target, maps, texts


def fuzzed(target: Target) -> int:
    """Try a target with some hundred inputs; give how many."""
    tried = 0

    @given(text=texts, fields=maps)
    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def any_input(text: str, fields: Fields) -> None:
        nonlocal tried
        tried += 1
        target(text, fields)

    any_input()
    return tried


def main() -> None:
    """Return each target its share of the time, in turn."""
    chosen = os.environ.get("TARGET") or ",".join(TARGETS)
    unknown = [name for name in chosen.split(",") if name not in TARGETS]
    if unknown:
        sys.exit(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    ends_at = time.monotonic() + float(os.environ.get("SECONDS") or 60)
    tried = dict.fromkeys(chosen.split(","), 0)
    while time.monotonic() < ends_at:
        for name in tried:
            tried[name] += fuzzed(TARGETS[name])
    for name, count in tried.items():
        print(f"{name}: {count} inputs, no fault")


if __name__ == "__main__":
    main()
