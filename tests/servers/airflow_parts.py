"""The processes of a real Airflow for tests: their commands, ports and settings.

Must not know DAGs, runs and tasks: those are in `airflow`. Nothing is mocked, only loopback is used, telemetry is off,
and everything that these processes start ends with the test, even if the test is killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.servers.base import Server, absent, free_port

ROOT = Path(__file__).parents[2]


class Version:
    """An installed Airflow: its virtual environment is build/airflow/NAME (`make airflow`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.environment = ROOT / "build" / "airflow" / name
        self.python = self.environment / "bin" / "python"
        if not self.python.exists():
            absent(f"there is no Airflow in build/airflow/{name} ('make airflow' installs it)")
        found = sorted(self.environment.glob("lib/python3*/site-packages/apache_airflow-*.dist-info"))
        self.full = found[0].name.removeprefix("apache_airflow-").removesuffix(".dist-info")
        self.major = int(self.full.split(".")[0])

    @property
    def has_task_sdk(self) -> bool:
        """Return whether tasks run without database access, under a supervisor that talks to an API server."""
        return self.major >= 3

    def command(self, *words: str) -> list[str]:
        """Return the command line of an `airflow` command."""
        return [str(self.python), "-m", "airflow", *words]


def settings(version: Version, home: Path, database: str, port: int, parallelism: int) -> dict[str, str]:
    """Return the settings for Airflow: all are environment variables, so that no airflow.cfg can differ from them."""
    told = {
        "core": {
            "executor": "LocalExecutor",
            "parallelism": str(parallelism),
            "max_active_tasks_per_dag": "64",
            "max_active_runs_per_dag": "64",
            "dags_folder": str(home / "dags"),
            "plugins_folder": str(home / "plugins"),
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            "fernet_key": "dGVzdHMgb25seSwgYW5kIG5vdGhpbmcgdG8gaGlkZSE=",
            "simple_auth_manager_all_admins": "True",
            "execution_api_server_url": f"http://127.0.0.1:{port}/execution/",
        },
        "database": {"sql_alchemy_conn": database, "load_default_connections": "False"},
        "logging": {"base_log_folder": str(home / "logs")},
        "api": {
            "base_url": f"http://127.0.0.1:{port}",
            "secret_key": "tests only",
            "workers": "1",
            "auth_backends": "airflow.api.auth.backend.default",
        },
        "api_auth": {"jwt_secret": "tests only, and long enough to be taken for a secret of sixty-four"},
        "webserver": {"secret_key": "tests only", "workers": "1", "config_file": str(home / "webserver_config.py")},
        "usage_data_collection": {"enabled": "False"},
        "scheduler": {
            "scheduler_idle_sleep_time": "0.2",
            "dag_dir_list_interval": "1",
            "min_file_process_interval": "60",
        },
        "dag_processor": {
            "refresh_interval": "1",
            "bundle_refresh_check_interval": "1",
            "min_file_process_interval": "60",
        },
    }
    if not version.has_task_sdk:
        del told["api"]["base_url"]
    return {
        f"AIRFLOW__{section}__{name}".upper(): value for section, names in told.items() for name, value in names.items()
    } | {
        "AIRFLOW_HOME": str(home),
        "SCARF_ANALYTICS": "false",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "*",
        # Airflow changes its process titles, which would overwrite the environment in which MARK is found
        "SPT_NOENV": "1",
        # use Airflow's byte code next to its sources: five processes must not compile it again elsewhere
        "PYTHONPYCACHEPREFIX": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Part(Server):
    """One of Airflow's processes, with the children that it starts in its process group."""

    def __init__(self, name: str, version: Version, directory: Path, told: Mapping[str, str], port: int) -> None:
        super().__init__(directory / name, port)
        self.name = name
        self._version = version
        self._told = told

    def command(self) -> Sequence[str]:
        words = {
            # the log server would listen on all interfaces
            "scheduler": ["scheduler", "--skip-serve-logs"],
            "triggerer": ["triggerer", "--skip-serve-logs"],
            "dag-processor": ["dag-processor"],
            "api-server": ["api-server", "--host", "127.0.0.1", "--port", str(self.port)],
            "webserver": ["webserver", "--hostname", "127.0.0.1", "--port", str(self.port)],
        }
        return self._version.command(*words[self.name])

    def environment(self) -> Mapping[str, str]:
        return self._told

    def is_ready(self) -> bool:
        """Return whether it serves requests; parts without a port are checked by `airflow`, in the table of jobs."""
        if self.name not in ("api-server", "webserver"):
            return self.is_running
        version = "v2" if self._version.has_task_sdk else "v1"
        try:
            return httpx.get(f"http://{self.address}/api/{version}/version", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False


def parts(version: Version, directory: Path, told: Mapping[str, str], port: int) -> dict[str, Part]:
    """Return the processes of one Airflow, not started."""
    names = ["scheduler", "triggerer"] + (["dag-processor", "api-server"] if version.has_task_sdk else ["webserver"])
    ports = {name: port if name in ("api-server", "webserver") else free_port() for name in names}
    return {name: Part(name, version, directory, told, ports[name]) for name in names}
