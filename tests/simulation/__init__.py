"""Simulation of the lock protocol in virtual time: several processes, a store and a faulty network, from one seed.

It runs the engine's real scripts and tables; only clocks, network, store and random numbers are simulated. One seed
reproduces a run: `python -m tests.simulation --seed 7` prints its history.
"""

from tests.simulation.plan import Plan, Scenario, plan_of, scenario_of
from tests.simulation.run import Run, play

__all__ = ["Plan", "Run", "Scenario", "plan_of", "play", "scenario_of"]
