"""Takes a lock as the package gcs-lock-thing of the Python index does, and frees it at the next line of input."""

import contextlib
import json
import os
import sys
from unittest import mock

import google.auth
from google.auth.credentials import AnonymousCredentials

bucket, path, ttl = sys.argv[1:4]
os.environ.setdefault("GOOGLE_CLOUD_PROJECT", "project")
with mock.patch.object(google.auth, "default", return_value=(AnonymousCredentials(), "project")):
    from gcs_lock_thing.lock import Client

    with contextlib.redirect_stdout(sys.stderr):
        client = Client(bucket, path, ttl=int(ttl))
        try:
            said = {"event": "acquired" if client.lock() else "failed"}
        except Exception as error:
            said = {"event": "failed", "error": f"{type(error).__name__}: {error}"}
print(json.dumps(said), flush=True)
if said["event"] == "acquired":
    sys.stdin.readline()
    with contextlib.redirect_stdout(sys.stderr):
        client.free_lock()
    print(json.dumps({"event": "released"}), flush=True)
