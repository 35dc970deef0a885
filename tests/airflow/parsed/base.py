"""A DAG file without a lock: what it imports is Airflow's own."""

from __future__ import annotations

from datetime import UTC, datetime

try:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup, task, task_group
except ImportError:
    from airflow import DAG
    from airflow.decorators import task, task_group
    from airflow.models import BaseOperator
    from airflow.operators.bash import BashOperator
    from airflow.operators.python import PythonOperator
    from airflow.sensors.base import BaseSensorOperator
    from airflow.utils.task_group import TaskGroup

with DAG("base", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC)):

    @task
    def one(x=1):
        return x

    @task_group
    def group(x):
        one(x)

    group.expand(x=[1])
    with TaskGroup("g"):
        BashOperator(task_id="bash", bash_command="echo {{ run_id }}") >> PythonOperator(
            task_id="py", python_callable=one
        )
    one.override(task_id="mapped").expand(x=[1])

KINDS = (BaseOperator, BaseSensorOperator)
