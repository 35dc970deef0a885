"""The workspace's own rules: pins without addresses, existing commands, working links and examples in the docs.

Checks the files that git has or would add; sends nothing to any network.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.servers.base import free_port

ROOT = Path(__file__).parents[2]
PLACES = ("*.md", "docs/**/*.md", "core/*.md", "packages/*/*.md", "examples/**/*.md")
DOCS = sorted(path for place in PLACES for path in ROOT.glob(place))
REQUIREMENTS = sorted(ROOT.glob("requirements/*.txt"))
# put together here, so that this file does not contain what it looks for
HOSTS = ["pypi" + ".org", "python" + "hosted.org", "deb.debian" + ".org", "npm" + "js.org", "conda" + ".anaconda"]


def git(*words: str) -> subprocess.CompletedProcess[str]:
    # a container's root may read a checkout of another user
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def committed() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    assert listed.returncode == 0, listed.stderr
    names = listed.stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- pins ------------------------------------------------------------------------------------------------------------


def test_no_committed_file_names_a_package_registry() -> None:
    found = [(ids(path), host) for path in committed() for host in HOSTS if host.encode() in path.read_bytes()]
    assert found == []


@pytest.mark.parametrize("path", REQUIREMENTS, ids=ids)
def test_pins_hold_versions_and_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    logical = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).strip().splitlines()
    assert logical
    for line in logical:
        assert re.match(r"[a-z0-9][a-z0-9.-]*==\S+ ", line), line[:60]
        assert "--hash=sha256:" in line, line[:60]
    assert "://" not in text
    assert "-url" not in text
    assert "--find-links" not in text


def test_the_pins_are_there() -> None:
    assert {path.name for path in REQUIREMENTS} >= {"dev.txt", "uv.txt"}


def test_every_tool_that_pyproject_asks_for_is_pinned() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pinned = {line.split("==")[0] for path in REQUIREMENTS for line in path.read_text().splitlines() if "==" in line}
    asked = {one for group in groups.values() for one in group if isinstance(one, str)}
    names = {re.split(r"[<>=~! \[;]", one)[0].lower() for one in asked}
    # our own is built, not pinned
    assert names - pinned == {"lockstead"}


@pytest.mark.parametrize("path", [path for path in REQUIREMENTS if path.name.startswith("airflow-")], ids=ids)
def test_an_airflow_pin_file_pins_the_version_in_its_name(path: Path) -> None:
    version = path.stem.removeprefix("airflow-")
    assert re.search(rf"^apache-airflow=={re.escape(version)}\.\d+ ", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["uv.lock", ".tools/bin/uv", ".venv/bin/python", "build/cache/x"])
def test_what_names_addresses_or_is_made_stays_out_of_git(name: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert git("check-ignore", "--quiet", "--no-index", name).returncode == 0
    assert ROOT / name not in committed()


# --- commands --------------------------------------------------------------------------------------------------------


def make(*words: str) -> subprocess.CompletedProcess[str]:
    # a make that runs the tests hands its flags down, which are not for this one
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@needs_make
def test_contributing_explains_every_make_target() -> None:
    targets = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = re.findall(r"^  make (\S+) ", make("help").stdout, re.MULTILINE)
    assert sorted(shown) == sorted(targets)
    rows = re.findall(r"^\| `make ([a-z-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted([*rows, "help"]) == sorted(shown)


def test_every_place_on_the_map_of_the_project_exists() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("\n\n`")[0]
    missing = []
    for row in re.findall(r"^\| .*$", table, re.MULTILINE):
        first, *others = re.findall(r"`([\w./*-]+(?:/|\.py))`", row) or [""]
        folder = ROOT / (first if first.endswith("/") else Path(first).parent)
        library = ROOT / "core/src/lockstead"
        missing += [name for name in others if not any(any(place.glob(name)) for place in (ROOT, folder, library))]
        missing += [] if (ROOT / first).exists() else [first]
    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "examples/publishing/README.md"])
def test_every_page_says_the_same_of_how_long_the_demo_takes(name: str) -> None:
    said = re.findall(r"(?<!-)\b(\w+) minutes(?: on two cores|; `SEED=`|$)", (ROOT / name).read_text(), re.MULTILINE)
    assert said[0] == "two"
    engine = re.findall(r"(half a|quarter of a) minute", (ROOT / name).read_text())
    assert engine == ["quarter of a"]


@needs_make
@pytest.mark.parametrize("target", re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
def test_every_target_can_be_planned(target: str) -> None:
    planned = make("--dry-run", target)
    assert planned.returncode == 0, planned.stderr


@needs_make
def test_demo_and_sim_pass_their_words_on() -> None:
    demo = make("--dry-run", "demo", "REPO=gs://b/r", "LOCK=gs://b/locks/apt", "PACE=2").stdout
    assert "--repo 'gs://b/r'" in demo
    assert "--lock 'gs://b/locks/apt'" in demo
    assert "--pace '2'" in demo
    assert "scripts/orchestrator prefect 3.8" in demo
    engine = make("--dry-run", "demo", "ONLY=engine", "SEED=3").stdout
    assert "--only 'engine' --seed '3'" in engine
    assert "scripts/orchestrator" not in engine
    on_airflow = make("--dry-run", "demo-airflow", "REPO=gs://b/r", "PACE=2").stdout
    assert "demo-airflow --repo 'gs://b/r' --pace '2'" in " ".join(on_airflow.replace("\\", " ").split())
    on_prefect = make("--dry-run", "demo-prefect", "REPO=gs://b/r", "PACE=2").stdout
    assert "demo-prefect --repo 'gs://b/r' --pace '2'" in " ".join(on_prefect.replace("\\", " ").split())
    on_dagster = make("--dry-run", "demo-dagster", "REPO=gs://b/r", "PACE=2").stdout
    assert "demo-dagster --repo 'gs://b/r' --pace '2'" in " ".join(on_dagster.replace("\\", " ").split())
    sim = make("--dry-run", "sim", "SEED=7", "SEEDS=100").stdout
    assert "--seed '7'" in sim
    assert "--seeds '100'" in sim


@pytest.mark.parametrize("name", [".ci/run", "scripts/setup", "scripts/lock", "scripts/debian-packages"])
def test_scripts_are_executable_and_stop_at_the_first_failure(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()


@pytest.mark.parametrize("failing", ["", "check", "prefect VERSION=3.8"])
def test_ci_runs_every_suite_and_fails_if_one_fails(tmp_path: Path, failing: str) -> None:
    """Without the checks nothing else is worth its time; of the suites each is heard."""
    called = tmp_path / "called"
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\necho "$*" >> {called}\ntest "$*" != "{failing}"\n')
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / ".ci/run"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    calls = called.read_text().splitlines()
    assert (done.returncode != 0) is bool(failing)
    assert calls[:2] == ["debian", "check"]
    assert ("cassandra" in calls) is (failing != "check")
    assert (f"== failed: {failing}" in done.stdout.replace("make ", "")) is bool(failing)


def test_debian_packages_are_installed_only_on_request(tmp_path: Path) -> None:
    """Without CI and INSTALL nothing is installed, not even as root: the command to type is printed."""
    called = tmp_path / "called"
    for name, answer in {"dpkg-query": "", "apt-get": f"echo called >> {called}", "id": "echo 0"}.items():
        fake = tmp_path / name
        fake.write_text(f"#!/bin/sh\n{answer}\n")
        fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "scripts/debian-packages"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "apt-get install --no-install-recommends" in done.stdout
    assert "rpm" in done.stdout
    assert not called.exists()


# --- docs ------------------------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_fences(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCS, ids=ids)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        assert file.exists(), f"{target} in {ids(path)}"
        assert file.is_relative_to(ROOT), f"{target} in {ids(path)} leads out of the project"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{target} in {ids(path)}"


@pytest.mark.parametrize("path", DOCS, ids=ids)
def test_no_line_of_a_sequence_diagram_has_a_semicolon(path: Path) -> None:
    """It ends a statement there, and what follows makes the picture an error message."""
    pictures = re.findall(r"^```mermaid\nsequenceDiagram\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    assert [line for picture in pictures for line in picture.splitlines() if ";" in line] == []


def test_the_index_of_the_docs_names_every_page() -> None:
    missing = sorted(ids(page) for page in ROOT.glob("docs/**/*.md") if page not in named_by_an_index())
    assert missing == [], "add a line for each to docs/README.md, or for a decision to docs/decisions/README.md"


def named_by_an_index() -> set[Path]:
    """Return the index of the docs, and whatever it, or the list of decisions, links to."""
    indexes = [ROOT / "docs/README.md", ROOT / "docs/decisions/README.md"]
    links = [(index, link) for index in indexes for link in re.findall(r"\]\(([^)#\s]+)", index.read_text())]
    return {indexes[0]} | {(index.parent / link).resolve() for index, link in links}


def test_decisions_are_numbered_once() -> None:
    names = [path.name for path in ROOT.glob("docs/decisions/*.md") if path.name != "README.md"]
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in names), names
    numbers = [name[:4] for name in names]
    assert sorted(set(numbers)) == sorted(numbers)


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path)], ids=ids)
def test_every_python_example_is_python(path: Path) -> None:
    for block in blocks(path):
        compile(block, ids(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_frozen_classes_are_frozen_for_the_type_checker(tmp_path: Path) -> None:
    """`lockstead.frozen` leaves it to mypy, so mypy must see it."""
    from mypy import api

    script = tmp_path / "changes.py"
    script.write_text(
        "from lockstead.protocol.commands import Absent, Reply\n"
        "from lockstead.protocol.record import Record\n"
        "reply = Reply(Absent(), 1.0, 2.0)\n"
        "reply.sent_at = 3.0\n"
        "record = Record(holder='me', ttl=300.0)\n"
        "record.closing = True\n"
    )
    told, errors, _code = api.run([str(script), "--strict", "--no-incremental", "--cache-dir", str(tmp_path / "cache")])
    assert errors == ""
    found = [line.split(":")[1] for line in told.splitlines() if "read-only" in line]
    assert found == ["4", "6"], told


def test_a_port_for_a_server_is_never_given_twice() -> None:
    given = [free_port() for _ in range(500)]
    assert len(set(given)) == len(given)


GROUPED = """
import os
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_grouped(number):
    print(os.environ["PYTEST_XDIST_WORKER"], file=open("workers", "a"))
"""


def test_tests_of_one_group_run_in_one_worker(tmp_path: Path) -> None:
    # another server would otherwise be started several times at once, without a notice
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-n", "2", "--dist", "loadgroup"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 8
    assert len(set(workers)) == 1
