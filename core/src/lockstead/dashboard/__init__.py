"""A page that shows every lock of some stores: an ASGI application, of its own or mounted in another.

app = lockstead.dashboard.create_app(["sqlite:///locks.db"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstead.dashboard.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """Import what the extra `dashboard` brings when it is used."""
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from lockstead.dashboard.app import create_app
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "lockstead":
            raise
        raise ModuleNotFoundError(
            f"the dashboard needs {package}: pip install 'lockstead[dashboard]'", name=missing.name
        ) from None
    return create_app
