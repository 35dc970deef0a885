"""Judge a published repository from outside: index, pool, what publishers reported, and all signatures must agree.

It shares nothing with the publishers except how it reads objects: it has its own parsers, another OpenPGP
implementation, and reads and hashes every byte of every package. It must not import the formats, the plan or the
pipeline.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from openpgp.composed import CleartextSignedMessage, DetachedSignature, SignedPublicKey

from examples.publishing.bucket import Bucket
from examples.publishing.errors import NotFound

REPO = "{http://linux.duke.edu/metadata/repo}"
COMMON = "{http://linux.duke.edu/metadata/common}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an index or the ledger: a package and the SHA-256 of its file."""

    name: str
    version: str
    arch: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.arch})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. lost: packages that were reported as published and are missing. problems: everything else that is
    wrong."""

    version: int
    entries: frozenset[Entry]
    lost: tuple[Entry, ...]
    problems: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Return whether nothing is wrong and nothing was lost."""
        return not self.lost and not self.problems

    def __str__(self) -> str:
        if self.is_good:
            return f"version {self.version}: {len(self.entries)} packages, all whole, signed and accounted for"
        wrong = [f"{entry} was reported as published and is gone" for entry in self.lost]
        return f"version {self.version}: " + "; ".join([*wrong, *self.problems])


class Wrong(Exception):  # noqa: N818 # says what happened
    """A problem that a reader would meet."""


def judge(
    bucket: Bucket,
    prefix: str,
    kind: str,
    public_key: str,
    reported: Iterable[Entry] = (),
    attempted: Iterable[Entry] | None = None,
    is_sealed: bool = True,
) -> Verdict:
    """Judge the repository under a prefix (`.../apt/`), of a kind (`apt`, `yum`).

    reported: packages that publishers reported as published. attempted: all packages that may be there; None: any.
    is_sealed: every version that a reader may still use must be complete as well.
    """
    problems: list[str] = []
    try:
        text = bucket.read(f"{prefix}latest_version.txt").decode()
    except NotFound:
        found = [one.name for one in bucket.list(f"{prefix}versions/")]
        text, problems = "0", ["there are versions and no pointer"] if found else []
    if not re.fullmatch(r"0|[1-9][0-9]*", text):
        return Verdict(-1, frozenset(), tuple(reported), (f"the pointer says {text!r}",))
    number = int(text)
    entries: frozenset[Entry] = frozenset()
    if number:
        entries, wrong = _version(bucket, f"{prefix}versions/{number}/", kind, public_key, is_sealed)
        problems += wrong
    if number and is_sealed and not problems:
        problems += _older(bucket, prefix, number, kind, public_key)
    lost = tuple(entry for entry in dict.fromkeys(reported) if entry not in entries)
    if attempted is not None:
        problems += [f"nobody published {entry}" for entry in entries - set(attempted)]
    return Verdict(number, entries, lost, tuple(problems))


def _older(bucket: Bucket, prefix: str, number: int, kind: str, public_key: str) -> list[str]:
    chain = json.loads(bucket.read(f"{prefix}versions/{number}/manifest.json"))["manifest"]["chain"]
    problems = []
    for old in chain:
        folder = f"{prefix}versions/{old}/"
        if any(found.name == f"{folder}manifest.json" for found in bucket.list(folder)):
            _, wrong = _version(bucket, folder, kind, public_key, is_sealed=True)
            if wrong and not any(found.name == f"{folder}manifest.json" for found in bucket.list(folder)):
                # It was pruned while we read.
                continue
            problems += [f"version {old}: {one}" for one in wrong]
    return problems


def _version(
    bucket: Bucket, folder: str, kind: str, public_key: str, is_sealed: bool
) -> tuple[frozenset[Entry], list[str]]:
    there = {found.name.removeprefix(folder) for found in bucket.list(folder)}

    def read(path: str) -> bytes:
        try:
            return bucket.read(folder + path)
        except NotFound:
            raise Wrong(f"{path} is missing") from None

    key, _ = SignedPublicKey.from_armor(public_key)
    problems: list[str] = []
    try:
        listed = _apt_index(read, key) if kind == "apt" else _yum_index(read, key)
        if is_sealed and "manifest.json" not in there:
            raise Wrong("there is no manifest")
    except (Wrong, ValueError, KeyError, ElementTree.ParseError, OSError) as error:
        return frozenset(), [str(error)]
    for path, (entry, size) in sorted(listed.items()):
        try:
            content = read(path)
            if (len(content), hashlib.sha256(content).hexdigest()) != (size, entry.sha256):
                raise Wrong(f"{path} is not the file the index means")
        except Wrong as error:
            problems.append(str(error))
    pool = {path for path in there if posixpath.splitext(path)[1] in {".deb", ".rpm"}}
    problems += [f"{path} is in no index" for path in sorted(pool - listed.keys())]
    return frozenset(entry for entry, _ in listed.values()), problems


def _apt_index(read: Callable[[str], bytes], key: SignedPublicKey) -> Mapping[str, tuple[Entry, int]]:
    signed, _ = CleartextSignedMessage.from_armor(read("dists/stable/InRelease").decode())
    signed.verify(key)
    release = read("dists/stable/Release")
    detached, _ = DetachedSignature.from_armor(read("dists/stable/Release.gpg").decode())
    detached.verify(key, release)
    if signed.signed_text().split() != release.decode().split():
        raise Wrong("InRelease and Release differ")
    listed: dict[str, tuple[Entry, int]] = {}
    for line in release.decode().split("SHA256:\n", 1)[1].splitlines():
        digest, size, name = line.split()
        folder, _, plain = name.rpartition("/")
        for path in (f"dists/stable/{name}", f"dists/stable/{folder}/by-hash/SHA256/{digest}"):
            content = read(path)
            if (len(content), hashlib.sha256(content).hexdigest()) != (int(size), digest):
                raise Wrong(f"{path} is not what Release says")
        if plain == "Packages.gz" and gzip.decompress(content) != read(f"dists/stable/{folder}/Packages"):
            raise Wrong(f"{name} and Packages differ")
        if plain == "Packages":
            for stanza in filter(None, content.decode().strip().split("\n\n")):
                fields = dict(field.split(": ", 1) for field in re.findall(r"^\S+: .*$", stanza, re.MULTILINE))
                entry = Entry(fields["Package"], fields["Version"], fields["Architecture"], fields["SHA256"])
                _add(listed, fields["Filename"], entry, int(fields["Size"]))
    return listed


def _yum_index(read: Callable[[str], bytes], key: SignedPublicKey) -> Mapping[str, tuple[Entry, int]]:
    repomd = read("repodata/repomd.xml")
    detached, _ = DetachedSignature.from_armor(read("repodata/repomd.xml.asc").decode())
    detached.verify(key, repomd)
    listed: dict[str, tuple[Entry, int]] = {}
    ids: dict[str, set[str]] = {}
    for record in ElementTree.fromstring(repomd).iter(f"{REPO}data"):
        path = _child(record, f"{REPO}location").attrib["href"]
        content = read(path)
        if hashlib.sha256(content).hexdigest() != _child(record, f"{REPO}checksum").text:
            raise Wrong(f"{path} is not what repomd.xml says")
        document = ElementTree.fromstring(gzip.decompress(content))
        if record.attrib["type"] != "primary":
            ids[record.attrib["type"]] = {child.attrib["pkgid"] for child in document}
            continue
        for package in document.iter(f"{COMMON}package"):
            version = _child(package, f"{COMMON}version").attrib
            epoch = "" if version.get("epoch", "0") == "0" else f"{version['epoch']}:"
            entry = Entry(
                _child(package, f"{COMMON}name").text or "",
                f"{epoch}{version['ver']}-{version['rel']}",
                _child(package, f"{COMMON}arch").text or "",
                _child(package, f"{COMMON}checksum").text or "",
            )
            size = int(_child(package, f"{COMMON}size").attrib["package"])
            _add(listed, _child(package, f"{COMMON}location").attrib["href"], entry, size)
    primary = {entry.sha256 for entry, _ in listed.values()}
    if set(ids) != {"filelists", "other"} or any(found != primary for found in ids.values()):
        raise Wrong("primary, filelists and other are not about the same packages")
    return listed


def _child(element: ElementTree.Element, tag: str) -> ElementTree.Element:
    found = element.find(tag)
    if found is None:
        raise Wrong(f"an index has no {tag}")
    return found


def _add(listed: dict[str, tuple[Entry, int]], path: str, entry: Entry, size: int) -> None:
    if listed.setdefault(path, (entry, size)) != (entry, size):
        raise Wrong(f"{path} is indexed twice, as {listed[path][0]} and as {entry}")
