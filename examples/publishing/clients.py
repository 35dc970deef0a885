"""The real clients apt-get, dnf and rpm, each with its own root below a folder. What to know about them:

* `dnf makecache` succeeds on a bad signature unless `skip_if_unavailable=0`.
* `rpm -K` succeeds on an unsigned package unless `_pkgverify_level` is `all`.
* dnf leaves a gpg-agent behind for every cache whose index it verified; `--dbpath` must be absolute.
* Both want to be root: a user who is not gets a user namespace of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {"apt": ("apt-get", "dpkg", "gpgv"), "yum": ("dnf", "rpm")}

AS_ROOT = ["unshare", "--map-root-user"]


class ClientFailed(Exception):  # noqa: N818 # says what happened
    """A client rejected what it was given; the message is the end of its output."""


def missing(kind: str) -> tuple[str, ...]:
    """Return the missing programs that the client of a repository kind needs."""
    absent = tuple(program for program in PROGRAMS[kind] if shutil.which(program) is None)
    return absent if _can_be_root() else (*absent, "user namespaces")


@dataclass(frozen=True, slots=True)
class AptGet:
    """An apt-get with its own root, one repository and one trusted key."""

    root: Path

    @classmethod
    def prepare(cls, root: Path, url: str, public_key: str) -> AptGet:
        """Create one in a new folder; `url` is the URL of the repository."""
        for folder in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/dpkg/updates", "var/lib/dpkg/info"):
            (root / folder).mkdir(parents=True)
        for folder in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        (root / "etc/apt/key.asc").write_text(public_key)
        (root / "etc/apt/sources.list").write_text(
            f"deb [signed-by={root}/etc/apt/key.asc arch=amd64] {url} stable main\n"
        )
        (root / "etc/apt.conf").write_text(
            f'Dir "{root}";\nDir::State::status "{root}/var/lib/dpkg/status";\n'
            f'Dir::Log "{root}/var/log/apt";\nDir::Etc::main "/dev/null";\nDir::Bin::dpkg "/usr/bin/dpkg";\n'
            'Dir::Bin::Methods "/usr/lib/apt/methods";\n'
            'APT::Architecture "amd64";\nAPT::Architectures { "amd64"; };\nAPT::Sandbox::User "root";\n'
            'Acquire::Retries "0";\nAcquire::Languages "none";\nAPT::Install-Recommends "false";\n'
            f'Dpkg::Options {{ "--root={root}"; "--force-not-root"; "--log=/dev/null"; }};\n'
            'Dpkg::Use-Pty "false";\n'
        )
        return cls(root)

    def update(self) -> None:
        """Fetch the index; apt's warnings (an index that could not be fetched, an old one used) count as failures."""
        said = self._run("update", "-o", "APT::Update::Error-Mode=any")
        if any(line.startswith(("W:", "E:", "Err:", "Ign:")) for line in said.splitlines()):
            raise ClientFailed(said[-2000:])

    def install(self, *packages: str) -> None:
        """Fetch and unpack packages; ClientFailed if one of them is missing afterwards."""
        self._run("install", "-y", *packages)
        gone = set(packages) - set(self.installed())
        if gone:
            raise ClientFailed(f"apt-get says it has installed {', '.join(sorted(gone))}, dpkg does not")

    def available(self) -> dict[str, str]:
        """Return the versions that apt would install, by name."""
        said = self._run("apt-cache", "dumpavail", program="")
        stanzas = [dict(line.split(": ", 1) for line in one.splitlines() if ": " in line) for one in said.split("\n\n")]
        return {one["Package"]: one["Version"] for one in stanzas if "Package" in one}

    def installed(self) -> tuple[str, ...]:
        """Return the names of the packages installed in the root."""
        status = (self.root / "var/lib/dpkg/status").read_text()
        stanzas = [one.splitlines() for one in status.split("\n\n")]
        return tuple(
            line.removeprefix("Package: ")
            for one in stanzas
            if "Status: install ok installed" in one
            for line in one
            if line.startswith("Package: ")
        )

    def _run(self, *arguments: str, program: str = "apt-get") -> str:
        command = [program, *arguments] if program else list(arguments)
        return _run(command, {"APT_CONFIG": f"{self.root}/etc/apt.conf", "DEBIAN_FRONTEND": "noninteractive"})


@dataclass(frozen=True, slots=True)
class Dnf:
    """A dnf with its own root and cache, one repository and one trusted key."""

    root: Path

    @classmethod
    def prepare(cls, root: Path, url: str, public_key: str) -> Dnf:
        """Create one in a new folder; `url` is the URL of the repository, below which there is a mirror list."""
        (root / "etc").mkdir(parents=True)
        (root / "etc/key.asc").write_text(public_key)
        (root / "etc/dnf.conf").write_text(
            f"[main]\ncachedir={root}/cache\npersistdir={root}/persist\nlogdir={root}/log\nreposdir={root}/none\n"
            f"varsdir={root}/none\nplugins=0\nbest=1\nretries=2\nzchunk=0\n"
            f"[published]\nname=published\nmirrorlist={url}/mirrorlist\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=1\n"
            f"gpgkey=file://{root}/etc/key.asc\nskip_if_unavailable=0\nmetadata_expire=0\n"
        )
        return cls(root)

    def makecache(self) -> None:
        """Fetch the index; fails on a bad signature."""
        self._run("makecache")

    def install(self, *packages: str) -> None:
        """Fetch, verify and unpack packages."""
        self._run("install", *packages)
        gone = set(packages) - set(self.installed())
        if gone:
            raise ClientFailed(f"dnf says it has installed {', '.join(sorted(gone))}, rpm does not")

    def available(self) -> tuple[str, ...]:
        """Return name, version and release of all packages in the repository."""
        return tuple(self._run("repoquery", "--quiet", "--queryformat=%{name}-%{version}-%{release}").split())

    def installed(self) -> tuple[str, ...]:
        """Return the names of the packages installed in the root."""
        said = _run(["rpm", "--root", str(self.root / "system"), "-qa", "--queryformat", "%{NAME}\n"])
        return tuple(said.split())

    def _run(self, *arguments: str) -> str:
        root = self.root / "system"
        root.mkdir(exist_ok=True)
        try:
            return _run(
                [
                    "dnf",
                    "-y",
                    f"--config={self.root}/etc/dnf.conf",
                    "--refresh",
                    f"--installroot={root}",
                    "--releasever=1",
                    *arguments,
                ]
            )
        finally:
            for pubring in self.root.rglob("pubring"):
                subprocess.run(
                    ["gpgconf", "--homedir", str(pubring), "--kill", "all"], capture_output=True, check=False
                )


def verify_rpm(path: Path, public_key: str, work: Path) -> None:
    """Verify a package's own signature with the real rpm; `work` is a new folder. ClientFailed if the signature is not
    valid."""
    work.mkdir(parents=True)
    (work / "key.asc").write_text(public_key)
    database = ["--dbpath", str((work / "db").resolve())]
    _run(["rpmkeys", *database, "--import", str(work / "key.asc")])
    _run(["rpmkeys", *database, "--define", "_pkgverify_level all", "-K", str(path.resolve())])


def _can_be_root() -> bool:
    if os.getuid() == 0:
        return True
    try:
        return subprocess.run([*AS_ROOT, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    except OSError:
        return False


def _run(command: Sequence[str], environment: dict[str, str] | None = None, timeout: float = 120.0) -> str:
    as_root = [] if os.getuid() == 0 else AS_ROOT
    done = subprocess.run(
        [*as_root, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
    )
    if done.returncode:
        raise ClientFailed(f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:].strip()}")
    return done.stdout
