"""Records what the published programs write, and what happens when they and lockstead use one key.

`python tests/interop/recorder/record.py --help`; README.md lists the requirements. Writes the files of
`../recorded`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from encounters import ENCOUNTERS, Meeting
from programs import BUCKET, HERE, Programs, Tools
from tap import Tap

from gcs_emulator import GcsServer

PATH = "locks/apt"


class Recorder:
    """One server, one tap before it, the programs behind that."""

    def __init__(self, server: GcsServer, tap: Tap, programs: Programs, into: Path) -> None:
        self.server, self.tap, self.programs, self.into = server, tap, programs, into

    def look(self, path: str = PATH) -> dict[str, Any]:
        """Return the object resource."""
        found = httpx.get(f"{self.server.url}/storage/v1/b/{BUCKET}/o/{path.replace('/', '%2F')}")
        resource: dict[str, Any] = found.json()
        return {key: value for key, value in resource.items() if key not in ("selfLink", "mediaLink")}

    def write(self, name: str, about: dict[str, str], **recorded: Any) -> None:
        """Write one file."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"about": {**about, "recorded_at": at}, **recorded}, indent=1, ensure_ascii=False)
        (self.into / f"{name}.json").write_text(text + "\n")

    def clean(self) -> None:
        """Delete the objects of these paths, and the notes."""
        for path in (PATH, "apt"):
            httpx.delete(f"{self.server.url}/storage/v1/b/{BUCKET}/o/{path.replace('/', '%2F')}")
        self.tap.taken()


def gdlock(recorder: Recorder) -> None:
    """Hold, refresh (which is refused), release; then take over a stale lock."""
    with recorder.programs.gdlock(PATH, ttl=300, refresh=1, identity="recorder-1") as one:
        assert one.hear()["event"] == "acquired"
        held = recorder.look()
        time.sleep(2)
        health = one.say("health")
        released = one.say("release")
    life = recorder.tap.taken()
    with recorder.programs.gdlock(PATH, ttl=1) as dead:
        assert dead.hear()["event"] == "acquired"
        dead.say("abandon")
    time.sleep(1.5)
    recorder.tap.taken()
    with recorder.programs.gdlock(PATH, ttl=300, identity="recorder-2") as next_one:
        assert next_one.hear()["event"] == "acquired"
        takes_over = recorder.tap.taken()
        next_one.say("release")
    about = {
        "program": "github.com/FooBarWidget/distributed-lock-google-cloud-storage-go, package gdlock",
        "version": "no release; lock.go of commit f1e6686, the other files of commits 0c6a34e and 0eff527",
        "how": "built from its text and run; cloud.google.com/go/storage 1.16.1",
    }
    recorder.write("gdlock", about, object=held, life=life, health=health, released=released, takes_over=takes_over)


def gcslock(recorder: Recorder) -> None:
    """Hold and release."""
    with recorder.programs.gcslock("apt") as one:
        assert one.hear()["event"] == "acquired"
        held = recorder.look("apt")
        assert one.say("release")["event"] == "released"
    about = {
        "program": "github.com/mco-gh/gcslock (also known as github.com/marcacohen/gcslock)",
        "version": "no release; mutex.go of commit 125c8f2",
        "how": "built from its text and run",
    }
    recorder.write("gcslock", about, object=held, life=recorder.tap.taken())


def nbf(recorder: Recorder) -> None:
    """Acquire, and take over an expired lock."""
    with recorder.programs.nbf(PATH, ttl=1) as one:
        assert one.hear()["event"] == "acquired"
    held, life = recorder.look(), recorder.tap.taken()
    time.sleep(2.5)
    with recorder.programs.nbf(PATH, ttl=300) as one:
        assert one.hear()["event"] == "acquired"
    about = {
        "program": "github.com/sethvargo/go-gcslock",
        "version": "v0.1.3",
        "how": "built from the module proxy and run",
    }
    recorder.write("nbf", about, object=held, life=life, takes_over=recorder.tap.taken())


def py_gcslock(recorder: Recorder) -> None:
    """Hold and release, under a name without a slash: it does not escape them, and finds nothing under such a name."""
    with recorder.programs.py_gcslock("apt", ttl=30, owner="recorder") as one:
        assert one.hear()["event"] == "acquired"
        held = recorder.look("apt")
        assert one.say("release")["event"] == "released"
    life = recorder.tap.taken()
    with recorder.programs.py_gcslock("apt", ttl=1, owner="dead") as one:
        assert one.hear()["event"] == "acquired"
    time.sleep(2)
    recorder.tap.taken()
    with recorder.programs.py_gcslock("apt", ttl=30, owner="recorder") as one:
        assert one.hear()["event"] == "acquired"
    about = {"program": "gcslock of the Python index (gcs-atomic-lock)", "version": "0.0.6", "how": "installed and run"}
    recorder.write("py_gcslock", about, object=held, life=life, takes_over=recorder.tap.taken())


def thing(recorder: Recorder) -> None:
    """Hold and free."""
    with recorder.programs.thing(PATH, ttl=30) as one:
        assert one.hear()["event"] == "acquired"
        held = recorder.look()
        assert one.say("free")["event"] == "released"
    about = {
        "program": "gcs-lock-thing of the Python index",
        "version": "0.0.6, with google-cloud-storage 1.31.0",
        "how": "installed and run",
    }
    recorder.write("gcs_lock_thing", about, object=held, life=recorder.tap.taken())


def ruby(recorder: Recorder) -> None:
    """Create, read, refresh, delete, with the values of the gem's source.

    The client's upload is a protocol that the test server does not speak, so what it announces is noted, and stored by
    a multipart upload of ours.
    """
    recorder.programs.ruby("create", PATH, "c0ffee-17/thr-8w")
    (announced,) = recorder.tap.taken()
    recorder.clean()
    upload(recorder.server.url, PATH, json.loads(announced["body"]))
    held = recorder.look()
    read = recorder.programs.ruby("read", PATH)
    recorder.programs.ruby("refresh", PATH, "1")
    refreshed = recorder.look()
    recorder.programs.ruby("delete", PATH, "2")
    recorder_life = [announced, *recorder.tap.taken()]
    del announced["status"], announced["answer"]
    about = {
        "program": "distributed-lock-google-cloud-storage of RubyGems",
        "version": "1.1.0; lock.rb of commit 02f657c",
        "how": "read, not run: its calls were repeated with google-api-client 0.50.0 for Ruby, from Debian 12",
    }
    recorder.write("ruby", about, object=held, refreshed=refreshed, life=recorder_life, read_back=read)


def upload(url: str, path: str, resource: dict[str, Any]) -> None:
    """Insert an object with these descriptions, by a multipart upload."""
    body = f"--b\r\nContent-Type: application/json\r\n\r\n{json.dumps(resource)}\r\n--b\r\n\r\n\r\n--b--\r\n"
    query = {"uploadType": "multipart", "name": path, "ifGenerationMatch": "0"}
    headers = {"Content-Type": "multipart/related; boundary=b"}
    httpx.post(f"{url}/upload/storage/v1/b/{BUCKET}/o", params=query, headers=headers, content=body).raise_for_status()


def encounters(recorder: Recorder) -> None:
    """Let lockstead and each program meet under one key."""
    told = []
    for meet in ENCOUNTERS:
        recorder.clean()
        meeting = Meeting(recorder.programs, recorder.server, recorder.look)
        meet(meeting)
        told.append({"meeting": meet.__name__, "what": (meet.__doc__ or "").strip(), "seen": meeting.seen})
        print(meet.__name__, json.dumps(meeting.seen, ensure_ascii=False)[:400], flush=True)
    about = {"program": "lockstead and each of the others under one key", "how": "both run at once against one server"}
    recorder.write("encounters", about, encounters=told)


LIVES: tuple[Callable[[Recorder], None], ...] = (gdlock, gcslock, nbf, py_gcslock, thing, ruby, encounters)


def main() -> None:
    """Record all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--go", type=Path, default=Path("go"))
    parser.add_argument("--gcslock-python", type=Path, required=True, help="a Python that has gcslock 0.0.6")
    parser.add_argument("--thing-python", type=Path, required=True, help="a Python that has gcs-lock-thing 0.0.6")
    parser.add_argument("--ruby", type=Path, required=True, help="a Ruby that has google-api-client")
    parser.add_argument("--into", type=Path, default=HERE.parent / "recorded")
    parser.add_argument("names", nargs="*", choices=[*(life.__name__ for life in LIVES), []], default=[])
    wanted = parser.parse_args()
    logging.getLogger("lockstead").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder, GcsServer(buckets=[BUCKET]) as server, Tap(server.url) as tap:
        os.environ["TMPDIR"] = folder
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        tools = Tools(wanted.go, Path(folder), wanted.gcslock_python, wanted.thing_python, wanted.ruby)
        programs = Programs(tools, tap.host)
        programs.build()
        for life in LIVES:
            if not wanted.names or life.__name__ in wanted.names:
                recorder = Recorder(server, tap, programs, wanted.into)
                recorder.clean()
                life(recorder)


if __name__ == "__main__":
    main()
