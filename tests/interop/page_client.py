"""A client of Cloud Storage locks written from `docs/interop.md` alone: httpx, no line of lockstead.

It shows that the page is sufficient. Not for use: it does not renew in the background, and has no tickets.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx

DRIFT = 0.01
GRANULARITY = 2.0


class PageClient:
    """One acquisition of one lock at a time, under `prefix` of a bucket. Durations are in seconds."""

    def __init__(self, endpoint: str, bucket: str, prefix: str, owner: str, ttl: float) -> None:
        self._http = httpx.Client(base_url=endpoint)
        self._objects = f"/storage/v1/b/{bucket}/o"
        self._prefix, self._owner, self._ttl = prefix, owner, ttl
        self.identity = ""
        self.generation = ""
        self.deadline = 0.0

    @property
    def is_held(self) -> bool:
        """By arithmetic alone."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) < self.deadline

    def acquire(self, key: str, within: float) -> bool:
        """Create, adopt or take over; wait by reading."""
        self.identity = f"{self._owner}/{uuid.uuid4().hex[:16]}"
        ends_at = time.monotonic() + within
        while time.monotonic() < ends_at:
            found = self._read(key)
            if found is None:
                if self._write(key, {"ifGenerationMatch": "0"}):
                    return True
                continue
            said = found["metadata"]
            if said["v"].split(".")[0] != "1":
                raise RuntimeError(f"{key!r} has version {said['v']}: upgrade")
            state = {"ifGenerationMatch": found["generation"], "ifMetagenerationMatch": found["metageneration"]}
            if self._is_over(key, found) and self._write(key, state):
                return True
            time.sleep(0.05)
        return False

    def renew(self, key: str) -> bool:
        """Patch what changes, expecting the generation alone; False if the lease is lost."""
        sent_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        fields = {"expires_at": f"{time.time() + self._ttl:.6f}"}
        answer = self._patch(f"{self._prefix}/{key}", fields, {"ifGenerationMatch": self.generation})
        said = answer.json().get("metadata", {}) if answer.status_code == 200 else {}
        if said.get("identity") != self.identity or "revoked" in said or "ended" in said:
            self.deadline = 0.0
            return False
        if "closing" not in said:
            self.deadline = sent_at + self._ttl * (1 - DRIFT)
        return True

    def release(self, key: str) -> bool:
        """Remove it, expecting the generation."""
        self.deadline = 0.0
        path = f"{self._objects}/{quote(f'{self._prefix}/{key}', safe='')}"
        return self._http.delete(path, params={"ifGenerationMatch": self.generation}).status_code == 204

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _is_over(self, key: str, found: dict[str, Any]) -> bool:
        said = found["metadata"]
        if said.get("ended") == "1":
            return True
        life = float(said["ttl"]) * (1 + DRIFT) + float(said.get("lock_delay", "0")) + GRANULARITY
        if found["date"] <= _instant(found["updated"]) + life:
            return False
        companion = f"{self._prefix}/.lockstead/companion/{key}"
        drawn = self._patch(companion, {"drawn_by": uuid.uuid4().hex}, {})
        if drawn.status_code == 404:
            drawn = self._insert(companion, {"v": "1", "drawn_by": uuid.uuid4().hex}, {"ifGenerationMatch": "0"})
        return drawn.status_code == 200 and _instant(drawn.json()["updated"]) > _instant(found["updated"]) + life

    def _read(self, key: str) -> dict[str, Any] | None:
        answer = self._http.get(f"{self._objects}/{quote(f'{self._prefix}/{key}', safe='')}")
        if answer.status_code == 404:
            return None
        return {**answer.json(), "date": parsedate_to_datetime(answer.headers["Date"]).timestamp()}

    def _write(self, key: str, state: dict[str, str]) -> bool:
        now = time.time()
        fields = {
            "v": "1",
            "identity": self.identity,
            "owner": self._owner,
            "ttl": f"{self._ttl:g}",
            "acquired_at": f"{now:.6f}",
            "expires_at": f"{now + self._ttl:.6f}",
        }
        sent_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        answer = self._insert(f"{self._prefix}/{key}", fields, state)
        if answer.status_code != 200:
            return False
        self.generation = answer.json()["generation"]
        self.deadline = sent_at + self._ttl * (1 - DRIFT)
        return True

    def _insert(self, name: str, fields: dict[str, str], state: dict[str, str]) -> httpx.Response:
        about = json.dumps({"name": name, "metadata": fields, "cacheControl": "no-store"})
        body = f"--b\r\nContent-Type: application/json\r\n\r\n{about}\r\n--b\r\n\r\n\r\n--b--\r\n"
        return self._http.post(
            f"/upload{self._objects}",
            params={"uploadType": "multipart", **state},
            headers={"Content-Type": "multipart/related; boundary=b"},
            content=body.encode(),
        )

    def _patch(self, name: str, fields: dict[str, str], state: dict[str, str]) -> httpx.Response:
        return self._http.patch(f"{self._objects}/{quote(name, safe='')}", params=state, json={"metadata": fields})


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
