"""The command line: publish, roll back, judge and serve repositories of one's own, and the demo."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from examples.publishing.errors import PublishingError
from examples.publishing.events import Event, What
from examples.publishing.front import Front
from examples.publishing.gcs import GcsBucket, Place
from examples.publishing.layout import Layout
from examples.publishing.lease import LockSettings
from examples.publishing.runner import FORMATS, Job, run
from examples.publishing.signing import generate_key


class PlaceType(click.ParamType[Place]):
    """`gs://bucket/prefix` as an argument."""

    name = "gs://bucket/prefix"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Read it, or say what is wrong with it."""
        try:
            return value if isinstance(value, Place) else Place.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


REPO = click.option("--repo", "place", type=PlaceType(), required=True, help="Where the repositories are.")
LOCK = click.option("--lock", "lock_url", help="URL of the lock store, without a key (default: <repo>/locks).")
TTL = click.option("--ttl", default=300.0, show_default=True, help="Seconds for which the lock lives unrenewed.")
WAIT = click.option("--timeout", type=float, help="Seconds to wait for the lock (default: for ever).")
KEY = click.option(
    "--key",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="Secret OpenPGP key to sign with, in ASCII armor, without a password.",
)


@click.group()
def main() -> None:
    """Signed APT and YUM repositories in a bucket, published from concurrent jobs under a lock."""


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@REPO
@LOCK
@KEY
@TTL
@WAIT
@click.option("--keep", default=5, show_default=True, help="Versions before the current one to keep for slow readers.")
@click.option("--overwrite", is_flag=True, help="Replace packages of the same name and version.")
@click.option("--owner", help="Who publishes, as shown to those who wait (default: host and process).")
def publish(
    files: tuple[Path, ...],
    place: Place,
    lock_url: str | None,
    key_file: Path,
    ttl: float,
    timeout: float | None,
    keep: int,
    overwrite: bool,
    owner: str | None,
) -> None:
    """Publish .deb and .rpm FILES: the ones to <repo>/apt, the others to <repo>/yum."""
    lock = LockSettings(lock_url or _locks(place), ttl=ttl, timeout=timeout, owner=owner)
    _carry_out(Job(owner or "publish", place, key_file.read_text(), files, lock, keep=keep, overwrite=overwrite))


@main.command()
@click.argument("kind", type=click.Choice(list(FORMATS)))
@click.argument("version", type=click.IntRange(min=1))
@REPO
@LOCK
@KEY
@TTL
@WAIT
def rollback(
    kind: str, version: int, place: Place, lock_url: str | None, key_file: Path, ttl: float, timeout: float | None
) -> None:
    """Publish the content of an old VERSION again, as a new one (readers ignore a pointer that goes back)."""
    lock = LockSettings(lock_url or _locks(place), ttl=ttl, timeout=timeout, owner="rollback")
    _carry_out(Job("rollback", place, key_file.read_text(), (), lock, restore={kind: version}))


@main.command()
@REPO
@click.option("--public-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
def audit(place: Place, public_key: Path) -> None:
    """Read every byte that readers can see and say whether it is whole and signed."""
    from examples.publishing.oracle import judge

    bucket = GcsBucket(place.bucket)
    verdicts = {kind: judge(bucket, f"{place.prefix}{kind}/", kind, public_key.read_text()) for kind in FORMATS}
    for kind, verdict in verdicts.items():
        click.echo(f"{kind} {verdict}")
    bucket.close()
    sys.exit(not all(verdict.is_good for verdict in verdicts.values()))


@main.command()
@REPO
@click.option("--port", default=8080, show_default=True)
@click.option("--public", is_flag=True, help="Redirect to the bucket itself: its objects can be read by everybody.")
def serve(place: Place, port: int, public: bool) -> None:
    """Send readers on this machine to the current versions."""
    bucket = GcsBucket(place.bucket)
    layouts: Mapping[str, Layout] = {kind: Layout(f"{place.prefix}{kind}/") for kind in FORMATS}
    with Front(bucket, layouts, objects_url=bucket.public_url if public else None, port=port) as front:
        click.echo(f"deb [signed-by=KEY] {front.url}/apt stable main")
        click.echo(f"mirrorlist={front.url}/yum/mirrorlist")
        front.wait()


@main.command("generate-key")
@click.argument("user_id")
def generate_key_command(user_id: str) -> None:
    """Print a new secret key that apt, rpm and gpg all accept, for USER_ID ("Name <address>")."""
    click.echo(generate_key(user_id), nl=False)


@main.command()
@click.option("--repo", "place", type=PlaceType(), help="A bucket to play in (default: a server of its own).")
@LOCK
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option("--ttl", type=float, help="Seconds for which the locks live unrenewed (default: 3, on a real bucket 30).")
def demo(place: Place | None, lock_url: str | None, pace: float, ttl: float | None) -> None:
    """Play four acts: without the lock, with it, killed and paused publishers, real clients."""
    from examples.publishing.demo.show import show

    # A real bucket takes one change a second of an object: too few for a lock that lives three.
    ttl = ttl or (3.0 if place is None else 30.0)
    if not show(place, lock_url, ttl=ttl, pace=pace, console=Console()):
        sys.exit(1)


@main.command("demo-airflow")
@click.option("--repo", "place", type=PlaceType(), help="A bucket to play in (default: a server of its own).")
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option("--ttl", default=300.0, show_default=True, help="Seconds for which the locks live unrenewed.")
def demo_airflow(place: Place | None, pace: float, ttl: float) -> None:
    """Publish from two DAGs of a real Airflow, one of which loses a worker (`make demo-airflow` installs it)."""
    import pytest

    from examples.publishing.demo.show import show_on_airflow

    try:
        is_good = show_on_airflow(place, ttl=ttl, pace=pace, console=Console())
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        # The servers are those of the tests, and what a machine has not is a skip to them.
        raise click.ClickException(str(error)) from None
    sys.exit(not is_good)


@main.command("demo-prefect")
@click.option("--repo", "place", type=PlaceType(), help="A bucket to play in (default: a server of its own).")
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option(
    "--ttl", type=float, help="Seconds for which the locks live unrenewed (default: 10, on a real bucket 30)."
)
def demo_prefect(place: Place | None, pace: float, ttl: float | None) -> None:
    """Publish from two flows of a real Prefect, one of which is killed (`make demo-prefect` installs it)."""
    import pytest

    from examples.publishing.demo.show import show_on_prefect

    # Nobody but the ttl says that a killed flow run is gone, so the next one waits that long.
    ttl = ttl or (10.0 if place is None else 30.0)
    try:
        is_good = show_on_prefect(place, ttl=ttl, pace=pace, console=Console())
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        # The servers are those of the tests, and what a machine has not is a skip to them.
        raise click.ClickException(str(error)) from None
    sys.exit(not is_good)


@main.command(hidden=True)
def worker() -> None:
    """Publish what the job on standard input says; one process of the demo."""
    from examples.publishing.demo.workers import work

    work()


def _locks(place: Place) -> str:
    return f"gs://{place.bucket}/{place.prefix}locks"


def _carry_out(job: Job) -> None:
    def report(event: Event) -> None:
        said = {
            What.STAGING: "uploading",
            What.WAITING: "waiting for the lock",
            What.HOLDS: f"holding the lock, token {event.number}",
            What.PHASE: event.phase,
            What.PUBLISHED: f"version {event.number}: {event.text}",
        }
        click.echo(f"{event.repository}: {said.get(event.what) or event.text}", err=event.what is What.FAILED)

    try:
        outcomes = run(job, report)
    except PublishingError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(None in outcomes.values())
