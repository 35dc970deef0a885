"""The form of a lockstead connection, for the hook and for `provider_info`. Pure.

Must import nothing: Airflow reads it while it is itself being imported.
"""

from __future__ import annotations

from typing import Any, Final

FIELDS: Final = {
    "google_conn_id": ("Google connection", "An Airflow connection whose credentials are used (gs: stores)."),
    "redis_conn_id": ("Redis connection", "An Airflow connection whose credentials are used (redis: stores)."),
    "postgres_conn_id": (
        "Postgres connection",
        "An Airflow connection whose credentials are used (postgresql: stores).",
    ),
}
"""The extras of the form: name to label and description."""

HIDDEN: Final = ("schema", "port", "extra")

RELABELED: Final = {"host": "Store URL", "login": "User", "password": "Password"}

PLACEHOLDERS: Final = {
    "host": "gs://bucket/locks, redis://host/0, postgresql://host/db, etcd://host",
    "login": "if the store requires one",
    "password": "goes into the URL, and is never shown",
    **dict.fromkeys(FIELDS, "id of a connection"),
}


def behaviour(separator: str = "_") -> dict[str, Any]:
    """Return which fields are shown, and their labels. separator: "_" for a hook, "-" for `provider_info`."""
    return {f"hidden{separator}fields": list(HIDDEN), "relabeling": dict(RELABELED), "placeholders": dict(PLACEHOLDERS)}


def conn_fields() -> dict[str, Any]:
    """Return the form's extra fields in the format of `provider_info` (`conn-fields`)."""
    return {
        name: {"label": label, "description": said, "schema": {"type": ["string", "null"]}}
        for name, (label, said) in FIELDS.items()
    }
