"""A separate environment for each bad input: a bucket, a file, environment variables, and a view of everything
stored."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead.protocol.commands import Create, Snapshot
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Name
from tests.runtime.faulty import quiet

OURS = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT")


class World:
    """The environment of one case. Another client holds `theirs` in each of its stores."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.patch = patch
        self.server: GcsServer | None = None
        # a process shares engines by URL, so each case has its own prefix
        self.slug = folder.name
        for name in OURS:
            patch.delenv(name, raising=False)
        patch.setenv("CLOUDSDK_CONFIG", str(folder / "gcloud"))
        patch.setenv("NO_GCE_CHECK", "true")

    # --- stores ------------------------------------------------------------------------------------------------

    def bucket(self, **fields: object) -> GcsServer:
        """Start a server with the bucket `b`, in which another client holds a lock."""
        self.server = GcsServer()
        self.server.create_bucket("b", **fields)
        self.server.start()
        self.patch.setenv("STORAGE_EMULATOR_HOST", self.server.url)
        self._hold_theirs(self.gs)
        return self.server

    @property
    def gs(self) -> str:
        """The URL of the store in the bucket."""
        return f"gs://b/{quote(self.slug)}"

    def file(self) -> str:
        """Return the URL of a file in which another client holds a lock."""
        if not self.path.exists():
            self._hold_theirs(self.sqlite)
        return self.sqlite

    @property
    def path(self) -> Path:
        return self.folder / "locks.db"

    @property
    def sqlite(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    def _hold_theirs(self, url: str) -> None:
        with lockstead.connect(url, listener=quiet) as client:
            client.lock("theirs", ttl=3600, owner="somebody else").acquire(5).detach()

    def record(self, url: str, fields: dict[str, str], key: str = "apt") -> Snapshot:
        """Write a record as another program would."""
        store: Any = SqliteStore(self.path) if url.startswith("sqlite:") else _opened(url)
        try:
            made = store.perform(Create(Name(key), fields), 5.0)
            assert isinstance(made, Snapshot)
            return made
        finally:
            store.close()

    def kept(self) -> dict[str, object]:
        """Return every byte that is kept in the stores there are."""
        kept: dict[str, object] = {}
        if self.server is not None:
            for name, one in self.server.objects("b").items():
                kept[name] = (one.generation, one.metageneration, one.updated_at, one.draft)
        if self.path.is_file():
            connection = sqlite3.connect(self.path)
            try:
                kept["rows"] = sorted(connection.execute("SELECT * FROM record").fetchall())
            except sqlite3.DatabaseError:
                kept["bytes"] = self.path.read_bytes()
            finally:
                connection.close()
        return kept

    # --- the shell ---------------------------------------------------------------------------------------------

    def run(self, url: str, *options: str) -> tuple[int, str, str]:
        """Carry out `lockstead run` on a lock; give code, output and errors. The command would say `ran`."""
        done = subprocess.run(
            [sys.executable, "-m", "lockstead.cli.main", "run", "--timeout", "0", *options, url, "--", "echo", "ran"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=dict(os.environ),
        )
        return done.returncode, done.stdout, done.stderr

    def without(self, module: str) -> None:
        """Make a library as good as not installed, in this process and in the shell's."""
        self.patch.setitem(sys.modules, module, None)
        apart = self.folder / "path"
        apart.mkdir()
        (apart / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
        self.patch.setenv("PYTHONPATH", str(apart))

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()


def _opened(url: str) -> Any:
    from lockstead.stores.url import open_store

    return open_store(url)
