"""The command line: publish, roll back, audit and serve repositories, and run the demo."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

import lockstead
from examples.publishing.errors import PublishingError
from examples.publishing.events import Event, EventKind
from examples.publishing.front import Front
from examples.publishing.gcs import GcsBucket, Place
from examples.publishing.layout import Layout
from examples.publishing.lease import LockSettings
from examples.publishing.runner import FORMATS, Job, Pace, Report, run
from examples.publishing.signing import generate_key
from examples.publishing.steps import Steps


class PlaceType(click.ParamType[Place]):
    """An argument of the form `gs://bucket/prefix`."""

    name = "gs://bucket/prefix"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Parse it, or report what is wrong with it."""
        try:
            return value if isinstance(value, Place) else Place.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


REPO = click.option("--repo", "place", type=PlaceType(), required=True, help="Where the repositories are.")
LOCK = click.option("--lock", "lock_url", help="URL of the lock store, without a key (default: <repo>/locks).")
TTL = click.option("--ttl", default=300.0, show_default=True, help="Seconds after which an unrenewed lock expires.")
WAIT = click.option(
    "--timeout", type=float, help="Maximum time to wait for the lock, in seconds (default: wait forever)."
)
PACE = click.option(
    "--pace", default=0.0, envvar="PUBLISHING_PACE", help="Seconds to wait before every phase, for watching."
)
JSON = click.option("--json", "as_json", is_flag=True, envvar="PUBLISHING_JSON", help="Print events as lines of JSON.")
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
@click.option(
    "--keep", default=5, show_default=True, help="Number of versions before the current one to keep for slow readers."
)
@click.option("--overwrite", is_flag=True, help="Replace packages of the same name and version.")
@click.option("--owner", help="Owner name shown to waiters (default: host and process).")
@click.option(
    "--attached",
    is_flag=True,
    help="Publish under the lock that `lockstead run` holds (needs LOCKSTEAD_TICKET).",
)
@click.option("--ticket", envvar="LOCKSTEAD_TICKET", hidden=True)
@PACE
@JSON
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
    attached: bool,
    ticket: str | None,
    pace: float,
    as_json: bool,
) -> None:
    """Publish FILES: .deb files to <repo>/apt, .rpm files to <repo>/yum."""
    lock = LockSettings(lock_url or _locks(place), ttl=ttl, timeout=timeout, owner=owner)
    if attached:
        kind = _kind_of(ticket)
        files = tuple(path for path in files if path.suffix == FORMATS[kind].suffix)
        lock = replace(lock, ticket=ticket)
    job = Job(owner or "publish", place, key_file.read_text(), files, lock, keep, overwrite, Pace(pace))
    _carry_out(job, as_json=as_json)


@main.command("stage")
@click.argument("kind", type=click.Choice(list(FORMATS)))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@REPO
@KEY
@JSON
def stage_command(kind: str, files: tuple[Path, ...], place: Place, key_file: Path, as_json: bool) -> None:
    """Upload those of FILES that belong to a repository, without a lock; `publish` then finds them there."""
    job = Job("publish", place, key_file.read_text(), files, lock=None)
    with _refusing():
        Steps(job, kind, _reporting(as_json=as_json)).stage()


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
    """Publish the content of an old VERSION again, as a new version (readers ignore a pointer that goes back)."""
    lock = LockSettings(lock_url or _locks(place), ttl=ttl, timeout=timeout, owner="rollback")
    _carry_out(Job("rollback", place, key_file.read_text(), (), lock, restore={kind: version}))


@main.command()
@REPO
@click.option("--public-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
def audit(place: Place, public_key: Path) -> None:
    """Read everything that readers can see and report whether it is complete and signed."""
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
@click.option("--public", is_flag=True, help="Redirect to the bucket itself; its objects must be public.")
def serve(place: Place, port: int, public: bool) -> None:
    """Redirect readers on this machine to the current versions."""
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
@click.option("--repo", "place", type=PlaceType(), help="A bucket for the demo (default: a local test server).")
@LOCK
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option(
    "--ttl",
    type=float,
    help="Seconds after which an unrenewed lock expires (default: 20, on a real bucket 30; with --only 3).",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Chooses which publisher is killed and which is paused, where and when.",
)
@click.option(
    "--only", type=click.Choice(["engine"]), help="Play four acts without an orchestrator, in a quarter of a minute."
)
@click.option(
    "--record", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write the output to this file."
)
@click.option(
    "--diagram", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Draw the timeline to this file."
)
def demo(
    place: Place | None,
    lock_url: str | None,
    pace: float,
    ttl: float | None,
    seed: int,
    only: str | None,
    record: Path | None,
    diagram: Path | None,
) -> None:
    """Publish from Airflow, Prefect, Dagster and a script at once; one is killed, one is paused."""
    from examples.publishing.demo.fitness import Unfit
    from examples.publishing.demo.show import Written, show, show_four

    if only is not None and (record or diagram):
        raise click.UsageError("--record and --diagram are for the demo of four")
    console = Console()
    try:
        if only is not None:
            # A real bucket accepts one change a second of an object: too few for a ttl of three seconds.
            is_good = show(place, lock_url, ttl=ttl or (3.0 if place is None else 30.0), pace=pace, console=console)
        else:
            ttl = ttl or (20.0 if place is None else 30.0)
            written = Written(record, diagram)
            with _absences():
                is_good = show_four(place, lock_url, written, seed=seed, ttl=ttl, pace=pace, console=console)
    except Unfit as error:
        raise click.ClickException(str(error)) from None
    sys.exit(not is_good)


@main.command("demo-airflow")
@click.option("--repo", "place", type=PlaceType(), help="A bucket for the demo (default: a local test server).")
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option("--ttl", default=300.0, show_default=True, help="Seconds after which an unrenewed lock expires.")
def demo_airflow(place: Place | None, pace: float, ttl: float) -> None:
    """Publish from two DAGs of a real Airflow, one of which loses a worker (`make demo-airflow` installs it)."""
    from examples.publishing.demo.show import show_on_airflow

    with _absences():
        is_good = show_on_airflow(place, ttl=ttl, pace=pace, console=Console())
    sys.exit(not is_good)


@main.command("demo-prefect")
@click.option("--repo", "place", type=PlaceType(), help="A bucket for the demo (default: a local test server).")
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option(
    "--ttl", type=float, help="Seconds after which an unrenewed lock expires (default: 10, on a real bucket 30)."
)
def demo_prefect(place: Place | None, pace: float, ttl: float | None) -> None:
    """Publish from two flows of a real Prefect, one of which is killed (`make demo-prefect` installs it)."""
    from examples.publishing.demo.show import show_on_prefect

    # A killed flow run is only known to be gone when its ttl ends, so the next one waits that long.
    ttl = ttl or (10.0 if place is None else 30.0)
    with _absences():
        is_good = show_on_prefect(place, ttl=ttl, pace=pace, console=Console())
    sys.exit(not is_good)


@main.command("demo-dagster")
@click.option("--repo", "place", type=PlaceType(), help="A bucket for the demo (default: a local test server).")
@click.option("--pace", default=0.0, help="Seconds to wait before every phase, for watching.")
@click.option("--ttl", default=300.0, show_default=True, help="Seconds after which an unrenewed lock expires.")
def demo_dagster(place: Place | None, pace: float, ttl: float) -> None:
    """Publish from two jobs of a real Dagster, one of which loses its worker (`make demo-dagster` installs it)."""
    from examples.publishing.demo.show import show_on_dagster

    with _absences():
        is_good = show_on_dagster(place, ttl=ttl, pace=pace, console=Console())
    sys.exit(not is_good)


@main.command(hidden=True)
def worker() -> None:
    """Run the job on standard input; one process of the demo."""
    from examples.publishing.demo.workers import work

    work()


@contextmanager
def _absences() -> Iterator[None]:
    """Report in one line what is not installed on this machine."""
    import pytest

    from examples.publishing.demo.environments import Absent

    try:
        yield
    except (Absent, pytest.skip.Exception, pytest.fail.Exception) as error:
        # The demo uses the servers of the tests, which skip what is not installed.
        raise click.ClickException(str(error)) from None


def _locks(place: Place) -> str:
    return f"gs://{place.bucket}/{place.prefix}locks"


def _kind_of(ticket: str | None) -> str:
    """Return the repository whose lock a ticket is for."""
    if ticket is None:
        raise click.UsageError("LOCKSTEAD_TICKET is not set; --attached is for a command of `lockstead run`")
    try:
        kind = lockstead.LeaseTicket.parse(ticket).key
    except ValueError as error:
        raise click.UsageError(f"LOCKSTEAD_TICKET: {error}") from None
    if kind not in FORMATS:
        raise click.UsageError(f"`lockstead run` holds the lock {kind!r}, which is not one of {', '.join(FORMATS)}")
    return kind


def _reporting(*, as_json: bool) -> Report:
    """Return a callback that prints events on standard output, for programs or for people."""

    def report(event: Event) -> None:
        said = {
            EventKind.STAGING: "uploading",
            EventKind.WAITING: "waiting for the lock",
            EventKind.HOLDS: f"holding the lock, token {event.number}",
            EventKind.PHASE: event.phase,
            EventKind.PUBLISHED: f"version {event.number}: {event.text}",
        }
        click.echo(f"{event.repository}: {said.get(event.what) or event.text}", err=event.what is EventKind.FAILED)

    return (lambda event: click.echo(event.to_line())) if as_json else report


@contextmanager
def _refusing() -> Iterator[None]:
    """Report in one line why the pipeline refused."""
    try:
        yield
    except (PublishingError, lockstead.LocksteadError) as error:
        raise click.ClickException(str(error)) from None


def _carry_out(job: Job, *, as_json: bool = False) -> None:
    with _refusing():
        outcomes = run(job, _reporting(as_json=as_json))
    sys.exit(None in outcomes.values())
