"""Decides that other people's locks, which these tests run, leave nothing behind that a later test is blamed for."""

from __future__ import annotations

from tests.servers.leftovers import _leftovers_are_collected

__all__ = ["_leftovers_are_collected"]
