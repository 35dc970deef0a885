"""Takes the pictures of docs/pictures/: what a real Dagster shows of a lock. `make pictures`.

One run has published an asset, the next holds the lock and works, a third waits. It runs in the environment of one
Dagster.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gcs_emulator import GcsServer
from tests.servers.browser import Browser
from tests.servers.dagster import Dagster
from tests.servers.pictures import WIDTH, Show, destination, take

MODULE: Final = "tests.dagster.pictured_jobs"


def metadata(browser: Browser) -> None:
    """Return the newest materialization of the asset, with key and token."""
    browser.resize(WIDTH, 760)
    browser.open("/assets/repository?view=overview")
    browser.shows("lockstead/key", "lockstead/token", "packages")
    browser.rests()


def waiting(run: str) -> Show:
    """Return what shows the events of a run that waits."""

    def show(browser: Browser) -> None:
        browser.resize(WIDTH, 760)
        browser.open(f"/runs/{run}")
        # a run that goes on is drawn anew all the time, so this page never rests
        browser.shows("waiting: 'apt' is held by 'dagster:", "publish APT packages")

    return show


def main() -> None:
    into = destination("Dagster")
    with tempfile.TemporaryDirectory(prefix="pictures-") as made, ExitStack() as stack:
        home = Path(made)
        gcs = stack.enter_context(GcsServer(buckets=["my-bucket"]))
        dagster = stack.enter_context(Dagster(home, MODULE, environment={"STORAGE_EMULATOR_HOST": gcs.url}))
        assert dagster.finished(dagster.launch(assets=["repository"])) == "SUCCESS"
        dagster.tells(dagster.launch(assets=["nightly"]), "acquired:")
        run = dagster.launch(assets=["index"])
        dagster.tells(run, "waiting:")
        pictures = {"dagster-metadata": metadata, "dagster-waiting": waiting(run)}
        take(f"http://{dagster.webserver.address}", home / "browser", into, pictures)


if __name__ == "__main__":
    main()
