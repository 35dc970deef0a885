"""What readers get, and how the formats and the display handle odd input."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from examples.publishing.apt import Apt
from examples.publishing.build import Recipe, build
from examples.publishing.demo.board import LiveBoard, PlainBoard
from examples.publishing.demo.workers import job_line, job_of
from examples.publishing.errors import BadSignature, Refused
from examples.publishing.events import Event, EventKind
from examples.publishing.front import Front
from examples.publishing.gcs import Place
from examples.publishing.layout import Layout
from examples.publishing.lease import LockSettings
from examples.publishing.pipeline import PHASES
from examples.publishing.runner import Job, Pace, files_by_kind
from examples.publishing.signing import Signer, Verifier
from tests.examples.publishing.memory import MemoryBucket
from tests.examples.publishing.world import Shelf


def test_the_front_sends_readers_where_the_pointer_points() -> None:
    bucket = MemoryBucket()
    layout = Layout("p/yum/")
    with Front(bucket, {"yum": layout}, objects_url="http://objects/b/") as front, httpx.Client() as http:
        assert http.get(f"{front.url}/yum/repodata/repomd.xml").status_code == 404
        bucket.put(layout.pointer, b"0")
        assert http.get(f"{front.url}/yum/repodata/repomd.xml").status_code == 404
        bucket.put(layout.pointer, b"7")
        answer = http.get(f"{front.url}/yum/packages/c/c%2b%2b-1~2.rpm")
        assert answer.status_code == 302
        assert answer.headers["location"] == "http://objects/b/p/yum/versions/7/packages/c/c%2B%2B-1~2.rpm"
        listed = http.get(f"{front.url}/yum/mirrorlist").text.split()
        assert listed == ["http://objects/b/p/yum/versions/7/", f"{front.url}/yum/"]
        bucket.put(layout.version(7, "x y"), b"content")
        assert http.get(f"{front.url}/yum/versions/7/x%20y").content == b"content"
        assert http.head(f"{front.url}/yum/versions/7/x%20y").headers["content-length"] == "7"
        for path in ("/", "/yum", "/yum/", "/apt/x", "/yum/versions/7/gone", "/yum/../latest_version.txt"):
            assert front.answer(path)[0] == 404
        bucket.put(layout.pointer, b"garbage")
        assert http.get(f"{front.url}/yum/x").status_code == 503


def test_names_that_cannot_stand_in_a_path_are_refused(tmp_path: Path) -> None:
    package = build(Recipe("fine"), "deb", tmp_path)
    content = package.read_bytes()
    assert Apt().inspect(package).path == "pool/main/f/fine/fine_1.0_all.deb"
    package.write_bytes(content[:100])
    with pytest.raises(Refused):
        Apt().inspect(package)


def test_signatures_are_verified_against_the_one_key(shelf: Shelf) -> None:
    signer, stranger = Signer.from_armor(shelf.key), Signer.from_armor(shelf.strangers_key)
    ours = Verifier.from_armor(signer.public_key)
    assert ours.cleartext(signer.cleartext(b"A: b\n"), "here") == b"A: b\n"
    ours.detached(b"content", signer.detached(b"content"), "here")
    for signed in (stranger.cleartext(b"A: b\n"), b"A: b\n", b"", signer.cleartext(b"A: b\n").replace(b"b", b"c")):
        with pytest.raises(BadSignature, match="here"):
            ours.cleartext(signed, "here")
    for signature in (stranger.detached(b"content"), signer.detached(b"other"), b"", b"garbage"):
        with pytest.raises(BadSignature, match="here"):
            ours.detached(b"content", signature, "here")
    for text in ("", "garbage"):
        with pytest.raises(ValueError, match="OpenPGP key"):
            Signer.from_armor(text)
        with pytest.raises(ValueError, match="OpenPGP key"):
            Verifier.from_armor(text)


def test_jobs_and_events_survive_the_pipe() -> None:
    lock = LockSettings("gs://b/locks", ttl=3, owner="me")
    job = Job("run", Place("b", "p/"), "key", (Path("a.deb"),), lock, pace=Pace(0.1, {"apt/copy": 2.0}))
    assert job_of(job_line(job)) == job
    event = Event("run", "apt", EventKind.PUBLISHED, number=3, pruned=(1, 2), text="x")
    assert Event.from_line(event.to_line()) == event
    for line in ("{}", "null", '{"what": "?"}', "x"):
        with pytest.raises(ValueError, match=r".+"):
            Event.from_line(line)


def test_only_packages_are_taken() -> None:
    with pytest.raises(Refused, match="neither"):
        files_by_kind((Path("a.deb"), Path("b.txt")))
    assert files_by_kind((Path("a.deb"), Path("b.rpm"))) == {"apt": (Path("a.deb"),), "yum": (Path("b.rpm"),)}


@pytest.mark.parametrize("board_class", [PlainBoard, LiveBoard])
def test_boards_tell_the_whole_story(board_class: type[PlainBoard] | type[LiveBoard]) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=board_class is LiveBoard, width=160, color_system=None)
    with board_class(console) as board:
        board.act("Act 1")
        for run in ("one", "two"):
            board.event(Event(run, "apt", EventKind.STAGING, at=1.0))
            board.event(Event(run, "apt", EventKind.WAITING, at=1.1))
            if run == "one":
                board.event(Event(run, "apt", EventKind.HOLDS, number=7, at=1.2))
        for phase in PHASES:
            board.event(Event("one", "apt", EventKind.PHASE, phase=phase, at=2.0))
        board.event(Event("one", "apt", EventKind.PUBLISHED, number=4, pruned=(2,), text="[package]", at=3.0))
        board.event(Event("two", "apt", EventKind.REFUSED, text="token 6", at=4.0))
        board.note("a [note]")
    story = written.getvalue()
    for said in ("Act 1", "version 4: [package], cleared away 2", "refused: token 6", "1000", "a [note]"):
        assert said in story
    if board_class is PlainBoard:
        assert "waiting for one" in story
