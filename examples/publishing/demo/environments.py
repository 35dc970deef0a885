"""The environments in which orchestrators are installed, in build/NAME/VERSION of the checkout. Imports none of
them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Absent(Exception):  # noqa: N818 # says what it is
    """Something is not installed here; the message is one line that says what."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that `scripts/orchestrator NAME VERSION` creates."""

    name: str
    version: str

    @property
    def python(self) -> Path:
        """Return its interpreter; Absent if it was not created."""
        found = ROOT / "build" / self.name / self.version / "bin" / "python"
        if not found.exists():
            raise Absent(
                f"build/{self.name}/{self.version} is not made: `scripts/orchestrator {self.name} {self.version}`"
            )
        return found

    def installed(self, distribution: str) -> str:
        """Return the version that is installed there; Absent if it is not installed."""
        return installed(self.python, distribution)


def installed(python: Path, distribution: str) -> str:
    """Return the version of a distribution in an interpreter's environment; Absent if it is not installed."""
    found = sorted(python.parents[1].glob(f"lib/python3*/site-packages/{distribution}-[0-9]*.dist-info"))
    if not found:
        raise Absent(f"{distribution} is not installed for {python}")
    return found[0].name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
