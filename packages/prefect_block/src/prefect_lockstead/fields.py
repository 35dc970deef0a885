"""The fields that both blocks have, their titles in the form, and their validation. Must not import Prefect.

A field that is added later needs a default, or documents that were saved before do not load any more.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from lockstead import Settings, urls
from lockstead.values import seconds
from prefect_lockstead import places
from prefect_lockstead.places import Place

try:
    from prefect_gcp.credentials import GcpCredentials
except ImportError:
    GcpCredentials = None

WITHOUT_GOOGLE: Final = (
    "the block takes its credentials from a GCP Credentials block, and prefect-gcp is not installed here: "
    'pip install "prefect-gcp[cloud_storage]"'
)


def _without_tabs(shown: dict[str, Any]) -> None:
    # the form shows an optional type as two tabs; the default already says that it may be empty
    # `allOf` keeps our title: next to a bare reference the form shows that of the other block
    shown["allOf"] = [one for one in shown.pop("anyOf") if one.get("type") != "null"]


class Access(BaseModel):
    """The fields that both blocks have. Not a block itself."""

    # the input may hold the password
    model_config = ConfigDict(hide_input_in_errors=True)

    url: str = Field(title="URL", description="Where the store is.", min_length=1)
    ttl: str = Field(
        default="",
        title="Time to live",
        description="How long a dead holder blocks others: 30s, 5m, 1h. Empty: what the URL says, or 5 minutes.",
    )
    timeout: str = Field(
        default="",
        title="Timeout",
        description="How long to wait for the lock at most: 30s, 10m. Empty: forever.",
    )
    purpose: str = Field(
        default="", title="Purpose", description="Why the lock is taken; shown to everyone who waits for it."
    )
    username: str = Field(
        default="", title="User", description="The user name of the server, if the store requires one."
    )
    password: SecretStr = Field(
        default=SecretStr(""),
        title="Password",
        description="The password of that user. Saved encrypted and never shown.",
    )
    if GcpCredentials is not None:
        gcp_credentials: GcpCredentials | None = Field(
            default=None,
            json_schema_extra=_without_tabs,
            title="Google credentials",
            description="For Cloud Storage. Empty: the credentials of the machine that runs the flow.",
        )

    @model_validator(mode="before")
    @classmethod
    def _has_what_it_names(cls, said: Any) -> Any:
        if GcpCredentials is None and isinstance(said, dict) and said.get("gcp_credentials"):
            raise ValueError(WITHOUT_GOOGLE)
        return said

    @field_validator("ttl", "timeout", mode="before")
    @classmethod
    def _as_text(cls, said: Any) -> Any:
        return str(said) if isinstance(said, int | float) and not isinstance(said, bool) else said

    @field_validator("ttl")
    @classmethod
    def _can_live(cls, said: str) -> str:
        if said:
            Settings.make(ttl=said)
        return said

    @field_validator("timeout")
    @classmethod
    def _can_wait(cls, said: str) -> str:
        if said:
            seconds(said, "timeout")
        return said

    @field_validator("purpose")
    @classmethod
    def _can_be_shown(cls, said: str) -> str:
        Settings.make(purpose=said or None)
        return said

    @model_validator(mode="after")
    def _fits_together(self) -> Access:
        urls.with_user(self.url, self.username, self.password.get_secret_value())
        if getattr(self, "gcp_credentials", None) is not None and not self.url.lower().startswith("gs:"):
            raise ValueError(f"Google credentials are for a store at gs:, not for {self.url.partition(':')[0]}:")
        return self

    @property
    def place(self) -> Place:
        """Return the place that the fields describe. ValueError for invalid credentials."""
        url = urls.with_user(self.url, self.username, self.password.get_secret_value())
        settings = {name: said for name, said in (("ttl", self.ttl), ("purpose", self.purpose)) if said}
        timeout = seconds(self.timeout, "timeout") if self.timeout else None
        return Place(url, self._google_client(), settings, timeout)

    def _google_client(self) -> object | None:
        credentials = getattr(self, "gcp_credentials", None)
        if credentials is None:
            return None
        secret = credentials.service_account_info
        said = (secret and secret.get_secret_value(), str(credentials.service_account_file), credentials.project)
        return places.GOOGLE.client(repr(said), credentials.get_cloud_storage_client)
