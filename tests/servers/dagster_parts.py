"""The processes of a real Dagster for tests, and its dagster.yaml.

Must not know jobs and runs: those are in `dagster`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.servers.base import Server

READY_WITHIN: Final = 300.0
"""Seconds until a start fails: the first process creates the databases, all import much; 5 s on an idle machine."""

INSTANCE: Final = """
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: COORDINATOR
run_launcher: {module: dagster._core.launcher, class: DefaultRunLauncher}
storage: {sqlite: {base_dir: HOME/storage}}
compute_logs: {module: dagster._core.storage.noop_compute_log_manager, class: NoOpComputeLogManager}
local_artifact_storage: {module: dagster._core.storage.root, class: LocalArtifactStorage, config: {base_dir: HOME}}
"""

AT_ONCE: Final = "{module: dagster._core.run_coordinator, class: DefaultRunCoordinator}"
"""Runs are launched when they are submitted."""

QUEUED: Final = (
    "{module: dagster._core.run_coordinator, class: QueuedRunCoordinator, config: {dequeue_interval_seconds: 1}}"
)
"""Runs are first put into Dagster's queue, to which its pools apply."""


class Part(Server):
    """One of Dagster's processes, with the children in its process group."""

    def __init__(self, directory: Path, words: Sequence[str], told: Mapping[str, str]) -> None:
        super().__init__(directory)
        self._words = [word.replace("PORT", str(self.port)) for word in words]
        self._told = told

    def start(self) -> Self:
        self.launch()
        self.until(self.is_ready, "it did not come up", READY_WITHIN)
        return self

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", *self._words]

    def environment(self) -> Mapping[str, str]:
        return self._told
