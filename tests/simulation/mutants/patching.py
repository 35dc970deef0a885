"""What a mutant is: a fault with the accident it stands for, the patches that put it in, who must catch it.

Knows no fault. Patches are made and taken back around a test; the code on the disk stays whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.plan import Scenario

Patch = tuple[Any, str, Any]
Fixtures = Callable[[Path], AbstractContextManager[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Directed:
    """One test of the suite, and what it is called with. fixtures makes more of that, in an empty folder."""

    test: Callable[..., None]
    given: Mapping[str, Any] = field(default_factory=dict)
    fixtures: Fixtures | None = None

    def run(self, folder: Path) -> None:
        """Run it once. AssertionError if it fails."""
        if self.fixtures is None:
            self.test(**self.given)
            return
        with self.fixtures(folder) as more:
            self.test(**self.given, **more)

    @property
    def name(self) -> str:
        """The test's name, with the folder that it stands in."""
        return f"{self.test.__module__.removeprefix('tests.').replace('.', '/')}::{self.test.__name__}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. what: the fault in a few words; accident: what it comes to in the field, or who had it.

    scenario: the one to search; None for the default of each seed. Runs with readers take longer, so they are fewer.
    """

    name: str
    what: str
    accident: str
    directed: Directed
    patches: Callable[[], list[Patch]]
    is_store: bool = False
    scenario: Scenario | None = None

    @property
    def seeds(self) -> range:
        """The seeds to search."""
        return range(2000 if self.scenario is None else 300)


MUTANTS: dict[str, Mutant] = {}
"""All of them by name, in the order of the table. Filled when the modules of this package are imported."""


def mutant(
    what: str,
    accident: str,
    test: Callable[..., None],
    *,
    fixtures: Fixtures | None = None,
    is_store: bool = False,
    scenario: Scenario | None = None,
    **given: Any,
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Enter a fault under the name of the function that makes its patches."""

    def enter(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        directed = Directed(test, given, fixtures)
        name = patches.__name__
        MUTANTS[name] = Mutant(name, what, accident, directed, patches, is_store, scenario)
        return patches

    return enter


def everywhere(true: Any, replacement: Any) -> list[Patch]:
    """Replace a function in every module that has it by name."""
    name = true.__name__
    return [(module, name, replacement) for module in list(sys.modules.values()) if module.__dict__.get(name) is true]


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Put one fault in for a while."""
    patches = MUTANTS[name].patches()
    intact = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, true in reversed(intact):
            setattr(owner, attribute, true)
