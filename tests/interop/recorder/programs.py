"""Starts the published programs, each as a process that is talked to line by line, against one server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
BUCKET = "bucket"


@dataclass(frozen=True)
class Tools:
    """Where the programs are: see README.md for how to get them."""

    go: Path
    built: Path
    gcslock_python: Path
    thing_python: Path
    ruby: Path


class Foreign:
    """One program that holds or wants a lock. It answers in lines of JSON."""

    def __init__(self, command: list[str], host: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=os.environ["TMPDIR"],
            env={**os.environ, "STORAGE_EMULATOR_HOST": host, **environment},
        )

    def hear(self) -> dict[str, Any]:
        """Return the next thing it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program ended without a word"
        said: dict[str, Any] = json.loads(line)
        return said

    def say(self, word: str) -> dict[str, Any]:
        """Tell it something and give its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # a process that was not told to release its lock dies with it
        self._process.kill()
        self._process.communicate()


class Programs:
    """The published programs; each verb starts one that wants the lock at once."""

    def __init__(self, tools: Tools, host: str) -> None:
        self._tools = tools
        self._host = host

    def build(self) -> None:
        """Build the three programs in Go; gcslock can be told its server only by the linker."""
        package = "github.com/mco-gh/gcslock"
        flags = (
            f"-X {package}.storageLockURL=http://{self._host}/upload/storage/v1 "
            f"-X {package}.storageUnlockURL=http://{self._host}/storage/v1"
        )
        for name in ("gdlock", "gcslock", "nbf"):
            command = [str(self._tools.go), "build", "-mod=mod", "-ldflags", flags if name == "gcslock" else ""]
            subprocess.run([*command, "-o", str(self._tools.built / name), "."], cwd=HERE / name, check=True)

    def gdlock(
        self, path: str, *, ttl: float, refresh: float = 100.0, wait: float = 10.0, identity: str = ""
    ) -> Foreign:
        """The Go port of distributed-lock-google-cloud-storage."""
        told = ["-ttl", f"{ttl}s", "-refresh", f"{refresh}s", "-wait", f"{wait}s", "-identity", identity]
        return Foreign([str(self._tools.built / "gdlock"), "-bucket", BUCKET, "-path", path, *told], self._host)

    def gcslock(self, path: str, *, wait: float = 10.0) -> Foreign:
        """The lock by Marc Cohen."""
        told = ["-bucket", BUCKET, "-object", path, "-wait", f"{wait}s"]
        return Foreign([str(self._tools.built / "gcslock"), *told], self._host)

    def nbf(self, path: str, *, ttl: float) -> Foreign:
        """The lock by Seth Vargo."""
        told = ["-bucket", BUCKET, "-object", path, "-ttl", f"{ttl}s"]
        return Foreign([str(self._tools.built / "nbf"), *told], self._host)

    def py_gcslock(self, path: str, *, ttl: int, owner: str) -> Foreign:
        """The package gcslock of the Python index."""
        script = [str(self._tools.gcslock_python), str(HERE / "py_gcslock.py")]
        return Foreign([*script, BUCKET, path, str(ttl), owner], f"http://{self._host}")

    def thing(self, path: str, *, ttl: int) -> Foreign:
        """The package gcs-lock-thing of the Python index."""
        script = [str(self._tools.thing_python), str(HERE / "py_thing.py")]
        return Foreign([*script, BUCKET, path, str(ttl)], f"http://{self._host}")

    def ruby(self, what: str, path: str, given: str = "") -> dict[str, Any] | None:
        """One call of Google's client for Ruby, with what the gem hands to it."""
        command = [str(self._tools.ruby), str(HERE / "ruby_calls.rb"), what, BUCKET, path, given]
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": f"http://{self._host}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        sys.stderr.write(done.stderr[-300:])
        return json.loads(done.stdout) if done.stdout.strip() else None
