"""`make soak`: thousands of losses and Ctrl-Cs, and one line about what came of them. 1 if anything was torn."""

from __future__ import annotations

import argparse
import faulthandler
import platform
import sys
import time

from tests.soak.run import soak


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="make soak ARGS=", description=__doc__)
    parser.add_argument("--losses", type=int, default=10_000)
    parser.add_argument("--interrupts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    faulthandler.enable()
    print(f"Python {platform.python_version()}, seed {chosen.seed}", flush=True)
    began_at = time.monotonic()
    seen = soak(chosen.losses, chosen.interrupts, chosen.seed, lambda line: print(line, flush=True))
    print(f"{dict(seen)} in {time.monotonic() - began_at:.0f} s", flush=True)
    return 1 if seen["torn"] else 0


if __name__ == "__main__":
    sys.exit(main())
