"""APT: package files and indexes, with by-hash and both kinds of signature. Its only I/O is reading package files.

dists/stable/InRelease                               signed; names and hashes all indexes
dists/stable/Release, Release.gpg                    the same for old clients
dists/stable/main/binary-amd64/Packages(.gz)         and the same content under by-hash/SHA256/<hash>
pool/main/h/hello/hello_1.0_amd64.deb
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path

from debian.arfile import ArError
from debian.deb822 import Deb822, Packages, Release
from debian.debfile import DebError, DebFile

from examples.publishing.errors import Refused
from examples.publishing.packages import Index, Package
from examples.publishing.signing import Signer, Verifier

SUITE = "dists/stable/"
COMPONENT = "main"


class Apt:
    """The repository format of Debian and its derivatives: one suite, `stable`, with one component, `main`."""

    name = "apt"
    suffix = ".deb"
    revalidated = f"{SUITE}InRelease"

    def inspect(self, path: Path) -> Package:
        """Parse a .deb; Refused if it is not one, or has a name that cannot be part of a URL."""
        content = path.read_bytes()
        try:
            control = DebFile(fileobj=io.BytesIO(content)).debcontrol()
            name, version, arch = control["Package"], control["Version"], control["Architecture"]
        except (ArError, DebError, KeyError, OSError, ValueError) as error:
            raise Refused(f"{path.name} is not a Debian package: {error}") from None
        for text, pattern in ((name, r"[a-z0-9][a-z0-9+.-]*"), (version, r"[A-Za-z0-9.+~:-]+"), (arch, r"[a-z0-9-]+")):
            if not re.fullmatch(pattern, text):
                raise Refused(f"{path.name}: {text!r} is not a name, version or architecture of a Debian package")
        sha256 = hashlib.sha256(content).hexdigest()
        file_name = f"{name}_{version.rpartition(':')[2]}_{arch}.deb"
        place = f"pool/{COMPONENT}/{name[0]}/{name}/{file_name}"
        control["Filename"], control["Size"], control["SHA256"] = place, str(len(content)), sha256
        return Package(name, version, arch, place, len(content), sha256, control.dump())

    def read_index(self, read: Callable[[str], bytes], verifier: Verifier) -> Index:
        """Parse a version's index, starting from `InRelease`; BadSignature, Refused."""
        release = Release(verifier.cleartext(read(f"{SUITE}InRelease"), "InRelease"))
        hashes = {entry["name"]: entry["sha256"] for entry in release["SHA256"]}
        packages: dict[object, Package] = {}
        for name in sorted(hashes):
            if name.endswith("/Packages"):
                content = read(f"{SUITE}{name}")
                if hashlib.sha256(content).hexdigest() != hashes[name]:
                    raise Refused(f"{SUITE}{name} is not what InRelease says")
                for stanza in Packages.iter_paragraphs(content, use_apt_pkg=False):
                    package = _of_stanza(stanza)
                    packages[package.identity] = package
        return Index(tuple(packages.values()), parsedate_to_datetime(release["Date"]))

    def write_index(self, packages: Iterable[Package], signer: Signer, at: datetime) -> Mapping[str, bytes]:
        """Create and sign the indexes of all architectures in use; packages without one (`all`) are in each."""
        ordered = sorted(packages, key=lambda package: package.identity)
        archs = sorted({package.arch for package in ordered} - {"all"} or {"amd64"})
        written: dict[str, bytes] = {}
        listed: list[str] = []
        for arch in archs:
            text = "\n".join(str(package.entry) for package in ordered if package.arch in {arch, "all"}).encode()
            folder = f"{COMPONENT}/binary-{arch}/"
            for name, content in (("Packages", text), ("Packages.gz", gzip.compress(text, mtime=0))):
                digest = hashlib.sha256(content).hexdigest()
                written[f"{SUITE}{folder}{name}"] = content
                written[f"{SUITE}{folder}by-hash/SHA256/{digest}"] = content
                listed.append(f" {digest} {len(content)} {folder}{name}\n")
        release = (
            "Origin: lockstead publishing example\n"
            "Suite: stable\n"
            "Codename: stable\n"
            f"Date: {format_datetime(at)}\n"
            f"Architectures: {' '.join(archs)}\n"
            f"Components: {COMPONENT}\n"
            "Acquire-By-Hash: yes\n"
            f"SHA256:\n{''.join(listed)}"
        ).encode()
        written[f"{SUITE}Release"] = release
        written[f"{SUITE}Release.gpg"] = signer.detached(release)
        written[f"{SUITE}InRelease"] = signer.cleartext(release)
        return written


def _of_stanza(stanza: Deb822) -> Package:
    return Package(
        stanza["Package"],
        stanza["Version"],
        stanza["Architecture"],
        stanza["Filename"],
        int(stanza["Size"]),
        stanza["SHA256"],
        stanza.dump(),
    )
