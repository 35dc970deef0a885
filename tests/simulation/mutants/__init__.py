"""Engines and stores that are broken on purpose: each is caught by a test that names it, most by random search too.

`python -m tests.simulation.mutants` searches anew and writes what it found, and the table in the documentation.
"""

from tests.simulation.mutants import (
    deadlines,
    expiring,
    fencing,
    keeping,
    predecessors,
    pruning,
    scripts,
    shared,
    sharing,
    stores,
    turns,
    watching,
)
from tests.simulation.mutants.patching import MUTANTS, Mutant, broken

__all__ = [
    "MUTANTS",
    "Mutant",
    "broken",
    "deadlines",
    "expiring",
    "fencing",
    "keeping",
    "predecessors",
    "pruning",
    "scripts",
    "shared",
    "sharing",
    "stores",
    "turns",
    "watching",
]
