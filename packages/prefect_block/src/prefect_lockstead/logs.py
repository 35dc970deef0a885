"""The logger of a run."""

from __future__ import annotations

import logging
from typing import Any


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Return the logger of the run that this context is in, else `prefect_lockstead`."""
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        found: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()
    except MissingContextError:
        return logging.getLogger("prefect_lockstead")
    return found
