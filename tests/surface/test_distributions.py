"""The built distributions: one version, the right range of the core, the licence, and what each extra installs.

An extra is shown in an empty environment, made of the wheel and of the packages in .venv that it requires. Nothing
is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import textwrap
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import lockstead
from tests.inventory import STORES

# a distribution is built once, and not by each worker
pytestmark = pytest.mark.xdist_group("distributions")

ROOT = Path(__file__).parents[2]
MEMBERS = ["core", *sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("packages/*/pyproject.toml"))]


@dataclass(frozen=True, slots=True)
class Built:
    """A member's wheel and source distribution, and what the wheel says of itself."""

    wheel: Path
    source: Path
    said: Message

    def needs(self, name: str) -> list[Requirement]:
        found = [Requirement(line) for line in self.said.get_all("Requires-Dist", [])]
        return [one for one in found if one.name == name]


@pytest.fixture(scope="module", params=MEMBERS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(request.param, tmp_path_factory.mktemp("dist"))


def build(member: str, folder: Path) -> Built:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT / member, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        said = Parser().parsestr(files.read(name).decode())
    return Built(wheel, source, said)


def test_every_member_has_the_version_of_the_core(built: Built) -> None:
    assert built.said["Version"] == lockstead.__version__


def test_each_says_where_it_comes_from(built: Built) -> None:
    """By the placeholder that CONTRIBUTING names, until the owner has given an address."""
    urls = dict(line.split(", ", 1) for line in built.said.get_all("Project-URL", []))
    assert list(urls) == ["Homepage", "Documentation", "Changelog", "Issues"]
    assert f"`{urls['Homepage']}` stands for it" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
    page = urls["Documentation"].partition("/blob/main/")[2]
    assert (ROOT / page).is_file()


def test_a_wrapper_requires_the_core_of_its_minor_version(built: Built) -> None:
    needs, version = built.needs("lockstead"), Version(lockstead.__version__)
    assert bool(needs) is (built.said["Name"] not in ("lockstead", "lockstead-gcs-emulator"))
    for one in needs:
        assert one.specifier.contains(version), str(one)
        # it imports what may change with the next one
        assert one.specifier.contains(f"{version.major}.{version.minor}.{version.micro + 1}"), str(one)
        assert not one.specifier.contains(f"{version.major}.{version.minor + 1}.0"), str(one)


def test_the_licence_is_in_the_wheel_and_in_the_source(built: Built) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    assert built.said.get_all("License-File") == ["LICENSE"]
    with ZipFile(built.wheel) as files:
        assert [files.read(name) for name in files.namelist() if name.endswith("/LICENSE")] == [licence]
    with tarfile.open(built.source) as files:
        (found,) = [one for one in files if one.name.endswith("/LICENSE")]
        content = files.extractfile(found)
        assert content is not None
        assert content.read() == licence


def test_a_wrapper_requires_no_client_library_of_a_store(built: Built) -> None:
    """`pip install airflow-provider-lockstead 'lockstead[redis]'`: extras of stores are the core's alone."""
    if built.said["Name"] == "lockstead":
        pytest.skip("the core has them")
    assert built.said.get_all("Provides-Extra") is None
    assert {extra for one in built.needs("lockstead") for extra in one.extras} <= {"cli", "times"}


# --- what an extra brings -------------------------------------------------------------------------------------------

OTHERS: Final = ("dashboard", "otel", "prometheus", "reaper")
"""Extras that are not for a store."""

EXTRAS: Final = {
    known.extra: (known.url.format(who="", port=1) + "#k", known) for known in STORES.values() if known.extra
}
"""Extra to the URL of a lock at a port without a server, and the tests' entry of its store."""

MISSING = r"needs?( its client librar(y|ies)\b.*| \S+( or \S+)?): pip install "

ACQUIRED = """
import sys
import lockstead
try:
    lockstead.Lock({url!r}, ttl="8s").try_acquire()
    print("acquired")
except lockstead.StoreError as error:
    print(error)
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build("core", tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def unpacked(core: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the core's wheel."""
    folder = tmp_path_factory.mktemp("unpacked")
    with ZipFile(core.wheel) as files:
        files.extractall(folder)
    return folder


@pytest.fixture
def installed(core: Built, unpacked: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return what installs the core with extras into an empty environment, and returns its folder of commands."""

    def install(*extras: str) -> Path:
        folder = tmp_path / "env"
        venv.create(folder, symlinks=True)
        (modules,) = folder.glob("lib/python*/site-packages")
        link(modules, unpacked, [path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()])
        (entry,) = unpacked.glob("*.dist-info/entry_points.txt")
        module, function = re.findall(r"^lockstead = (\S+):(\S+)$", entry.read_text("utf-8"), re.MULTILINE)[0]
        command = folder / "bin/lockstead"
        command.write_text(f"#!{folder}/bin/python\nfrom {module} import {function}\n{function}()\n")
        command.chmod(0o755)
        for package in brought([Requirement(one) for one in core.said.get_all("Requires-Dist", [])], extras):
            link(modules, Path(str(package.locate_file(""))), [Path(str(one)) for one in package.files or []])
        return folder / "bin"

    return install


def brought(needs: list[Requirement], extras: tuple[str, ...]) -> list[Distribution]:
    """Return what a package with these extras brings, as it is installed here, and what that brings."""
    found: dict[tuple[str, str], Distribution] = {}
    asked = list(wanted(needs, extras))
    while asked:
        need = asked.pop()
        name = canonicalize_name(need.name)
        for extra in ("", *need.extras):
            if (name, extra) not in found:
                here = found[name, extra] = distribution(need.name)
                assert need.specifier.contains(here.version, prereleases=True), need
                asked += wanted([Requirement(one) for one in here.requires or []], (extra,))
    return list({one.name: one for one in found.values()}.values())


def wanted(needs: list[Requirement], extras: tuple[str, ...]) -> Iterator[Requirement]:
    for need in needs:
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            yield need


def link(modules: Path, there: Path, files: list[Path]) -> None:
    """Link files of a folder of modules into another, with the folders of their byte code: it is made once."""
    for file in files:
        # commands lie outside
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        place = modules / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(there / file)
        cache = place.with_name("__pycache__")
        if file.suffix == ".py" and not cache.exists():
            known = Path(cache_from_source(str(there / file))).parent
            known.mkdir(parents=True, exist_ok=True)
            cache.symlink_to(known)


def run(command: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}
    return subprocess.run(
        [command, *words], env=environment, cwd=command.parent, capture_output=True, text=True, check=False, timeout=60
    )


def python(commands: Path, program: str) -> str:
    done = run(commands / "python", "-c", textwrap.dedent(program))
    assert done.returncode == 0, done.stderr
    return done.stdout


HELD = """
import asyncio
import sys
import lockstead

async def awaited(url):
    async with lockstead.AsyncLock(url).hold():
        pass

for url in ("memory:#k", "sqlite:///locks.db#k"):
    lock = lockstead.Lock(url, ttl="PT5M")
    with lock.hold() as lease:
        assert lock.settings.ttl == 300 and lease.sequencer().token
        seen = lock.inspect()
    asyncio.run(awaited(url))
"""


def test_the_core_alone_holds_locks_with_the_standard_library(installed: Callable[..., Path]) -> None:
    loaded = python(installed(), HELD + "print(*{name.partition('.')[0] for name in sys.modules})")
    assert {name for name in loaded.split() if name not in sys.stdlib_module_names and name[0] != "_"} == {"lockstead"}


def test_without_extras_command_and_times_say_what_to_install(installed: Callable[..., Path]) -> None:
    commands = installed()
    done = run(commands / "lockstead", "--version")
    said = "lockstead: the command line needs click and rich: pip install 'lockstead[cli]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (69, "", said)
    done = run(commands / "python", "-c", HELD + "seen.acquired_at")
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: times are pendulum datetimes: pip install 'lockstead[times]', "
        "or use the attribute that ends in _epoch"
    )


def test_with_cli_the_command_runs_with_times_pendulum_works(installed: Callable[..., Path]) -> None:
    commands = installed("cli", "times")
    done = run(commands / "lockstead", "run", "sqlite:///locks.db#k", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert python(commands, HELD + "print(seen.acquired_at.diff_for_humans())").endswith("ago\n")


def test_every_extra_is_in_the_wheel(core: Built) -> None:
    assert set(core.said.get_all("Provides-Extra", [])) == {"all", "cli", "times", *OTHERS, *EXTRAS}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_the_client_library_of_its_store(extra: str, installed: Callable[..., Path]) -> None:
    url, known = EXTRAS[extra]
    commands = installed(extra)
    said, loaded = python(commands, ACQUIRED.format(url=url)).splitlines()
    assert known.module in loaded.split()
    assert not re.search(MISSING, said)
    if extra == "gcs":
        python(commands, "import google.cloud.storage")  # which needs credentials alone


def test_without_their_extras_stores_say_what_to_install(installed: Callable[..., Path]) -> None:
    commands = installed()
    for url, known in EXTRAS.values():
        said, loaded = python(commands, ACQUIRED.format(url=url)).splitlines()
        assert re.search(MISSING, said), said
        assert known.module not in loaded.split()
