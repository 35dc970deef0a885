"""Whether a lock store is usable by publishers in several processes and environments; checked before anything starts.

The store's traits say whether it has fencing tokens. A lock that is held here and inspected from there shows whether
the client library is installed there, and whether both use the same store.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lockstead
from examples.publishing.demo.environments import ROOT
from lockstead import urls
from lockstead.protocol.commands import TokenSource
from lockstead.stores.url import opener, parse_store, printable

ANSWERS_WITHIN = 60.0
SEEN, NOT_SEEN = 0, 3
LOOK = f"""
import sys
try:
    import lockstead
    held = lockstead.Lock(sys.stdin.read()).inspect()
except Exception as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}".splitlines()[0])
sys.exit({SEEN} if held else {NOT_SEEN})
"""
"""Prints the holder of a lock; the URL, which may contain a password, is read from standard input."""


class Unfit(Exception):  # noqa: N818 # says what it is
    """These locks cannot be used here; the message is one line that says why."""


def check_fences(lock_url: str) -> None:
    """Raise Unfit for a URL that is not valid, and for a store without fencing tokens. Sends no request."""
    try:
        urls.check_store(lock_url)
        traits = opener(parse_store(lock_url).scheme).traits
    except (ValueError, lockstead.LocksteadError) as error:
        raise Unfit(f"LOCK={_shown(lock_url)}: {error}") from None
    if traits.tokens is TokenSource.NONE:
        raise Unfit(
            f"LOCK={_shown(lock_url)}: {traits.scheme} gives no fencing tokens, so a repository could not refuse a"
            " publisher that was paused; take one that does, such as etcd:, zk:, postgresql:, redis:, gs: or sqlite:"
        )


def check_shared(lock_url: str, pythons: Iterable[Path]) -> None:
    """Hold a lock here and inspect it from other environments; Unfit if one of them fails, or does not see it."""
    url = urls.lock_url(lock_url, f"demo-{uuid.uuid4().hex[:8]}")
    try:
        with (
            lockstead.Lock(url, ttl=2 * ANSWERS_WITHIN, purpose="see whether others see it").hold(timeout=0),
            ThreadPoolExecutor() as pool,
        ):
            for why in pool.map(lambda python: _unseen(url, python), dict.fromkeys(pythons)):
                if why:
                    raise Unfit(f"LOCK={_shown(lock_url)}: {why}")
    except (lockstead.LocksteadError, ValueError) as error:
        raise Unfit(f"LOCK={_shown(lock_url)}: {error}") from None


def _unseen(url: str, python: Path) -> str:
    """Return why a lock that is held is not seen from an environment; "" if it is seen."""
    where = python.parents[1].relative_to(ROOT) if python.is_relative_to(ROOT) else python
    try:
        looked = subprocess.run(
            [str(python), "-c", LOOK],
            input=url,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWERS_WITHIN,
        )
    except subprocess.TimeoutExpired:
        return f"asked from {where}, it does not answer within {ANSWERS_WITHIN:.0f} s"
    if looked.returncode == NOT_SEEN:
        guarantee = opener(parse_store(url).scheme).traits.guarantee
        return f"what one process holds there is not seen by another, of {where} ({guarantee})"
    return "" if looked.returncode == SEEN else f"asked from {where}: {looked.stderr.strip()[-500:]}"


def _shown(lock_url: str) -> str:
    """Return the URL without what may be a secret."""
    try:
        return printable(lock_url)
    except (ValueError, lockstead.LocksteadError):
        return lock_url.partition(":")[0]
