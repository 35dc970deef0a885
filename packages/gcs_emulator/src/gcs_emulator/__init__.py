"""A faithful Google Cloud Storage server for tests: standard library only, starts at once, fails on demand.

It speaks the JSON API and plain GET and HEAD of objects, judges preconditions on every operation as the real one does,
and can be told to fail in every way a lock has to survive. `gcs-emulator` runs it on its own.
"""

from gcs_emulator.clock import Clock, ManualClock
from gcs_emulator.faults import Action, Fault, Faults, Injected
from gcs_emulator.objects import StoredObject
from gcs_emulator.request_log import LoggedRequest, RequestLog
from gcs_emulator.server import GcsServer

__version__ = "0.1.0"

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
    "__version__",
]
