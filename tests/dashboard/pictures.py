"""Takes the pictures of docs/pictures/: the dashboard, on a real store with real holders. `make pictures`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

import lockstead.runtime.engine
from tests.dashboard.scene import DashboardServer, Holders, scene
from tests.servers.base import until
from tests.servers.browser import Browser
from tests.servers.pictures import WIDTH, Show, destination, take
from tests.servers.redis import RedisServer

PHONE: Final = 390


def opened(browser: Browser, width: int, height: int, scheme: str) -> None:
    """Open the list, as somebody with a window of this size sees it."""
    browser.resize(width, height)
    browser.prefers(prefers_color_scheme=scheme)
    browser.open("/")
    browser.shows("Live", "apt-publish", "min late", "anna", "scheduler-2")


def locks(browser: Browser) -> None:
    """Show the list."""
    opened(browser, WIDTH, 900, "light")


def dark(browser: Browser) -> None:
    """Show the list on a phone, in dark mode."""
    opened(browser, PHONE, 844, "dark")


def lock(browser: Browser) -> None:
    """Show a lock, its queue and its history."""
    opened(browser, WIDTH, 800, "light")
    browser.click("//a[contains(@class, 'key')][. = 'apt-publish']")
    browser.shows("Live", "granted", "released", "lost", "switched off")


PICTURES: Final[dict[str, Show]] = {"dashboard": locks, "dashboard-phone": dark, "dashboard-lock": lock}


def before(url: str, site: str) -> None:
    """Let two leases of a lock end, one of them by a break, while the dashboard watches."""
    page = httpx.URL(f"{site}/lock", params={"store": url, "key": "apt-publish"})

    def tells(*words: str) -> None:
        until(lambda: all(word in httpx.get(page, trust_env=False).text for word in words), 30, lambda: f"no {words}")

    with Holders(url) as holders:
        lease = holders.hold(
            "apt-publish", owner="airflow:publish/weekly/upload", purpose="publish APT packages", ttl=60
        )
        tells("granted", "weekly")
        lease.release()
        tells("released")
        lease = holders.hold("apt-publish", owner="deploy@ci-7", purpose="fix a broken index", ttl=60)
        tells("ci-7")
        holders.client().lock("apt-publish").break_lease(reason="ci-7 was switched off", by="anna")
        tells("revoked")
    tells("lost")


def main() -> None:
    """Take the pictures."""
    into = destination("dashboard")
    # no picture shows the name of a machine
    lockstead.runtime.engine.HOST = "builder-3"
    with tempfile.TemporaryDirectory(prefix="pictures-") as made, ExitStack() as stack:
        home = Path(made)
        store = stack.enter_context(RedisServer(home / "redis"))
        url = f"redis://127.0.0.1:{store.port}/0"
        server = stack.enter_context(DashboardServer(home / "dashboard", url, "--history", str(home / "seen.db")))
        before(url, server.site)
        scene(stack.enter_context(Holders(url)))
        take(server.site, home / "browser", into, PICTURES)


if __name__ == "__main__":
    main()
