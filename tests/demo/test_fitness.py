"""What cannot be played is said in one line, before anything starts, and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import lockstead
from examples.publishing.demo.fitness import Unfit, check_fences, check_shared
from tests.servers.demos import ROOT
from tests.servers.marked import carriers

DEMO = [sys.executable, "-m", "examples.publishing", "demo"]
HERE = Path(sys.executable)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "sqlite:///locks.db", "gs://b/locks", "etcd://127.0.0.1/x"])
def test_a_store_that_fences_is_taken_without_asking_it(url: str) -> None:
    check_fences(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redlock://user:secret@a,b,c", "redlock gives no fencing tokens"),
        ("nonsense", "not a store URL"),
        ("unheard://of", "no store has the scheme"),
        ("sqlite:///locks.db#apt", "remove '#' and what follows"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_without_a_secret(url: str, why: str) -> None:
    with pytest.raises(Unfit, match=r"^LOCK=") as refused:
        check_fences(url)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_store_that_another_process_sees_is_shared_and_left_free(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    check_shared(url, [HERE, HERE])
    assert lockstead.connect(url).list() == []


def test_memory_is_seen_by_nobody_else() -> None:
    with pytest.raises(Unfit, match=r"LOCK=memory:.* is not seen by another, of .*one process"):
        check_shared("memory:", [HERE])


def test_an_environment_without_the_library_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec "{HERE}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(Unfit, match=f"asked from {bare}: .*No module named 'lockstead'") as refused:
        check_shared(f"sqlite:///{tmp_path}/locks.db", [HERE, bare])
    assert "\n" not in str(refused.value)


def test_a_store_that_does_not_answer_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"^LOCK=sqlite") as refused:
        check_shared(f"sqlite:///{tmp_path}/no/such/folder/locks.db", [HERE])
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--lock", "redlock://a,b,c"], "redlock gives no fencing tokens"),
        (["--lock", "redlock://a,b,c", "--only", "engine"], "redlock gives no fencing tokens"),
        (["--lock", "memory:", "--only", "engine"], "is not seen by another"),
        (["--record", "/no/such/folder/record.txt"], "there is no folder /no/such/folder"),
        (["--diagram", "course.txt"], "a drawing ends in .svg"),
        (["--record", "record.txt", "--only", "engine"], "are for the demo of four"),
        (["--repo", "http://bucket"], "http://bucket"),
        (["--seed", "first"], "first"),
        (["--only", "airflow"], "airflow"),
    ],
)
def test_one_bad_word_is_one_line_and_leaves_nothing(words: list[str], why: str, tmp_path: Path) -> None:
    mark, before = f"LOCKSTEAD_FITNESS={uuid.uuid4().hex}", set((ROOT / "build" / "demo").glob("*"))
    inherited = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    done = subprocess.run(
        [*DEMO, *words],
        env=inherited | dict([mark.split("=")], TMPDIR=str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, done.stderr
    assert why in errors[0]
    assert "Traceback" not in done.stderr
    assert not carriers(mark)
    assert not list(tmp_path.iterdir())
    assert set((ROOT / "build" / "demo").glob("*")) <= before
