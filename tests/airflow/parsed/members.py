"""A DAG file with every kind of member that a locked group can have."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from airflow_lockstead import LockedTaskGroup, locked, locked_task_group
from airflow_lockstead.compat import DAG, BaseOperator, BaseSensorOperator, TaskGroup, task

try:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import task_group
except ImportError:
    from airflow.decorators import task_group
    from airflow.operators.bash import BashOperator
    from airflow.operators.empty import EmptyOperator
    from airflow.operators.python import PythonOperator

URL = "gs://bucket/locks#apt"


class Defers(BaseOperator):
    def execute(self, context):
        raise NotImplementedError

    def resumed(self, context, event):
        raise NotImplementedError


class Looks(BaseSensorOperator):
    def poke(self, context):
        raise NotImplementedError


@task
def flow(x=1):
    return [x]


@task.branch
def choose():
    return None


with DAG("members", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):
    with LockedTaskGroup("g", lock=URL) as g:
        BashOperator(task_id="bash", bash_command="echo {{ run_id }}")
        PythonOperator(task_id="py", python_callable=print)
        EmptyOperator(task_id="empty")
        flow.override(task_id="each").expand(x=flow(1))
        flow.partial().expand_kwargs([{"x": 1}, {"x": 2}])
        BashOperator.partial(task_id="mapped").expand(bash_command=["true", "false"])
        PythonOperator.partial(task_id="kw", python_callable=print).expand_kwargs([{"op_args": [1]}])
        choose() >> [BashOperator(task_id="chosen", bash_command="a"), BashOperator(task_id="other", bash_command="b")]
        with TaskGroup("inner"):
            BashOperator(task_id="deep", bash_command="echo deep") >> Defers(task_id="defers")
        with LockedTaskGroup("second", lock=URL, keeper=False):
            BashOperator(task_id="both", bash_command="echo both")
        Looks(task_id="looks", mode="reschedule")
    BashOperator(task_id="before", bash_command="true") >> g >> BashOperator(task_id="after", bash_command="true")

with DAG("mapped_groups", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):

    @task_group
    def within(x):
        with LockedTaskGroup("lk", lock=URL):
            flow(x)

    within.expand(x=[5, 6])

    @locked_task_group(lock=URL + "-{{ ti.map_index }}", prefix_group_id=True)
    def whole(x):
        """Say what it is."""
        flow(x)

    whole.expand(x=[7, 8])
    whole.override(group_id="whole_again")(9)

    @task_group
    def many(x):
        flow(x) >> flow.override(task_id="next")(x)

    with LockedTaskGroup("around", lock=URL):
        many.expand(x=[1]) >> flow.override(task_id="last")()

with DAG("single", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):

    @task.locked(lock=URL, ttl="1m", retries=4)
    def own(x=2):
        return x

    @locked(lock=URL)
    def plain():
        return 1

    @locked(key="apt-{{ ds }}")
    @task(retries=5)
    def twice():
        return 1

    @task.locked(URL, ttl="1m")
    def positional():
        return 1

    positional()
    locked(URL)(BashOperator(task_id="positional_classic", bash_command="true"))
    own.override(task_id="other_lock", lock=f"{URL}-other", ttl="2m")()
    twice.override(task_id="other_url", lock=URL)()
    own()
    own.override(task_id="own_mapped").expand(x=[1, 2])
    plain()
    twice()
    locked(lock=URL)(BashOperator(task_id="classic", bash_command="true"))
    locked(lock=URL)(BashOperator.partial(task_id="classics").expand(bash_command=["true"]))
    locked(lock=URL)(flow.override(task_id="called")())
    flow.override(task_id="free")()
    with LockedTaskGroup("both", lock=URL):
        locked(lock=URL + "2")(BashOperator(task_id="in", bash_command="true"))

with DAG("foreign", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):

    @locked(lock=f"{URL}-(1)", ttl="1m")
    @task.external_python(python=sys.executable)
    def elsewhere():
        locked = staticmethod  # the body's own: it stays

        @locked
        def one():
            return 1

        return one()

    elsewhere()

with DAG("shapes", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):

    def do(name, **words):
        return BashOperator(task_id=name, bash_command="true", **words)

    with LockedTaskGroup("line", lock=URL, default_args={"execution_timeout": timedelta(seconds=5), "retries": 2}):
        do("a") >> do("b") >> do("c")
    with LockedTaskGroup("diamond", lock=URL) as diamond:
        do("a") >> [do("b"), do("c")] >> do("d")
    with TaskGroup("outer") as outer, LockedTaskGroup("in", lock=URL):
        do("only")
    outer >> do("after_outer")
    with LockedTaskGroup("named", key="apt", lockstead_conn_id="elsewhere", purpose="{{ dag.dag_id }}"):
        do("a").as_setup() >> do("b") >> do("c").as_teardown()
