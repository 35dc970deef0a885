"""Requests of a diagnosis to Cloud Storage, repeated after rate limits and server errors.

Must not know what is diagnosed. Not used for locks: a lock's requests are never repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.errors import OutcomeUnknown
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import BucketPath, Request, error_details

if TYPE_CHECKING:
    from lockstead.stores.http import Answer

PAUSE: Final = 1.1
"""Seconds before a request is repeated."""

ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class RetryingClient:
    """A client for one bucket that repeats failed requests. send sends one, as `access` says."""

    place: BucketPath
    access: Access
    send: Callable[[Request], Answer]

    def send_retrying(self, request: Request) -> Answer:
        """Send a request, and repeat it after 429 or 5xx; raise OutcomeUnknown after the last attempt."""
        response = self.send(request)
        for _ in range(ATTEMPTS - 1):
            if response.status != 429 and response.status < 500:
                return response
            time.sleep(PAUSE)
            response = self.send(request)
        if response.status == 429 or response.status >= 500:
            message = error_details(response)[0]
            raise OutcomeUnknown(f"{request.what} was answered with {response.status} {ATTEMPTS} times: {message}")
        return response

    def grant(self, role: str) -> str:
        """Return the gcloud command that grants this account a role on the bucket."""
        who = self.access.account or "ACCOUNT"
        bucket = f"gs://{self.place.bucket}"
        return f"gcloud storage buckets add-iam-policy-binding {bucket} --member={who} --role={role}"
