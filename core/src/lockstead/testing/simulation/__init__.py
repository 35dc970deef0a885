"""The lock protocol in virtual time: several processes, a store and a network that does its worst, from one seed.

The very scripts and tables of the engine run here; only clocks, network, store and dice are ours. One seed replays
everything: `python -m lockstead.testing.simulation --seed 7` prints the event log.
"""

from lockstead.testing.simulation.plans import Plan, Scenario, plan_of, scenario_of
from lockstead.testing.simulation.scenario import Run, play

__all__ = ["Plan", "Run", "Scenario", "plan_of", "play", "scenario_of"]
