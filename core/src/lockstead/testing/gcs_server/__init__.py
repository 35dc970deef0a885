"""A faithful Google Cloud Storage server for tests: standard library only, starts at once, fails on demand.

It speaks the JSON API and plain GET and HEAD of objects, judges preconditions on every operation as the real one does,
and can be told to fail in every way a lock has to survive. `python -m lockstead.testing.gcs_server` runs it on its own.
"""

from lockstead.testing.gcs_server.clock import Clock, ManualClock
from lockstead.testing.gcs_server.faults import Action, Fault, Faults, Injected
from lockstead.testing.gcs_server.objects import StoredObject
from lockstead.testing.gcs_server.request_log import LoggedRequest, RequestLog
from lockstead.testing.gcs_server.server import GcsServer

__all__ = [
    "Action",
    "Clock",
    "Fault",
    "Faults",
    "GcsServer",
    "Injected",
    "LoggedRequest",
    "ManualClock",
    "RequestLog",
    "StoredObject",
]
