"""Reads DAG files within an Airflow, as its DAG processor does, and prints what came of them as JSON.

python reader.py FOLDER BASE [plain]: BASE has DAG files without a lock, so that what those import is not counted. With
`plain` the tasks are left as they are, so that both can be compared.
"""

from __future__ import annotations

import json
import sys
import warnings
from hashlib import md5
from pathlib import Path


def wrappers(task):
    """Return the names of a task's classes until the first that is not ours to make."""
    from airflow_lockstead.compat import MappedOperator
    from airflow_lockstead.wrap import sections_of

    cls = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return {
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "sections": [
            {
                "group": one.group_id,
                "acquire": one.acquire_id,
                "upstream": list(one.upstream),
                "single": one.single,
                "mapped": one.mapped,
                "lock": one.spec.lock or one.spec.key,
            }
            for one in sections_of(task)
        ],
    }


def told(dag, serialized):
    """Return what a DAG is, as what it is stored, and what Airflow's pages read from that."""
    data = serialized.to_dict(dag)
    read_back = serialized.from_dict(serialized.to_dict(dag))
    if "dag" in data:
        data["dag"].pop("fileloc", None)
        data["dag"].pop("relative_fileloc", None)
        data["dag"].pop("_processor_dags_folder", None)
    text = json.dumps(data, sort_keys=True, default=str)
    return {
        "serialized": text,
        "hash": md5(text.encode(), usedforsecurity=False).hexdigest(),
        "tasks": {
            task.task_id: {
                "upstream": sorted(task.upstream_task_ids),
                "downstream": sorted(task.downstream_task_ids),
                "operator": read_back.get_task(task.task_id).operator_name,
                "decorator": getattr(task, "custom_operator_name", None),
                "source": task.get_python_source() if task.task_id == "elsewhere" else None,
                "is_setup": task.is_setup,
                "is_teardown": task.is_teardown,
                "retries": task.retries,
                "timeout": str(task.execution_timeout),
                "weight": task.priority_weight,
                "rule": str(getattr(task, "weight_rule", None)),
                **wrappers(task),
            }
            for task in dag.tasks
        },
    }


def main() -> None:
    """Read, and print."""
    folder, base, is_plain = sys.argv[1], sys.argv[2], "plain" in sys.argv
    seen: list[str] = []
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:
        from airflow.models.dagbag import DagBag
    try:
        from airflow.serialization.serialized_objects import DagSerialization as Serialized
    except ImportError:
        from airflow.serialization.serialized_objects import SerializedDAG as Serialized
    read(DagBag, base)
    # Airflow has put its own in place by now, which writes a log
    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = lambda message, *_, **__: seen.append(str(message))
    before = set(sys.modules)
    if is_plain:
        import airflow_lockstead.decorators as decorators
        import airflow_lockstead.group as group

        group.wrap = decorators.wrap = lambda *_: None
        decorators.wrapped = lambda cls, _section: cls
    bag = read(DagBag, folder)
    modules = sorted(set(sys.modules) - before)
    captured = [line for lines in bag.captured_warnings.values() for line in lines]
    print(
        "\nREAD "
        + json.dumps(
            {
                "errors": {Path(name).stem: text for name, text in bag.import_errors.items()},
                "warnings": seen + captured,
                "modules": modules,
                "dags": {name: told(dag, Serialized) for name, dag in bag.dags.items()},
            }
        )
    )


def read(bag, folder):
    """Read a folder, without Airflow's own examples, which only some versions have here."""
    import inspect

    words = {"include_examples": False} if "include_examples" in inspect.signature(bag.__init__).parameters else {}
    return bag(dag_folder=folder, safe_mode=False, **words)


main()
