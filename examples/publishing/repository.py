"""The settings of one repository."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from examples.publishing.layout import Layout
from examples.publishing.packages import Format
from examples.publishing.signing import Signer


@dataclass(frozen=True, slots=True)
class Repository:
    """Where and how to publish.

    keep: number of versions before the current one that stay readable (at least 1). workers: number of concurrent
    copies. overwrite: replace a package that has the same name and version but other content.
    """

    format: Format
    layout: Layout
    signer: Signer
    keep: int = 5
    workers: int = 8
    overwrite: bool = False
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        if self.keep < 1 or self.workers < 1:
            raise ValueError("keep and workers must be at least 1")
