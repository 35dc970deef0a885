"""What a YAML file says of locks becomes definitions: a resource, sensors, asset checks; and no secret is in them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.scaffold.scaffold import get_scaffolder

import lockstead
from dagster_lockstead.component import FromEnvironment, LockComponent
from dagster_lockstead.resource import LockResource, LockStore

CONTEXT: Any = None
"""What the component does not look at."""

YAML = """
type: dagster_lockstead.component.LockComponent
attributes:
  store: sqlite:///{directory}/locks.db
  ttl: 5m
  purpose: publish
  janitor: true
  gates:
    - name: apt_gate
      key: apt
      job: publish
      minimum_interval_seconds: 5
      running: true
  checks:
    - asset: repository
      key: apt
"""


@dg.asset
def repository() -> None:
    """An asset."""


publish = dg.define_asset_job("publish", selection=[repository])


def project(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """Load a project of `dg` with one component in it, as its commands do."""
    defs = directory / "project_of_locks" / "defs"
    (defs / "locks").mkdir(parents=True)
    for folder in (defs.parent, defs):
        (folder / "__init__.py").touch()
    (directory / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "project_of_locks"\n'
    )
    (defs / "locks" / "defs.yaml").write_text(text.replace("{directory}", str(directory)))
    monkeypatch.syspath_prepend(str(directory))
    for name in [name for name in sys.modules if name.startswith("project_of_locks")]:
        monkeypatch.delitem(sys.modules, name)
    loaded = dg.load_from_defs_folder(project_root=directory)
    return dg.Definitions.merge(loaded, dg.Definitions(assets=[repository], jobs=[publish]))


def test_a_file_gives_a_resource_a_gate_a_janitor_and_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = project(tmp_path, YAML, monkeypatch)
    lock = (found.resources or {})["lock"]
    assert isinstance(lock, LockResource)
    assert (lock.ttl, lock.purpose) == ("5m", "publish")
    repository_of = found.get_repository_def()
    gate = repository_of.get_sensor_def("apt_gate")
    assert gate.default_status is dg.DefaultSensorStatus.RUNNING
    assert (gate.minimum_interval_seconds, gate.job_name) == (5, "publish")
    assert repository_of.has_sensor_def("lock_janitor")
    assert {key.name for key in repository_of.asset_graph.asset_check_keys} == {"materialized_under_newest_token"}
    dg.Definitions.validate_loadable(found)


def test_the_gate_of_a_semaphore_is_open_while_a_permit_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = project(tmp_path, YAML.replace("key: apt", "key: apt\n      permits: 2", 1), monkeypatch)
    gate = found.get_repository_def().get_sensor_def("apt_gate")

    def requests() -> bool:
        with dg.instance_for_test() as instance:
            context = dg.build_sensor_context(instance, resources=dict(found.resources or {}))
            return bool(gate.evaluate_tick(context).run_requests)

    one, other = (lockstead.Semaphore(f"sqlite:///{tmp_path}/locks.db#apt", 2) for _ in range(2))
    with one.hold():
        assert requests()
        with other.hold():
            assert not requests()


def test_the_check_that_it_gives_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = project(tmp_path, YAML, monkeypatch)
    job = found.get_repository_def().get_implicit_global_asset_job_def()
    result = job.execute_in_process()
    (check,) = result.get_asset_check_evaluations()
    assert check.description is not None
    assert "has no lock key" in check.description


def test_secrets_are_named_by_the_variable_that_holds_them():
    component = LockComponent(store="redis://127.0.0.1:1/0", username="me", password_env="LOCKSTEAD_TEST_PASSWORD")
    lock = (component.build_defs(CONTEXT).resources or {})["lock"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCKSTEAD_TEST_PASSWORD", "gone with the wind")
        assert "gone with" not in repr(component) + repr(lock)
        (store,) = [one for one in [lock.store] if one is not None]
        assert store.password == "LOCKSTEAD_TEST_PASSWORD"


def test_a_component_without_a_store_is_refused_by_its_schema():
    """It is what `dg check yaml` checks a file against."""
    schema = LockComponent.get_model_cls().model_json_schema()
    assert schema["required"] == ["store"]
    for model in (schema, *schema["$defs"].values()):
        assert [name for name, one in model["properties"].items() if "description" not in one] == []
    for kind in (LockResource, LockStore):
        # of a resource within a resource Dagster keeps the description of its class alone
        assert [name for name, one in kind.model_fields.items() if not one.description] in ([], ["store"])


def test_durations_are_numbers_or_text_and_an_asset_has_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = YAML.replace("ttl: 5m", "ttl: 300").replace("asset: repository", "asset: apt/packages")
    found = project(tmp_path, text, monkeypatch)
    lock = (found.resources or {})["lock"]
    assert isinstance(lock, LockResource)
    assert lock.ttl == "300"
    (key,) = found.get_repository_def().asset_graph.asset_check_keys
    assert key.asset_key == dg.AssetKey(["apt", "packages"])


def test_what_is_scaffolded_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scaffolder = get_scaffolder(LockComponent)
    assert isinstance(scaffolder, dg.Scaffolder)
    request: dg.ScaffoldRequest[Any] = dg.ScaffoldRequest(
        type_name="dagster_lockstead.component.LockComponent",
        target_path=tmp_path,
        scaffold_format="yaml",
        project_root=None,
        params=None,
    )
    scaffolder.scaffold(request)
    found = project(tmp_path / "project", (tmp_path / "defs.yaml").read_text(), monkeypatch)
    lock = (found.resources or {})["lock"]
    assert isinstance(lock, LockResource)
    assert lock.store.url == "sqlite:///locks.db"


def test_a_store_by_a_variable_is_looked_up_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCKSTEAD_TEST_STORE_URL", f"sqlite:///{tmp_path / 'locks.db'}")
    found = LockComponent(store=FromEnvironment(env="LOCKSTEAD_TEST_STORE_URL"), resource="locks").build_defs(CONTEXT)

    @dg.op
    def looks(locks: LockResource) -> None:
        assert locks.inspect("apt") is None

    @dg.job
    def looking() -> None:
        looks()

    assert looking.execute_in_process(resources=dict(found.resources or {})).success


def test_dg_finds_the_component_and_the_package_omits_it():
    (entry,) = entry_points(group="dagster_dg_cli.registry_modules", name="dagster_lockstead")
    assert entry.load().LockComponent is LockComponent
    code = "import sys, dagster_lockstead as d; d.LockResource; print('dagster_lockstead.component' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
