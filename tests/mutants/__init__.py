"""Mutants that a program makes: one small change at every branch, comparison and constant of the engine, one at a time.

`make mutants` runs them and says which no test kills; `survivors.toml` says of each of those why it may live.
"""
