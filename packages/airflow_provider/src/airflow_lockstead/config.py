"""The options of the section `[lockstead]` in Airflow's configuration, and their defaults.

Airflow is imported only to read a value: the descriptions are read while it is itself being imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

SECTION: Final = "lockstead"


@dataclass(frozen=True, slots=True)
class Option:
    """An option whose value is a number of seconds. about: its description for `airflow config list`."""

    name: str
    default: float
    about: str

    @property
    def value(self) -> float:
        """Return the value in seconds; AirflowConfigException, with section and option, if it is not a number."""
        from airflow_lockstead import compat

        found: float = compat.conf.getfloat(SECTION, self.name, fallback=self.default)
        return found


KEEPER_TTL_MIN: Final = Option(
    "keeper_ttl_min",
    90.0,
    "The least ttl, in seconds, that a lock with a keeper may have. It must be longer than it takes until the triggers "
    "of a triggerer that died run again: about 30 s with Airflow's own settings, plus the time until a new triggerer "
    "runs where there is only one.",
)
ABORT_TERMS: Final = Option(
    "abort_terms",
    3.0,
    "Seconds that the processes a body started have between SIGTERM and SIGKILL when its lease is lost.",
)
ABORT_GRACE: Final = Option(
    "abort_grace",
    20.0,
    "Seconds after which a body that was interrupted because its lease is lost, and did not end, ends with its "
    "process.",
)
OPTIONS: Final = (KEEPER_TTL_MIN, ABORT_TERMS, ABORT_GRACE)


def described() -> dict[str, Any]:
    """Return the section's description, for `provider_info`."""
    options = {
        one.name: {
            "description": one.about,
            "version_added": None,
            "type": "float",
            "example": None,
            "default": f"{one.default:g}",
        }
        for one in OPTIONS
    }
    return {SECTION: {"description": "Locks of lockstead.", "options": options}}
