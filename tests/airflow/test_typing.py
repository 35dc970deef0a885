"""A function under `@locked` keeps its arguments for the type checker."""

from __future__ import annotations

from pathlib import Path

SCRIPT = """
from airflow_lockstead import locked

@locked(lock="gs://bucket/locks#apt")
def publish(repository: str, *, number: int = 1) -> bool:
    return True

publish("main", number=2)
publish.override(task_id="other")("main")
publish.function("main").real
publish(1)
publish("main", numbr=2)
publish.function("main").nonsense
"""


def test_a_type_checker_sees_a_wrong_argument_of_a_locked_task(tmp_path: Path) -> None:
    from mypy import api

    script = tmp_path / "dag.py"
    script.write_text(SCRIPT)
    told, errors, _code = api.run([str(script), "--strict", "--no-incremental", "--cache-dir", str(tmp_path / "cache")])
    assert errors == ""
    found = {line.split(":")[1] for line in told.splitlines() if str(script) in line and " error: " in line}
    assert found == {"11", "12", "13"}, told
