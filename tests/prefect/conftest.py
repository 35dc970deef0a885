"""Which of these tests can be looked at: those in `real` import Prefect, which not every environment has."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("prefect") else ["real/*"]
