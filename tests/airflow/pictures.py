"""Takes the pictures of docs/pictures/: what a real Airflow shows of a lock. `make pictures`.

Two DAGs want one lock: one holds it and works, the other waits.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from gcs_emulator import GcsServer
from tests.servers.airflow import Airflow
from tests.servers.browser import ENTER, Browser
from tests.servers.pictures import WIDTH, Show, destination, take

DAG: Final = """
import time
from datetime import datetime

from airflow.sdk import DAG, task
from airflow_lockstead import LockedTaskGroup

with DAG("DAG_ID", schedule=None, start_date=datetime(2026, 1, 1)):
    with LockedTaskGroup("publish", lock="gs://my-bucket/locks#apt", ttl="5m", purpose="publish APT packages"):

        @task
        def build(): ...

        @task
        def sign():
            time.sleep(3600)  # until the pictures are taken

        @task
        def upload(): ...

        build() >> sign() >> upload()
"""


def group(browser: Browser) -> None:
    """Return the run that holds the lock: its graph, the group expanded."""
    browser.resize(WIDTH, 480)
    browser.open("/dags/publish_apt/runs/nightly")
    browser.click("//button[starts-with(@aria-label, 'Show Graph')]")
    browser.click("//button[@aria-label='Expand all task groups']")
    browser.click("//button[@aria-label='Collapse Details Panel']")
    browser.shows("lock_acquire", "build", "sign", "upload", "lock_keep", "lock_release", "running", "deferred")
    # what is drawn moves into its place, and lies somewhere else while it does
    browser.click("//button[@aria-label='Fit View' or @title='Fit View']")
    # the little map lies over the group's corner
    browser.does("document.querySelector('.react-flow__minimap').remove()")
    browser.rests()


def waiting(browser: Browser) -> None:
    """Show where "Who holds the lock" leads, on the task of the other run that waits for it."""
    browser.resize(WIDTH, 560)
    browser.keeps("default_dag_view", '"grid"')
    browser.keeps("rebuild_index/open-groups", '["publish"]')
    browser.keeps("log_wrap", "true")
    # the log is where the link leads
    browser.open("/dags/rebuild_index/runs/on-demand/tasks/publish.lock_acquire/details")
    browser.click("//a[. = 'Who holds the lock']")
    browser.shows("Deferred", "waiting for 'apt', held by 'airflow:publish_apt/nightly/publish'", "lock_release")
    browser.rests()


def connection(browser: Browser) -> None:
    """Return the form of a new connection: where the store is."""
    browser.resize(WIDTH, 860)
    browser.open("/connections")
    browser.click("//button[contains(., 'Add Connection')]")
    browser.types("//input[@name='connection_id']", "locks")
    browser.types("//*[@role='dialog']//input[@role='combobox']", f"Lockstead{ENTER}")
    browser.shows("Store URL", "User", "Password", "Extra Fields")
    browser.types("//input[@name='host']", "gs://my-bucket/locks")
    browser.rests()


def credentials(browser: Browser) -> None:
    """Return the rest of that form: whose credentials are taken."""
    browser.resize(WIDTH, 925)
    browser.click("//button[contains(., 'Extra Fields') and not(contains(., 'JSON'))]")
    browser.types("//input[@name='element_google_conn_id']", "google")
    browser.shows("Google connection", "Redis connection", "Postgres connection")
    browser.rests()


PICTURES: Final[dict[str, Show]] = {
    "airflow-group": group,
    "airflow-waiting": waiting,
    "airflow-connection": connection,
    "airflow-credentials": credentials,
}


def stage(airflow: Airflow) -> None:
    """Let one run hold the lock, and another wait for it."""
    for dag_id in ("publish_apt", "rebuild_index"):
        airflow.put(dag_id, DAG.replace("DAG_ID", dag_id))
    holder = airflow.trigger("publish_apt", "nightly")
    airflow.reaches(holder, "publish.sign", "running")
    airflow.reaches(holder, "publish.lock_keep", "deferred")
    waiter = airflow.trigger("rebuild_index", "on-demand")
    airflow.reaches(waiter, "publish.lock_acquire", "deferred")


def main() -> None:
    into = destination("Airflow")
    with tempfile.TemporaryDirectory(prefix="pictures-") as made, GcsServer(buckets=["my-bucket"]) as gcs:
        # the DAG processor and the tasks look for Cloud Storage where this says
        os.environ["STORAGE_EMULATOR_HOST"] = gcs.url
        with Airflow("3.3", Path(made, "airflow"), parallelism=4) as airflow:
            stage(airflow)
            take(f"http://127.0.0.1:{airflow.port}", Path(made, "browser"), into, PICTURES)


if __name__ == "__main__":
    main()
