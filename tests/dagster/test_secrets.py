"""A password is in no repr, no log and no file of the instance."""

from pathlib import Path

import dagster as dg
import pytest

from dagster_lockstead import LockResource, LockStore, locked
from tests.dagster.runs import in_process, job_with

SECRET = "hunter2-of-the-tests"


@pytest.fixture
def resources(monkeypatch: pytest.MonkeyPatch) -> list[LockResource]:
    """Return resources that know the secret, in each way that one may say it; nobody listens where they point."""
    monkeypatch.setenv("LOCKSTEAD_SECRET", SECRET)
    monkeypatch.setenv("LOCKSTEAD_URL", f"redis://someone:{SECRET}@127.0.0.1:1/0")
    return [
        LockResource(store=LockStore(url="redis://127.0.0.1:1/0", password=dg.EnvVar("LOCKSTEAD_SECRET")), timeout=0),
        LockResource(store=dg.EnvVar("LOCKSTEAD_URL"), timeout=0),
        LockResource(store=f"redis://someone:{SECRET}@127.0.0.1:1/0", timeout=0),
        LockResource(store=LockStore(url="redis://127.0.0.1:1/0", password=SECRET), timeout=0),
    ]


@pytest.mark.parametrize("which", range(4))
def test_no_repr_no_event_and_no_file_tells_a_password(
    resources: list[LockResource], which: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resource, seen = resources[which], []

    @dg.op
    def shows(lock: LockResource) -> None:
        seen.extend([repr(lock), str(lock), repr(lock.store), repr(lock.lock("k"))])
        assert lock.store.location().count(SECRET) == 1

    @dg.op
    @locked("k", timeout=0.2)
    def fails() -> None: ...

    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert in_process(job_with(shows, {"lock": resource}), instance=instance).success
        result = in_process(job_with(fails, {"lock": resource}), instance=instance)
        assert not result.success
        told = [str(event) for event in result.all_events]
        told += [str(entry) for entry in instance.all_logs(result.run_id)]
        told += [str(run.run_config) + str(run.tags) for run in instance.get_runs()]
    assert len(seen) == 4
    assert not [one for one in [*seen, *told, caplog.text, repr(resource)] if SECRET in one]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
