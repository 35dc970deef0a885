"""The stores that several processes can share, as the runtime's chapter has them."""

from __future__ import annotations

from tests.runtime.conftest import gcs, shared_url, sqlite_url

__all__ = ["gcs", "shared_url", "sqlite_url"]
