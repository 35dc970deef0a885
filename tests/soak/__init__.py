"""Losses and Ctrl-Cs without end: what they leave behind, counted."""
