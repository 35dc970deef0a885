"""Figures, never tests: `make bench` prints one table whose ratios were taken in one run on one machine."""
