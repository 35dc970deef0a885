"""How an examination asks Cloud Storage: one request at a time, sent again only where nothing was done.

Must not know what is looked for. Nothing of a lock goes this way: a lock's requests are never repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lockstead.errors import OutcomeUnknown
from lockstead.stores.gcs.encoding import BucketPath, Request, Response, error_details

PAUSE: Final = 1.1
"""Seconds before a request that came too early for its object is sent again."""

ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class RetryingClient:
    """How the bucket is reached: its place, the endpoint, who we are (empty: unknown), and what sends a request.

    by: the variable that named the endpoint, if one did. is_signed: requests carry an access token.
    """

    place: BucketPath
    endpoint: str
    account: str
    send: Callable[[Request], Response]
    by: str | None = None
    is_signed: bool = False

    def send_retrying(self, request: Request) -> Response:
        """Send, and send again what was refused for its pace; OutcomeUnknown after the last attempt."""
        response = self.send(request)
        for _ in range(ATTEMPTS - 1):
            if response.status != 429 and response.status < 500:
                return response
            time.sleep(PAUSE)
            response = self.send(request)
        if response.status == 429 or response.status >= 500:
            said = error_details(response)[0]
            raise OutcomeUnknown(f"{request.what} was answered with {response.status} {ATTEMPTS} times: {said}")
        return response

    def grant(self, role: str) -> str:
        """Return the command that grants us a role on the bucket."""
        who = self.account or "ACCOUNT"
        bucket = f"gs://{self.place.bucket}"
        return f"gcloud storage buckets add-iam-policy-binding {bucket} --member={who} --role={role}"


def resource_of(response: Response) -> dict[str, Any]:
    """Read the JSON object of an answer; an empty one for what is none."""
    try:
        body = json.loads(response.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
