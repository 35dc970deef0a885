"""How much memory this process has in use."""

from __future__ import annotations

import gc
import resource
from pathlib import Path


def resident_bytes() -> int:
    """Return the resident memory after a garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
