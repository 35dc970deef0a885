"""The raw requests of the storage API, for tests: one method, one request, one httpx response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import httpx

KEEP_AND_DROP = {"keep": "1", "drop": "2"}
PATCH = {"metadata": {"drop": None, "new": "3"}}


@dataclass(frozen=True, slots=True)
class Driver:
    http: httpx.Client
    bucket: str

    def path(self, name: str) -> str:
        return f"/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}"

    def insert(
        self,
        name: str,
        query: Mapping[str, str] | None = None,
        *,
        content: bytes = b"content",
        resource: Mapping[str, object] | None = None,
    ) -> httpx.Response:
        described = {"name": name, "metadata": KEEP_AND_DROP, "cacheControl": "no-store", **(resource or {})}
        body = b"--frontier\r\nContent-Type: application/json\r\n\r\n" + json.dumps(described).encode()
        body += b"\r\n--frontier\r\nContent-Type: text/plain\r\n\r\n" + content + b"\r\n--frontier--\r\n"
        return self.http.post(
            f"/upload/storage/v1/b/{self.bucket}/o",
            params={"uploadType": "multipart", **(query or {})},
            headers={"Content-Type": 'multipart/related; boundary="frontier"'},
            content=body,
        )

    def patch(
        self, name: str, query: Mapping[str, str] | None = None, *, changes: Mapping[str, object] = PATCH
    ) -> httpx.Response:
        return self.http.patch(self.path(name), params=dict(query or {}), json=changes)

    def delete(self, name: str, query: Mapping[str, str] | None = None) -> httpx.Response:
        return self.http.delete(self.path(name), params=dict(query or {}))

    def get(self, name: str, query: Mapping[str, str] | None = None) -> httpx.Response:
        return self.http.get(self.path(name), params=dict(query or {}))

    def content(
        self, name: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return self.http.get(self.path(name), params={"alt": "media", **(query or {})}, headers=dict(headers or {}))

    def plain(self, name: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> httpx.Response:
        return self.http.request(method, f"/{self.bucket}/{quote(name)}", headers=dict(headers or {}))

    def copy(
        self,
        source: str,
        name: str,
        query: Mapping[str, str] | None = None,
        *,
        verb: str = "copyTo",
        resource: Mapping[str, object] | None = None,
    ) -> httpx.Response:
        url = f"{self.path(source)}/{verb}/b/{self.bucket}/o/{quote(name, safe='')}"
        return (
            self.http.post(url, params=dict(query or {}), json=resource)
            if resource
            else self.http.post(url, params=dict(query or {}))
        )

    def listing(self, query: Mapping[str, str] | None = None) -> dict[str, object]:
        answer = self.http.get(f"/storage/v1/b/{self.bucket}/o", params=dict(query or {}))
        answer.raise_for_status()
        listing: dict[str, object] = answer.json()
        return listing

    def names(self, query: Mapping[str, str] | None = None) -> list[str]:
        items = self.listing(query).get("items", [])
        return [item["name"] for item in items] if isinstance(items, list) else []
