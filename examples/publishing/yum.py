"""YUM: package files and indexes. Its only I/O is reading package files, and a folder in which createrepo_c works.

repodata/repomd.xml           names and hashes all indexes
repodata/repomd.xml.asc       its signature
repodata/<hash>-primary.xml.gz, -filelists, -other
packages/h/hello-1.0-1.x86_64.rpm
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

try:
    import createrepo_c
except ImportError as error:
    raise ImportError(f"createrepo_c needs GLib (Debian: apt-get install libglib2.0-0): {error}") from error

from examples.publishing.errors import Refused
from examples.publishing.packages import Index, Package
from examples.publishing.signing import Signer, Verifier

REPOMD = "repodata/repomd.xml"
SIGNATURE = "repodata/repomd.xml.asc"


class Yum:
    """The repository format of dnf, yum and zypper."""

    name = "yum"
    suffix = ".rpm"
    revalidated = None

    def inspect(self, path: Path) -> Package:
        """Parse an .rpm; Refused if it is not one, or has a name that cannot be part of a URL."""
        try:
            found = createrepo_c.package_from_rpm(str(path), checksum_type=createrepo_c.SHA256, changelog_limit=10)
        except (createrepo_c.CreaterepoCError, OSError) as error:
            raise Refused(f"{path.name} is not an RPM package: {error}") from None
        file_name = f"{found.name}-{found.version}-{found.release}.{found.arch}.rpm"
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+^~-]*", file_name):
            raise Refused(f"{path.name}: {file_name!r} cannot stand in a URL")
        found.location_href = f"packages/{found.name[0].lower()}/{file_name}"
        # The package file's time would differ between machines: this makes the index the same everywhere.
        found.time_file = found.time_build
        return _of_entry(found)

    def read_index(self, read: Callable[[str], bytes], verifier: Verifier) -> Index:
        """Parse a version's index, starting from `repomd.xml`; BadSignature, Refused."""
        repomd = read(REPOMD)
        verifier.detached(repomd, read(SIGNATURE), "repomd.xml")
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "repodata").mkdir()
            (root / REPOMD).write_bytes(repomd)
            parsed = createrepo_c.Repomd(str(root / REPOMD))
            for record in parsed.records:
                content = read(record.location_href)
                if hashlib.sha256(content).hexdigest() != record.checksum:
                    raise Refused(f"{record.location_href} is not what repomd.xml says")
                (root / record.location_href).write_bytes(content)
            entries = createrepo_c.RepositoryReader.from_path(str(root)).iter_packages()
            packages = tuple(_of_entry(entry) for entry in entries)
        return Index(packages, datetime.fromtimestamp(int(parsed.revision), UTC))

    def write_index(self, packages: Iterable[Package], signer: Signer, at: datetime) -> Mapping[str, bytes]:
        """Create and sign the index; gzip, which every client can read."""
        ordered = sorted(packages, key=lambda package: package.identity)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            with createrepo_c.RepositoryWriter(
                folder, num_packages=len(ordered), compression=createrepo_c.GZ_COMPRESSION
            ) as writer:
                for package in ordered:
                    writer.add_pkg(package.entry)
            parsed = createrepo_c.Repomd(str(root / REPOMD))
            parsed.revision = str(int(at.timestamp()))
            written = {path.relative_to(root).as_posix(): path.read_bytes() for path in (root / "repodata").iterdir()}
        written[REPOMD] = parsed.xml_dump().encode()
        written[SIGNATURE] = signer.detached(written[REPOMD])
        return written


def _of_entry(entry: createrepo_c.Package) -> Package:
    epoch = "" if entry.epoch in {None, "", "0"} else f"{entry.epoch}:"
    return Package(
        entry.name,
        f"{epoch}{entry.version}-{entry.release}",
        entry.arch,
        entry.location_href,
        entry.size_package,
        entry.pkgId,
        entry,
    )
