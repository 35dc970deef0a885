"""What a DAG file with locks is to Airflow: edges, what is stored of it, what it imports, and what is said of mistakes.

No server: each Airflow reads the files in a process of its own, once for all tests, as its DAG processor does.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_lockstead.wiring import ancestors
from tests.airflow.conftest import chosen, side_by_side
from tests.servers.airflow_parts import Version

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent / "parsed"
CLIENTS = (
    "google.cloud.storage",
    "google.api_core",
    "google.auth",
    "grpc",
    "redis",
    "httpx",
    "httpcore",
    "psycopg",
    "asyncpg",
    "kazoo",
    "cassandra",
    "sqlite3",
)

HEAD = """
from datetime import datetime, timedelta
from airflow_lockstead import LockedTaskGroup, locked, locked_task_group
from airflow_lockstead.compat import DAG, BaseOperator, TaskGroup, task

class Nothing(BaseOperator):
    def execute(self, context): ...

def do(name, **words): return Nothing(task_id=name, **words)

URL = "gs://bucket/locks#apt"
with DAG(__name__.split("_")[-1] + "{name}", schedule=None, start_date=datetime(2024, 1, 1)) as dag:
"""

GROUP = "    with LockedTaskGroup('g', {}) as g: do('a')\n"

REFUSED = {
    "no_lock": (GROUP.format("ttl=300"), "LockedTaskGroup 'g': name the lock: give lock="),
    "both": (GROUP.format("lock=URL, key='apt'"), "LockedTaskGroup 'g': name the lock once"),
    "conn_and_lock": (GROUP.format("lock=URL, lockstead_conn_id='c'"), "LockedTaskGroup 'g': name the lock once"),
    "empty_lock": (GROUP.format("lock='  '"), "LockedTaskGroup 'g': lock is empty"),
    "no_text": (GROUP.format("lock=7"), "LockedTaskGroup 'g': lock must be text, not int"),
    "no_scheme": (GROUP.format("lock='apt'"), "LockedTaskGroup 'g': not a store URL: it has no scheme"),
    "unknown_store": (GROUP.format("lock='ftp://host#apt'"), "LockedTaskGroup 'g': no store has the scheme 'ftp'"),
    "password": (GROUP.format("lock='redis://u:p@h/0#a'"), "LockedTaskGroup 'g': lock= has a password in it"),
    "no_key": (GROUP.format("lock='redis://host/0'"), "LockedTaskGroup 'g': the URL names no key"),
    "unknown_setting": (GROUP.format("lock=URL + '?tll=5m'"), "LockedTaskGroup 'g': unknown setting 'tll' in the URL"),
    "memory": (GROUP.format("lock='memory:#apt'"), "LockedTaskGroup 'g': a memory: lock lives in one process"),
    "no_duration": (GROUP.format("lock=URL, ttl='soon'"), "LockedTaskGroup 'g': ttl 'soon' is not a duration"),
    "short_ttl": (GROUP.format("lock=URL, ttl=89"), "LockedTaskGroup 'g': ttl is 89 s; with a keeper it must be at"),
    "short_in_url": (
        GROUP.format("lock=URL + '?ttl=1m'"),
        "LockedTaskGroup 'g': ttl is 60 s; with a keeper it must be",
    ),
    "bad_timeout": (
        GROUP.format("lock=URL, timeout=-1"),
        "LockedTaskGroup 'g': timeout must be a finite, non-negative",
    ),
    "bad_choice": (GROUP.format("lock=URL, on_stale_lease='no'"), "'g': on_stale_lease must be 'fail' or 'reacquire'"),
    "bad_unclean": (GROUP.format("lock=URL, on_unclean='no'"), "'g': on_unclean must be 'warn' or 'fail', not 'no'"),
    "bad_mode": (GROUP.format("lock=URL, mode='Shared'"), "'g': mode must be 'exclusive' or 'shared', not 'Shared'"),
    "no_permits": (GROUP.format("lock=URL, permits=0"), "'g': permits is 0; it must be at least 1 and at most"),
    "permits_text": (GROUP.format("lock=URL, permits='3'"), "'g': permits must be a whole number, not '3'"),
    "permits_mode": (GROUP.format("lock=URL, permits=3, mode='shared'"), "'g': permits and mode exclude each other"),
    "permits_mode_in_url": (
        GROUP.format("lock=URL + '?mode=shared', permits=3"),
        "permits and mode='shared' exclude each other",
    ),
    "permits_unclean": (GROUP.format("lock=URL, permits=3, on_unclean='fail'"), "'g': on_unclean='fail' is for locks"),
    "mode_template": (GROUP.format("lock=URL, mode='{{ ds'"), "'g': mode='{{ ds' is not a valid template"),
    "bad_keeper": (GROUP.format("lock=URL, keeper='no'"), "'g': keeper must be True or False, not 'no'"),
    "bad_labels": (GROUP.format("lock=URL, labels={'a': 1}"), "LockedTaskGroup 'g': labels must map text to text"),
    "bad_key": (GROUP.format("key='a\\nb'"), "LockedTaskGroup 'g': the key 'a\\nb' has control or unprintable"),
    "unknown_word": (GROUP.format("lock=URL, tll=300"), "LockedTaskGroup 'g': unknown argument 'tll'; known are "),
    "template": (GROUP.format("lock='gs://b/{{ ds'"), "'g': lock='gs://b/{{ ds' is not a valid template"),
    "empty_group": (
        "    with LockedTaskGroup('g', lock=URL): pass\n",
        "'g': it has no task; put at least one into its",
    ),
    "only_locks": (
        "    with LockedTaskGroup('g', lock=URL):\n        with LockedTaskGroup('h', lock=URL): pass\n",
        "LockedTaskGroup 'g.h': it has no task",
    ),
    "first_rule": (
        "    with LockedTaskGroup('g', lock=URL): do('a', trigger_rule='all_done')\n",
        "LockedTaskGroup 'g': its first task 'g.a' has the trigger rule 'all_done'",
    ),
    "added_later": (
        GROUP.format("lock=URL") + "    do('b', task_group=g)\n",
        "LockedTaskGroup 'g': 'g.b' was added after the group was closed",
    ),
    "group_added_later": (
        GROUP.format("lock=URL") + "    TaskGroup('b', parent_group=g)\n",
        "b' was added after the group was closed, and no lock would cover it",
    ),
    "entered_again": (
        GROUP.format("lock=URL") + "    with g: do('b')\n",
        "LockedTaskGroup 'g': it is closed",
    ),
    "added_within": (
        "    with LockedTaskGroup('g', lock=URL) as g:\n        with TaskGroup('i') as i: do('a')\n"
        "    with i: do('b')\n",
        "LockedTaskGroup 'g': 'g.i.b' was added after the group was closed",
    ),
    "bare_decorator": (
        "    @locked_task_group\n    def g(): do('a')\n",
        "name the lock: write @locked_task_group(lock=...)",
    ),
    "decorator_word": (
        "    @locked_task_group(lock=URL, tll=3)\n    def g(): do('a')\n    g()\n",
        "LockedTaskGroup 'g': unknown argument 'tll'",
    ),
    "locked_nothing": ("    locked()(do('a'))\n", "name the lock: give lock="),
    "locked_bare": ("    @locked\n    def a(): ...\n", "name the lock: write @locked(lock=...)"),
    "task_locked_twice": ("    @task.locked(URL, lock=URL)\n    def a(): ...\n", "the lock is named twice"),
    "override": (
        "    @locked(URL)\n    def a(): ...\n    a.override(lock='apt')\n",
        "not a store URL: it has no scheme",
    ),
    "locked_word": ("    locked(lock=URL, keeper=True)(do('a'))\n", "unexpected keyword argument 'keeper'"),
    "locked_memory": ("    locked(lock='memory:#a')(do('a'))\n", "a memory: lock lives in one process"),
    "locked_twice": ("    locked(lock=URL)(locked(lock=URL)(do('a')))\n", "the task 'a' has a lock of its own already"),
    "locked_group": ("    locked(lock=URL)(TaskGroup('x'))\n", "@locked is for one task; for a group take"),
    "locked_class": ("    locked(lock=URL)(Nothing)\n", "@locked is for a task or a function, not Nothing"),
    "task_locked": ("    @task.locked(ttl=3)\n    def a(): ...\n", "name the lock: give lock="),
    "locked_template": (
        "    locked(lock='gs://b/{% x')(do('a'))\n",
        "lock='gs://b/{% x' is not a valid template",
    ),
    "lock_words_of_a_task": (
        "    with LockedTaskGroup('g', lock=URL, acquire_args={'timeout': '5m', 'ttl': 90}): do('a')\n",
        "TypeError: g.lock_acquire: say timeout=, ttl= where the lock is named, not here",
    ),
    "lock_words_of_a_release": (
        "    with LockedTaskGroup('g', lock=URL, release_args={'purpose': 'x'}): do('a')\n",
        "TypeError: g.lock_release: say purpose= where the lock is named, not here",
    ),
}
"""Each mistake, and what the line begins with that is said of it."""

WARNED = {
    "idle": (
        "    out = do('out')\n    with LockedTaskGroup('g', lock=URL): do('a') >> do('b') << out\n",
        "LockedTaskGroup 'g': its task 'g.b' waits for 'out' outside the group, so the lock is held idle",
    ),
    "idle_later": (
        "    with LockedTaskGroup('g', lock=URL): b = do('b')\n    do('late') >> b\n",
        "LockedTaskGroup 'g': its task 'g.b' waits for 'late' outside the group",
    ),
    "idle_between": (
        "    with LockedTaskGroup('g', lock=URL):\n        a, b = do('a'), do('b')\n    a >> do('middle') >> b\n",
        "LockedTaskGroup 'g': its task 'g.b' waits for 'middle' outside the group",
    ),
    "late_retry": (
        "    with LockedTaskGroup('g', lock=URL, ttl=60, keeper=False):\n"
        "        do('a', retries=1, retry_delay=timedelta(seconds=61))\n",
        "LockedTaskGroup 'g': its task 'g.a' is retried after 61 s, and without a keeper the lease ends after 60 s",
    ),
}
FINE = {
    "shared_words": "    with LockedTaskGroup('g', lock=URL, default_args={'timeout': 5, 'retries': 1}): do('a')\n",
    "waits": "    out = do('out')\n    with LockedTaskGroup('g', lock=URL) as g: do('a') << out\n    out >> g\n",
    "far": "    o = do('o')\n    with LockedTaskGroup('g', lock=URL) as g: do('a') << o\n    o >> do('p') >> g\n",
    "kept_retry": (
        "    with LockedTaskGroup('g', lock=URL, ttl=90):\n"
        "        do('a', retries=1, retry_delay=timedelta(seconds=91))\n"
    ),
    "no_retry": (
        "    with LockedTaskGroup('g', lock=URL, ttl=60, keeper=False):\n"
        "        do('a', retries=0, retry_delay=timedelta(seconds=61))\n"
    ),
    "positional": (
        "    with LockedTaskGroup('g', URL): do('a')\n"
        "    @locked_task_group(URL)\n    def h(): do('b')\n    h()\n"
        "    assert [one.group_id for one in dag.task_group.get_task_group_dict().values()] == [None, 'g', 'h']\n"
    ),
    "user_block": (
        "    class Own(Exception): ...\n"
        "    try:\n        with LockedTaskGroup('g', lock=URL): raise Own\n    except Own: pass\n"
    ),
    "after_a_mistake": (
        "    try:\n        with LockedTaskGroup('g', lock='gs://b/{{ ds'): ...\n    except ValueError: pass\n"
        "    assert do('outside').task_id == 'outside'\n"
    ),
    "own_tag": (
        "    dag.jinja_environment_kwargs = {'extensions': ['jinja2.ext.do']}\n"
        "    with LockedTaskGroup('g', lock='gs://b/p#{% do [] %}'): do('a')\n"
    ),
}


def read(version: Version, home: Path, folder: Path, *words: str) -> dict[str, Any]:
    """Have an Airflow read a folder of DAG files."""
    base = home / "base"
    base.mkdir(exist_ok=True)
    (base / "base.py").write_text((HERE / "base.py").read_text())
    done = subprocess.run(
        [
            str(version.python),
            "-W",
            "ignore::DeprecationWarning",
            str(HERE / "reader.py"),
            str(folder),
            str(base),
            *words,
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(found[-1].removeprefix("READ "))
    return answer


class Reading:
    """What one version made of all files."""

    def __init__(self, name: str, home: Path) -> None:
        self.version = Version(name)
        good, bad = home / "good", home / "bad"
        for folder in (good, bad):
            folder.mkdir()
        (good / "members.py").write_text((HERE / "members.py").read_text())
        cases = {**REFUSED, **WARNED, **{case: (code, "") for case, code in FINE.items()}}
        for case, (code, _) in cases.items():
            (bad / f"{case}.py").write_text(HEAD.replace("{name}", case) + code)
        self.good = read(self.version, home, good)
        self.again = read(self.version, home, good)
        self.plain = read(self.version, home, good, "plain")
        self.bad = read(self.version, home, bad)

    def task(self, name: str) -> Any:
        """Return a task by "dag:task"."""
        dag_id, _, task_id = name.partition(":")
        return self.good["dags"][dag_id]["tasks"][task_id]


_READ: dict[str, Reading] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every Airflow, or on the one that was asked for."""
    metafunc.parametrize("said", side_by_side(chosen(metafunc.config)), indirect=True, scope="module")


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """Return what one Airflow made of the files, which it reads once."""
    if request.param not in _READ:
        _READ[request.param] = Reading(request.param, tmp_path_factory.mktemp(f"parsed-{request.param}-"))
    return _READ[request.param]


# --- edges ------------------------------------------------------------------------------------------------------------


def test_a_file_with_every_kind_of_member_is_read_without_a_word(said: Reading):
    assert said.good["errors"] == {}
    assert said.good["warnings"] == []
    assert set(said.good["dags"]) == {"members", "mapped_groups", "single", "shapes", "foreign"}


def test_acquire_is_a_setup_and_release_its_teardown(said: Reading):
    for group in ("members:g", "members:g.second", "mapped_groups:within.lk", "mapped_groups:whole", "shapes:line"):
        assert said.task(f"{group}.lock_acquire")["is_setup"]
        release = said.task(f"{group}.lock_release")
        assert release["is_teardown"]
        assert f"{group.partition(':')[2]}.lock_acquire" in release["upstream"]


def test_every_first_task_waits_for_acquire_and_no_other_does(said: Reading):
    below = said.task("shapes:diamond.lock_acquire")["downstream"]
    assert below == ["diamond.a", "diamond.lock_keep", "diamond.lock_release"]
    assert "g.second.lock_acquire" in said.task("members:g.lock_acquire")["downstream"]
    assert "g.second.both" not in said.task("members:g.lock_acquire")["downstream"]


def test_release_is_downstream_of_every_task_without_a_successor(said: Reading):
    assert said.task("shapes:line.lock_release")["upstream"] == ["line.c", "line.lock_acquire"]
    # d is failed as soon as b is, while c still runs
    assert said.task("shapes:diamond.lock_release")["upstream"] == [
        "diamond.b",
        "diamond.c",
        "diamond.d",
        "diamond.lock_acquire",
    ]
    # `last` is failed as soon as one instance of `next` is
    assert "around.many.next" in said.task("mapped_groups:around.lock_release")["upstream"]
    assert "around.many.flow" not in said.task("mapped_groups:around.lock_release")["upstream"]
    assert "g.second.lock_release" in said.task("members:g.lock_release")["upstream"]


def test_the_keeper_stands_beside_the_tasks(said: Reading):
    keeper = said.task("members:g.lock_keep")
    assert keeper["upstream"] == ["g.lock_acquire"]
    assert keeper["downstream"] == []
    assert "g.second.lock_keep" not in said.good["dags"]["members"]["tasks"]


def test_each_keeper_is_queued_before_every_task_of_its_group(said: Reading):
    seen = 0
    for dag in said.good["dags"].values():
        tasks = dag["tasks"]
        downstream = {name: set(task["downstream"]) for name, task in tasks.items()}
        for name in (name for name in tasks if name.endswith("lock_keep")):
            # as Airflow weighs them, if the DAG says nothing else
            heaviest = max(
                sum(tasks[each]["weight"] for each in {member, *ancestors(member, downstream)})
                for member in ancestors(name.replace("lock_keep", "lock_acquire"), downstream) - {name}
            )
            assert tasks[name]["weight"] > heaviest
            assert "absolute" in tasks[name]["rule"].lower()
            seen += 1
    assert seen > 5
    assert said.task("shapes:line.lock_keep")["weight"] < 10


def test_what_follows_a_group_waits_for_its_tasks_alone(said: Reading):
    before, after = said.task("members:g.lock_acquire")["upstream"], said.task("members:after")["upstream"]
    assert before == ["before"]
    assert not [name for name in after if "lock_" in name]
    assert {"g.bash", "g.second.both", "g.inner.defers", "g.mapped"} <= set(after)
    assert said.task("shapes:after_outer")["upstream"] == ["outer.in.only"]


def test_a_default_execution_timeout_does_not_apply_to_our_tasks(said: Reading):
    assert said.task("shapes:line.a")["timeout"] == "0:00:05"
    assert said.task("shapes:line.lock_acquire")["timeout"] == "None"
    assert said.task("shapes:line.lock_keep")["timeout"] == "None"


# --- the swap ---------------------------------------------------------------------------------------------------------


def test_every_member_is_wrapped_and_knows_its_section(said: Reading):
    for name, task in said.good["dags"]["members"]["tasks"].items():
        groups = [section["group"] for section in task["sections"]]
        is_member = name.startswith("g.") and "lock_" not in name
        assert groups == (["g", "g.second"] if name == "g.second.both" else ["g"] if is_member else []), name
    deferring = said.task("members:g.inner.defers")["sections"][0]
    assert deferring["upstream"] == ["g.inner.deep"]
    assert deferring["acquire"] == "g.lock_acquire"
    assert said.task("shapes:diamond.d")["sections"][0]["upstream"] == ["diamond.b", "diamond.c"]


def test_a_section_says_whether_each_map_index_has_its_own_lease(said: Reading):
    assert said.task("mapped_groups:within.lk.flow")["sections"][0]["mapped"]
    assert said.task("mapped_groups:whole.flow")["sections"][0]["mapped"]
    assert not said.task("mapped_groups:whole_again.flow")["sections"][0]["mapped"]
    assert not said.task("mapped_groups:around.many.flow")["sections"][0]["mapped"]
    assert not said.task("members:g.mapped")["sections"][0]["mapped"]


def test_every_form_of_a_single_task_gets_its_own_lock(said: Reading):
    for name, task in said.good["dags"]["single"]["tasks"].items():
        singles = [section["single"] for section in task["sections"]]
        expected = [] if name == "free" or "lock_" in name else [False, True] if name == "both.in" else [True]
        assert singles == expected, name
    assert said.task("single:own")["retries"] == 4
    assert said.task("single:twice")["retries"] == 5


def test_a_lock_may_be_positional_and_replaced_by_override(said: Reading):
    tasks = said.good["dags"]["single"]["tasks"]
    names = ("own", "positional", "positional_classic", "other_lock", "twice", "other_url")
    named = {name: tasks[name]["sections"][0]["lock"] for name in names}
    url = "gs://bucket/locks#apt"
    assert named == {
        **dict.fromkeys(("own", "positional", "positional_classic", "other_url"), url),
        "twice": "apt-{{ ds }}",
        "other_lock": f"{url}-other",
    }


def test_the_classes_are_called_as_before(said: Reading):
    for dag_id, dag in said.good["dags"].items():
        for name, task in dag["tasks"].items():
            assert task["class"] == said.plain["dags"][dag_id]["tasks"][name]["class"]


def test_wrapping_changes_the_serialized_dag_only_in_its_mark(
    said: Reading,
):
    for dag_id in ("members", "mapped_groups", "shapes", "single"):
        good, plain = said.good["dags"][dag_id], said.plain["dags"][dag_id]
        assert [name for name, task in plain["tasks"].items() if task["sections"]] == []
        assert [name for name, task in good["tasks"].items() if task["sections"]]
        if dag_id == "single":
            assert good["serialized"] != plain["serialized"]
            assert unmarked(good["serialized"]) == unmarked(plain["serialized"])
        else:
            assert good["serialized"] == plain["serialized"]


def unmarked(serialized: str) -> Any:
    """Read a stored DAG without the names that Airflow shows in place of the classes of operators."""
    return json.loads(
        serialized, object_hook=lambda said: {name: text for name, text in said.items() if name != "_operator_name"}
    )


def test_airflow_shows_that_an_operator_has_its_own_lock(said: Reading):
    marked = {"@task (locked)", "BashOperator (locked)"}
    for name, task in said.good["dags"]["single"]["tasks"].items():
        is_single = any(section["single"] for section in task["sections"])
        assert (task["operator"] in marked) == is_single, f"{name}: {task['operator']}"
    for dag_id in ("members", "mapped_groups", "shapes"):
        for name, task in said.good["dags"][dag_id]["tasks"].items():
            assert "locked" not in task["operator"], name


def test_another_interpreter_gets_the_undecorated_function(said: Reading):
    task = said.task("foreign:elsewhere")
    assert task["operator"] == "@task.external_python (locked)"
    # by which Airflow knows its own in the source
    assert task["decorator"] == "@task.external_python"
    assert task["source"].startswith("def elsewhere():\n")
    assert "    @locked\n    def one():\n" in task["source"]


def test_the_hash_of_a_dag_is_the_same_at_every_parse(said: Reading):
    # Airflow keeps the template fields of a task for another interpreter in a set, and stores them in any order
    for dag_id, dag in ((dag_id, dag) for dag_id, dag in said.good["dags"].items() if dag_id != "foreign"):
        assert dag["hash"] == said.again["dags"][dag_id]["hash"]


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_parsing_imports_no_client_library_and_no_engine(said: Reading):
    modules = said.good["modules"]
    assert "airflow_lockstead.group" in modules
    clients = [name for name in modules if name in CLIENTS or name.startswith(tuple(f"{one}." for one in CLIENTS))]
    assert clients == []
    engine = {name for name in modules if name.startswith("lockstead.runtime.")}
    # what says whose lease is current, and what a fork inherits: two small files that open nothing
    assert engine <= {"lockstead.runtime.context", "lockstead.runtime.fork"}
    runs = ("body", "connection", "hook", "triggers", "watchdog", "acquiring", "errors", "sensors", "tickets")
    assert [name for name in modules if name in {f"airflow_lockstead.{one}" for one in runs}] == []


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_refused_in_one_line(said: Reading, case: str):
    error = said.bad["errors"].get(case)
    assert error is not None, f"{case} was not refused"
    last = error.strip().splitlines()[-1]
    assert REFUSED[case][1] in last


@pytest.mark.parametrize("case", WARNED)
def test_a_doubtful_group_draws_a_warning_that_names_the_task(said: Reading, case: str):
    assert case not in said.bad["errors"]
    assert [line for line in said.bad["warnings"] if WARNED[case][1] in line]


def test_nothing_else_is_refused_or_warned_of(said: Reading):
    assert set(said.bad["errors"]) == set(REFUSED)
    # Airflow keeps what a file warned of while it was run, and says it again
    lines = {line[line.index("LockedTaskGroup ") :] for line in said.bad["warnings"] if "LockedTaskGroup " in line}
    assert len(lines) == len(WARNED), "\n".join(lines)
