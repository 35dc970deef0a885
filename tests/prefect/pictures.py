"""Takes the pictures of docs/pictures/: what a real Prefect shows of a lock. `make pictures`.

Two flows want one lock: one holds it and works, the other waits. It runs in the environment of one Prefect.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from gcs_emulator import GcsServer
from tests.prefect.real.seen import runs, until
from tests.servers.browser import Browser
from tests.servers.pictures import WIDTH, Show, destination, take
from tests.servers.prefect import PrefectServer, started

FLOW: Final = """
import sys, time
from prefect import flow
from prefect_lockstead import locked

@flow(name=sys.argv[1], flow_run_name=sys.argv[2], log_prints=True)
@locked("gs://my-bucket/locks#apt", ttl="5m", purpose="publish APT packages")
def publish():
    time.sleep(3600)  # until the pictures are taken

publish()
"""

PAGES: Final = {"PREFECT_UI_ENABLED": "true", "PREFECT_UI_API_URL": "/api"}
"""Settings of a server that shows its pages, which ask that very server."""

COPY: Final = "PREFECT_UI_STATIC_DIRECTORY"
"""The setting that names the folder from which they are served."""

BLOCK: Final = "lockstead-lock"


def block(browser: Browser) -> None:
    """Return the form of a new lock, some of it filled in."""
    browser.resize(WIDTH, 860)
    browser.open(f"/blocks/catalog/{BLOCK}/create")
    browser.shows("Lock URL", "Time to live", "Purpose", "Password", "Google credentials")
    browser.types(_field("Block Name", "input"), "prod-apt")
    browser.types(_field("Lock URL"), "gs://my-bucket/locks#apt")
    browser.types(_field("Time to live"), "5m")
    browser.types(_field("Purpose"), "publish APT packages")
    browser.rests()


def _field(title: str, kind: str = "textarea") -> str:
    return f"//*[contains(@class, 'p-label')][starts-with(normalize-space(), '{title}')]//{kind}"


def waiting(browser: Browser) -> None:
    """Return the run that waits: its state, and its log, which names the holder."""
    # a run that is below the window's edge is not in its page
    browser.resize(WIDTH, 1200)
    browser.open("/runs")
    browser.click("//a[normalize-space() = 'on-demand']")
    browser.resize(WIDTH, 600)
    browser.shows("AwaitingLock", "waiting for 'apt', held by 'prefect:publish-apt/nightly/", "publish APT packages")
    # a run that goes on is drawn anew all the time, so this page never rests
    browser.shows("This flow run has not yet generated any task or subflow runs")


PICTURES: Final[dict[str, Show]] = {"prefect-waiting": waiting, "prefect-block": block}


def seen_in(server: PrefectServer, flow_name: str, state: str) -> None:
    """Wait until the run of a flow is in a state."""
    until(lambda: [one for one in runs(server, flow_name) if one["state_name"] == state], f"{flow_name}: no {state}")


def main() -> None:
    into = destination("Prefect")
    with tempfile.TemporaryDirectory(prefix="pictures-") as made, ExitStack() as stack:
        home = Path(made)
        gcs = stack.enter_context(GcsServer(buckets=["my-bucket"]))
        server = stack.enter_context(PrefectServer(home / "server", PAGES | {COPY: str(home / "pages")}))
        for flow_name, run, state in (
            ("publish-apt", "nightly", "Running"),
            ("rebuild-index", "on-demand", "AwaitingLock"),
        ):
            words = ["-c", FLOW, flow_name, run]
            stack.enter_context(started(words, home / run, server, {"STORAGE_EMULATOR_HOST": gcs.url}))
            seen_in(server, flow_name, state)
        site = f"http://{server.address}"
        httpx.get(site, trust_env=False).raise_for_status()
        take(site, home / "browser", into, PICTURES)


if __name__ == "__main__":
    main()
