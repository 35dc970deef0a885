"""What an examination says of the way to Cloud Storage: where requests go, at whose word, in clear or not."""

from __future__ import annotations

import pytest

from lockstead.stores.examination import Finding, Severity
from lockstead.stores.gcs.access import ENDPOINT, Access, default_access
from lockstead.stores.gcs.client import RetryingClient
from lockstead.stores.gcs.doctor import examination
from lockstead.stores.gcs.encoding import BucketPath
from lockstead.stores.http import Answer


class Vouched:
    """Credentials of a service account."""

    service_account_email = "ci@project.iam.gserviceaccount.com"


def findings(access: Access) -> dict[str, Finding]:
    """Return the findings before the first request."""

    def send(_request: object) -> None:
        raise EOFError

    way = RetryingClient(BucketPath.at("b", ""), access, send)  # type: ignore[arg-type]
    found = {}
    with pytest.raises(EOFError):
        for finding in examination(way, lambda _name: None):  # type: ignore[arg-type,return-value]
            found[finding.check] = finding
    return found


def test_the_service_itself_gets_the_token_over_tls() -> None:
    found = findings(Access(ENDPOINT, Vouched()))
    assert {finding.severity for finding in found.values()} == {Severity.OK}
    assert found["transport"].text.startswith("TLS")
    assert found["credentials"].text == (
        "an access token of serviceAccount:ci@project.iam.gserviceaccount.com is sent to storage.googleapis.com"
    )
    assert (
        findings(Access("https://gcs.example", object()))["credentials"].text
        == "an access token is sent to gcs.example"
    )


@pytest.mark.parametrize(
    ("emulator", "severity", "text"),
    [
        ("127.0.0.1:4443", Severity.OK, "does not leave this machine"),
        (
            "http://gcs.example:4443",
            Severity.WARNING,
            "no TLS: anyone on the network path to gcs.example can read and change",
        ),
        ("https://gcs.example:4443", Severity.OK, "TLS"),
    ],
)
def test_an_emulator_of_the_environment_is_named_and_gets_no_token(
    monkeypatch: pytest.MonkeyPatch, emulator: str, severity: Severity, text: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    found = findings(default_access())
    assert set(found) == {"endpoint", "transport"}
    assert (found["transport"].severity, text in found["transport"].text) == (severity, True)
    assert found["endpoint"].severity is Severity.NOTE
    assert found["endpoint"].text.startswith(
        "STORAGE_EMULATOR_HOST is set: requests, and every lock with them, go to http"
    )
    assert found["endpoint"].remedy == "unset STORAGE_EMULATOR_HOST if the service itself is meant"


def test_a_client_of_the_callers_own_is_not_blamed_on_the_environment() -> None:
    found = findings(Access("https://gcs.example"))
    assert found["endpoint"].severity is Severity.NOTE
    assert "STORAGE_EMULATOR_HOST" not in found["endpoint"].text + found["endpoint"].remedy


def test_an_answer_that_is_nested_too_deeply_is_no_bucket() -> None:
    answer = Answer(200, {}, b"[" * 100_000)
    client = RetryingClient(BucketPath.at("b", ""), Access(ENDPOINT), lambda _request: answer)
    *_, last = examination(client, lambda _name: None)  # type: ignore[arg-type,return-value]
    assert (last.check, last.severity, last.stops) == ("endpoint", Severity.FAILURE, True)
