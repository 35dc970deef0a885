"""Directed scenarios of the protocol, one for each rule and hazard, and the arithmetic of its margins."""
