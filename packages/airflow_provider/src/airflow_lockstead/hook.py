"""The hook of a lockstead connection: its form, its test, and locks for tasks.

`connection` reads the connection. Must not be imported when a DAG file is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lockstead
from airflow_lockstead import compat, connection, measuring
from airflow_lockstead.fields import FIELDS, behaviour
from airflow_lockstead.spec import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from lockstead import AsyncLock, Client, Lock


class LocksteadHook(compat.BaseHook):  # type: ignore[misc]  # the base class is found at run time
    """Locks in the store that a connection names."""

    conn_name_attr = "lockstead_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "lockstead"
    hook_name = "Lockstead"

    def __init__(self, lockstead_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lockstead_conn_id = lockstead_conn_id
        self._client: Client | None = None

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form's extra fields, for the versions of Airflow that get them from the hook."""
        from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
        from wtforms import StringField

        return {
            name: StringField(label, description=said, widget=BS3TextFieldWidget())
            for name, (label, said) in FIELDS.items()
        }

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return which fields of the form are shown, and their labels."""
        return behaviour()

    def get_conn(self) -> Client:
        """Return the opened store, always the same for one hook. Raises ValueError or StoreRefused with one line."""
        if self._client is None:
            self._client = connection.client(self.lockstead_conn_id)
        return self._client

    def lock(self, key: str, **settings: Any) -> Lock:
        """Return a lock of this store; settings are those of `lockstead.Settings.make`."""
        measuring.install()
        place = connection.PLACES.place(self.lockstead_conn_id)
        return lockstead.Lock(place.lock_url(key), client=place.client, **settings)

    async def async_lock(self, key: str, **settings: Any) -> AsyncLock:
        """Return an async lock of this store."""
        measuring.install()
        place = await connection.PLACES.aplace(self.lockstead_conn_id)
        return lockstead.AsyncLock(place.lock_url(key), client=place.client, **settings)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the store can be reached and its locks listed, and one line of text. Acquires no lock."""
        try:
            with connection.client(self.lockstead_conn_id) as client:
                held = sum(1 for _ in client.scan())
        except (ValueError, TypeError, lockstead.LocksteadError) as error:
            return False, _line(error)
        except Exception as error:  # noqa: BLE001 - the form shows one line for any error of a client library
            return False, f"{type(error).__name__}: {_line(error)}"
        return True, f"the store answers; {held} {'lock is' if held == 1 else 'locks are'} held there"


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
