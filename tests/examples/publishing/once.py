"""What a pipeline that runs once, in one process, must do: publish under its token, and release every lock."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from examples.publishing.build import Recipe, build
from examples.publishing.gcs import GcsBucket
from examples.publishing.oracle import Entry, judge
from examples.publishing.runner import FORMATS
from examples.publishing.signing import Signer, generate_key
from gcs_emulator import GcsServer


def publishes_once(
    command: Sequence[str], environment: Callable[[str, str], Mapping[str, str]], folder: Path, cwd: Path
) -> None:
    """Have a command publish one Debian package to gs://b/mine, whose locks lie beside it.

    environment: of the command, by the server's URL and the secret key, which must not be in what it says.
    """
    key = generate_key("Tests <tests@example.invalid>")
    (folder / "key.asc").write_text(key)
    package = build(Recipe("alpha"), "deb", folder)
    with GcsServer(buckets=["b"]) as server:
        done = subprocess.run(
            [*command, str(package)],
            env=dict(environment(server.url, key)),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        bucket = GcsBucket("b", endpoint=server.url)
        found = FORMATS["apt"].inspect(package)
        entry = Entry(found.name, found.version, found.arch, found.sha256)
        verdict = judge(bucket, "mine/apt/", "apt", Signer.from_armor(key).public_key, [entry], [entry])
        assert (verdict.version, verdict.is_good) == (1, True), str(verdict)
        # the pointer was fenced by the lease under which it was published, and its lock is free again
        fence = bucket.stat("mine/apt/latest_version.txt").metadata["lockstead-fence"]
        assert f'"what": "holds", "phase": "", "number": {fence.partition(":")[0]}' in done.stdout
        locks = [one.name for one in bucket.list("mine/locks")]
        bucket.close()
    assert [name for name in locks if ".lockstead" not in name] == [], "a lock is still held"
    # nothing was staged for the other repository: its lock was not requested
    assert locks
    assert not [name for name in locks if "yum" in name]
    assert key.splitlines()[2] not in done.stdout
