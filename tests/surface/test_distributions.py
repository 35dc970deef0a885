"""What is built of the members: one version, a range of the core that fits, and the licence with each."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import lockstead

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
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT / request.param, capture_output=True, text=True, check=False, timeout=120)
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


def test_a_wrapper_takes_the_core_of_its_own_minor_version_and_no_other(built: Built) -> None:
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
