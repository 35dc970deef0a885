"""Takes a lock as the package gcslock of the Python index does, and releases it at the next line of standard input."""

import json
import sys

from gcslock import GcsLock

bucket, key, ttl, owner = sys.argv[1:5]
try:
    state = GcsLock(lock_owner=owner).acquire(bucket, key, int(ttl), max_wait_seconds=0)
except Exception as error:
    print(json.dumps({"event": "failed", "error": f"{type(error).__name__}: {error}"}), flush=True)
else:
    print(json.dumps({"event": "acquired", "expires_at": state.expires_at.isoformat()}), flush=True)
    sys.stdin.readline()
    state._gcs_lock.release(state)
    print(json.dumps({"event": "released"}), flush=True)
