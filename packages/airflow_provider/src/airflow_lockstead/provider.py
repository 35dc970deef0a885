"""The entry point `provider_info`: the description of this distribution for Airflow.

Airflow calls it while it is itself being imported, so nothing here may import Airflow.
"""

from __future__ import annotations

from typing import Any, Final

from airflow_lockstead import __version__, compat, config

HOOK: Final = "airflow_lockstead.hook.LocksteadHook"


def provider_info() -> dict[str, Any]:
    """Return the provider's description, restricted to the keys that this Airflow accepts."""
    return {name: said for name, said in _all().items() if name in compat.provider_keys()}


def _all() -> dict[str, Any]:
    from airflow_lockstead.fields import behaviour, conn_fields

    return {
        "package-name": "airflow-provider-lockstead",
        "name": "Lockstead",
        "description": "Locks: one lease over the tasks of a group, on any number of workers, with a clean abort.",
        "versions": [__version__],
        "hook-class-names": [HOOK],
        "connection-types": [
            {
                "connection-type": "lockstead",
                "hook-class-name": HOOK,
                "hook-name": "Lockstead",
                "conn-fields": conn_fields(),
                "ui-field-behaviour": behaviour("-"),
            }
        ],
        "task-decorators": [{"name": "locked", "class-name": "airflow_lockstead.decorators.locked_task"}],
        "extra-links": ["airflow_lockstead.links.HolderLink"],
        "notifications": ["airflow_lockstead.notifications.LockNotifier"],
        "triggers": [{"integration-name": "Lockstead", "python-modules": ["airflow_lockstead.triggers"]}],
        "config": config.described(),
        "cli": ["airflow_lockstead.cli.get_lockstead_cli_commands"],
    }
