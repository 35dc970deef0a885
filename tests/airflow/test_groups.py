"""Locked groups run on a real Airflow as they were drawn: every kind of member works under the lease of its group."""

from __future__ import annotations

import re

import pytest

import lockstead
from tests.airflow.test_body import NEWEST
from tests.servers.airflow import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(420)]

HEAD = """
from datetime import UTC, datetime, timedelta
from airflow_lockstead import LockedTaskGroup, locked, locked_task_group
from airflow_lockstead.compat import DAG, BaseOperator, BaseSensorOperator, TaskGroup, task
try:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
    from airflow.sdk import task_group
except ImportError:
    from airflow.decorators import task_group
    from airflow.operators.bash import BashOperator
    from airflow.operators.empty import EmptyOperator
    from airflow.triggers.temporal import TimeDeltaTrigger
import lockstead as core

URL = "{url}"
# Airflow fails what it resumes soon after it deferred, and most of all when it is busy
AGAIN = dict(retries=20, retry_delay=timedelta(seconds=1))

def tell(lockstead):
    lease = core.current_lease()
    assert lease is not None and lease.is_held
    return lockstead.token

class Defers(BaseOperator):
    def execute(self, context):
        print("token", tell(context["lockstead"]))
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=1)), method_name="resumed")
    def resumed(self, context, event):
        print("resumed with token", tell(context["lockstead"]))

class Looks(BaseSensorOperator):
    def poke(self, context):
        print("token", tell(context["lockstead"]))
        return context["ti"].start_date.timestamp() - context["dag_run"].start_date.timestamp() > 4

with DAG("{dag}", {words}schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:
    @task
    def flow(x=1, lockstead=None):
        print("token", tell(lockstead))
        return [x, x + 1]

    @task.branch
    def nowhere():
        return None

"""

MEMBERS = """
    with LockedTaskGroup("g", lock=URL, ttl="90s"):
        BashOperator(task_id="bash", bash_command="echo token {{ lockstead.token }}")
        EmptyOperator(task_id="empty")
        flow.override(task_id="each").expand(x=flow(1))
        BashOperator.partial(task_id="mapped").expand(bash_command=["echo token {{ lockstead.token }}", "echo b"])
        with TaskGroup("inner"):
            Defers(task_id="defers", **AGAIN)
        with LockedTaskGroup("second", lock=URL + "-2", ttl="90s"):
            flow.override(task_id="both")()
        Looks(task_id="looks", mode="reschedule", poke_interval=2, **AGAIN)
        nowhere() >> EmptyOperator(task_id="skipped")
"""

BRANCHES = """
    @task.branch
    def outside():
        return "chosen"

    chosen, other = EmptyOperator(task_id="chosen"), EmptyOperator(task_id="other")
    with LockedTaskGroup("end", lock=URL, ttl="90s"):
        flow() >> nowhere()
    with LockedTaskGroup("out", lock=URL + "-2", ttl="90s"):
        flow() >> (last := outside())
    last >> [chosen, other]
"""

SINGLES = """
    @task.locked(lock=URL, ttl="60s")
    def own(x=1, lockstead=None):
        print("token", tell(lockstead))

    own.override(**AGAIN).expand(x=[1, 2, 3])
    classic = BashOperator(task_id="classic", bash_command="echo token {{ lockstead.token }}", **AGAIN)
    locked(lock=URL, ttl="60s")(classic)

    @locked_task_group(lock=URL + "-{{ ti.map_index }}", ttl="90s")
    def whole(x):
        flow(x)

    whole.expand(x=[7, 8])
"""

TESTED = """
    with LockedTaskGroup("g", lock=URL, ttl="90s"):
        flow.override(task_id="each").expand(x=flow(1))
        Defers(task_id="defers")
        locked(lock=URL + "-2")(BashOperator(task_id="own", bash_command="echo token {{ lockstead.token }}"))

if __name__ == "__main__":
    run = dag.test()
    print("ENDED", getattr(run.state, "value", run.state))
"""


def put(airflow: Airflow, name: str, text: str, words: str = "") -> str:
    """Put a DAG there; the URL of its lock. words are the DAG's, besides the usual."""
    url = f"sqlite:///{airflow.home / 'locks.db'}#{name}"
    airflow.put(name, HEAD.replace("{url}", url).replace("{dag}", name).replace("{words}", words) + text)
    return url


class Ran:
    """Runs of all DAGs of this file, at the same time; what each ended with."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        files = {"kinds": MEMBERS, "singles": SINGLES}
        if airflow.version.name == NEWEST:
            files["branches"] = BRANCHES
        self.urls = {name: put(airflow, name, text) for name, text in files.items()}
        self.runs = {name: airflow.trigger(name) for name in files}
        self.ended = {name: airflow.finished(run, 300) for name, run in self.runs.items()}

    def states(self, name: str) -> dict[str, set[str | None]]:
        """Return the states that the instances of each task ended in."""
        found: dict[str, set[str | None]] = {}
        for one in self.airflow.tasks(self.runs[name]):
            found.setdefault(one.task_id, set()).add(one.state)
        return found

    def log(self, name: str, task_id: str, map_index: int = -1) -> str:
        """Return a task's log."""
        return self.airflow.task_log(self.runs[name], task_id, map_index=map_index)

    def said(self, name: str, task_id: str, map_index: int = -1) -> str:
        """Return what a task said in all its attempts, of which it has more than it needs."""
        return "".join(
            self.airflow.task_log(self.runs[name], task_id, attempt=number, map_index=map_index)
            for number in range(1, 22)
        )

    def tokens(self, name: str, task_id: str, map_index: int = -1) -> set[int]:
        """Return the tokens that a task has told in all its attempts."""
        return told(self.said(name, task_id, map_index))

    def token(self, name: str, task_id: str, map_index: int = -1) -> int:
        """Return only token that the last attempt told which told any: a deferred task may be failed and retried."""
        attempts = [
            self.airflow.task_log(self.runs[name], task_id, attempt=n, map_index=map_index) for n in range(1, 22)
        ]
        [token] = [told(said) for said in attempts if told(said)][-1]
        return token

    def granted(self, name: str, task_id: str, map_index: int = -1) -> int:
        """Return the token that the last attempt of an acquire was granted."""
        found = re.findall(r"acquired '[^']+' with token (\d+) after", self.said(name, task_id, map_index))
        return int(found[-1])

    def held(self) -> list[str]:
        """Return the locks that are still held."""
        with lockstead.connect(f"sqlite:///{self.airflow.home / 'locks.db'}") as client:
            return [one.key for one in client.list() if one.key.partition("-")[0] in self.runs]


def told(log: str) -> set[int]:
    """Return the tokens that a task told: what a line of its log begins with, behind time and place."""
    return {int(token) for token in re.findall(r'(?:"event": ?"| - )(?:resumed with )?token (\d+)', log)}


@pytest.fixture(scope="module")
def ran(airflow: Airflow) -> Ran:
    """Run all once."""
    return Ran(airflow)


def unsuccessful(states: dict[str, set[str | None]]) -> dict[str, set[str | None]]:
    return {name: state for name, state in states.items() if state != {"success"}}


def test_every_kind_of_member_works_under_the_lease_of_its_group(ran: Ran):
    assert unsuccessful(ran.states("kinds")) == {"g.skipped": {"skipped"}}
    assert ran.ended["kinds"] == "success"
    assert len([one for one in ran.airflow.tasks(ran.runs["kinds"]) if one.task_id == "g.each"]) == 2
    one_lease = [("g.bash", -1), ("g.flow", -1), ("g.each", 0), ("g.each", 1), ("g.mapped", 0)]
    [token] = {ran.token("kinds", task_id, index) for task_id, index in one_lease}
    assert ran.tokens("kinds", "g.inner.defers") == {token}
    assert ran.tokens("kinds", "g.looks") == {token}
    # of its own lock, within the other
    assert ran.token("kinds", "g.second.both") == ran.granted("kinds", "g.second.lock_acquire")
    assert token == ran.granted("kinds", "g.lock_acquire")


@pytest.mark.usefixtures("newest")
def test_a_branch_at_the_end_of_a_group_never_skips_the_release(ran: Ran):
    states = ran.states("branches")
    assert unsuccessful(states) == {"other": {"skipped"}}
    assert {"end.lock_release", "out.lock_release", "end.lock_keep", "chosen"} <= set(states)
    assert ran.ended["branches"] == "success"


def test_single_tasks_and_mapped_group_indexes_acquire_apart(ran: Ran):
    assert unsuccessful(ran.states("singles")) == {}
    # all of one lock: a lease for each
    own = [ran.token("singles", "own", index) for index in range(3)]
    assert len({*own, ran.token("singles", "classic")}) == 4
    for index in range(2):
        granted = ran.granted("singles", "whole.lock_acquire", index)
        assert ran.token("singles", "whole.flow", index) == granted
        assert f"acquired 'singles-{index}' with token {granted} " in ran.log("singles", "whole.lock_acquire", index)


def test_no_run_leaves_a_lock_behind(ran: Ran):
    assert ran.held() == []


@pytest.mark.usefixtures("newest")
def test_dag_test_ends_without_a_triggerer_and_frees_the_lock(airflow: Airflow):
    # paused: or the scheduler runs the tasks of that run as well
    url = put(airflow, "tested", TESTED, "is_paused_upon_creation=True, ")
    said = airflow.python_of(str(airflow.home / "dags" / "tested.py"))
    assert "ENDED success" in said
    assert lockstead.Lock(url).inspect() is None
    assert lockstead.Lock(f"{url}-2").inspect() is None
