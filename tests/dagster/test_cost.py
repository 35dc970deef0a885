"""What a code location pays before anything is locked. No time is measured here: the benchmarks do."""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = (
    "psutil",
    "sqlite3",
    "redis",
    "google.cloud",
    "httpx",
    "psycopg",
    "kazoo",
    "pendulum",
    "dagster_lockstead.section",
    "dagster_lockstead.aborting",
    "lockstead.supervise.child_processes",
    "dagster_lockstead.watching",
    "dagster_lockstead.component",
    "lockstead.lease",
    "lockstead.protocol",
    "lockstead.runtime.engine",
    "lockstead.stores.sqlite.store",
    "lockstead.supervise",
)

PROGRAM = """
import sys
import dagster as dg
before = set(sys.modules)
from dagster_lockstead import LockResource, LockStore, locked

@dg.op
@locked("k", ttl="5m")
def one(context) -> int:
    return 1

@dg.asset
@locked(lambda context: context.partition_key)
async def two() -> int:
    return 2

defs = dg.Definitions(
    assets=[two],
    jobs=[dg.job(name="j")(lambda: one() and None)],
    resources={"lock": LockResource(store=LockStore(url="sqlite:///nowhere.db", password=""))},
)
defs.get_job_def("j")
print(*sorted(set(sys.modules) - before))
"""


def new_modules(program: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_definitions_with_locks_import_nothing_of_what_runs() -> None:
    new = new_modules(PROGRAM)
    assert "dagster_lockstead.decorator" in new
    assert not [one for one in sorted(new) if any(one == bad or one.startswith(f"{bad}.") for bad in FORBIDDEN)]


def test_the_package_by_itself_imports_nothing_of_dagster() -> None:
    new = new_modules("import sys, dagster_lockstead; print(*sys.modules)")
    assert not [one for one in new if one.partition(".")[0] == "dagster"]


def test_dagster_is_told_of_the_library_once_a_name_is_asked_for() -> None:
    program = """
import dagster_lockstead
from dagster_shared.libraries import DagsterLibraryRegistry
before = "dagster-lockstead" in DagsterLibraryRegistry.get()
dagster_lockstead.locked, dagster_lockstead.LockResource
print(before, DagsterLibraryRegistry.get()["dagster-lockstead"] == dagster_lockstead.__version__)
"""
    assert new_modules(program) == {"False", "True"}


def test_every_public_name_can_be_had() -> None:
    import dagster_lockstead

    for name in dagster_lockstead.__all__:
        assert getattr(dagster_lockstead, name) is not None
    assert set(dagster_lockstead.__all__) == {*dagster_lockstead._PLACES, "__version__"}


def test_a_dagster_that_lacks_a_name_is_named_with_it() -> None:
    program = """
import dagster._core.execution.plan.compute_generator as module
del module.validate_and_coerce_op_result_to_iterator
try:
    from dagster_lockstead import locked
except ImportError as error:
    print("_".join(str(error).split()))
"""
    (line,) = new_modules(program)
    assert line.startswith("dagster-lockstead_knows_Dagster_1.11_to_1.13,_and_this_Dagster_1.")
    assert line.endswith("compute_generator.validate_and_coerce_op_result_to_iterator")


def test_a_dagster_without_location_resources_is_named() -> None:
    program = """
import dagster
del dagster.RepositoryDefinition.get_top_level_resources
try:
    from dagster_lockstead import locked
except ImportError as error:
    print("_".join(str(error).split()))
"""
    (line,) = new_modules(program)
    assert line.endswith("_lacks_RepositoryDefinition.get_top_level_resources")


def test_what_names_a_lock_is_all_that_is_imported_for_it() -> None:
    program = """
import sys
import dagster
before = set(sys.modules)
from dagster_lockstead import LockResource, locked, leased
leased(dagster.in_process_executor, key="k")
print(*sorted(set(sys.modules) - before))
"""
    new = {one for one in new_modules(program) if one.partition(".")[0] not in ("dagster", "lockstead")}
    names = ("compat", "decorator", "errors", "frames", "leasing", "names", "resource", "spec")
    assert new == {"dagster_lockstead", *(f"dagster_lockstead.{name}" for name in names)}
