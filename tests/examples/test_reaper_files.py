"""The systemd unit and the Kubernetes manifest of the reaper: real programs read them, and their command line works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from lockstead.cli.reap import reap
from lockstead.reaper.service import FLUSH
from lockstead.reaper.web import create_app
from tests.servers.base import needed

FOLDER = Path(__file__).parents[2] / "examples/reaper"
UNIT = FOLDER / "lockstead-reap.service"
MANIFEST: dict[str, Any] = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text("utf-8"))


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the options of a command line of `lockstead reap`; an unknown one fails."""
    assert words[:2] == ["lockstead", "reap"]
    return reap.make_context("reap", words[2:]).params


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = needed("systemd-analyze")
    copy = shutil.copy(UNIT, tmp_path)
    done = subprocess.run([program, "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_starts_the_reaper_and_lets_it_end() -> None:
    text = UNIT.read_text("utf-8")
    line = re.search(r"^ExecStart=/usr/bin/env (.+)$", text, re.MULTILINE)
    assert line is not None
    options = parsed(line[1].replace("${REAP_STORE}", "file:/etc/lockstead/store").split())
    assert options["webhook"] == "file:/etc/lockstead/webhook"
    assert options["listen"].startswith("127.0.0.1:")
    grace = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert grace is not None
    assert int(grace[1]) > 2 * FLUSH


def test_the_manifest_starts_two_reapers_and_probes_what_they_serve() -> None:
    assert (MANIFEST["apiVersion"], MANIFEST["kind"]) == ("apps/v1", "Deployment")
    spec = MANIFEST["spec"]
    assert spec["replicas"] == 2
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 2 * FLUSH
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    options = parsed(container["args"])
    (port,) = container["ports"]
    assert options["listen"] == f"0.0.0.0:{port['containerPort']}"
    served = {route.path for route in create_app([], None, [], None).routes}  # type: ignore[arg-type]
    probed = {name: container[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")}
    assert probed == {"readinessProbe": "/healthz", "livenessProbe": "/livez"}
    assert set(probed.values()) < served
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
    for pointer in (*options["urls"], options["webhook"]):
        assert pointer.startswith(f"file:{mount['mountPath']}/")
    assert not volume["secret"]["defaultMode"] & 0o007, "other users must not read it"


def test_an_unknown_option_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["lockstead", "reap", "file:/x", "--no-such-option"])
