"""A Google Cloud Storage emulator for tests: faithful, standard library only, starts instantly, fails on demand.

It supports the JSON API and plain GET and HEAD of objects, checks preconditions on every operation like the real
service, and can inject every failure that a lock must survive. The command `gcs-emulator` runs it as a program.
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
