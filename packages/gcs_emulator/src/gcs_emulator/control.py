"""Control of faults, settings and the log over HTTP, for tests in another process.

Requests and responses are JSON:

* `POST /_faults` `{"action": "lose_answer", "kind": "delete", "name": "locks/*"}` returns `{"number": 1, ...}`
* `GET /_faults`; `POST /_faults/1/release`; `DELETE /_faults/1`; `DELETE /_faults` (resets everything)
* `GET /_settings`; `PATCH /_settings` `{"latency": 0.05, "date_offset": -90, "one_mutation_per_second": true}`;
  `"denied": ["storage.objects.delete"]` denies permissions
* `GET /_requests`; `DELETE /_requests`
* `POST /_pause` `{"seconds": 2, "how": "refuse"}` responds, then makes the server unreachable for 2 s

A bucket's name cannot begin with an underscore, so these paths hide nothing of the storage API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from gcs_emulator.errors import ApiError, json_body
from gcs_emulator.faults import Faults, Injected
from gcs_emulator.http_messages import Answer, Request, json_answer
from gcs_emulator.request_log import RequestLog

NUMBERS: Final = ("latency", "date_offset", "clock_resolution", "mutation_gap")
SWITCHES: Final = ("hides_date", "one_mutation_per_second")


class Control:
    """The control endpoints of one server; pause is called with seconds and how, after the response was sent."""

    def __init__(self, faults: Faults, requests: RequestLog, pause: Callable[[float, str], None]) -> None:
        self._faults = faults
        self._requests = requests
        self._pause = pause

    def answer(self, request: Request) -> tuple[Answer, Callable[[], None] | None]:
        """Return the response, and a function to call after it was sent (or None)."""
        try:
            return self._answer(request)
        except ApiError as error:
            return Answer(error.status, json_body(error), (("Content-Type", "application/json"),)), None

    def _answer(self, request: Request) -> tuple[Answer, Callable[[], None] | None]:
        match request.method, request.path[1:].split("/"):
            case "GET", ["_faults"]:
                return json_answer({"faults": [_shown(one) for one in self._faults.active()]}), None
            case "POST", ["_faults"]:
                return json_answer(_shown(self._injected(request.json()))), None
            case "DELETE", ["_faults"]:
                self._faults.clear()
            case "POST", ["_faults", number, "release"]:
                self._numbered(number).release()
            case "DELETE", ["_faults", number]:
                self._numbered(number).remove()
            case "GET", ["_settings"]:
                shown = {name: getattr(self._faults, name) for name in (*NUMBERS, *SWITCHES)}
                return json_answer({**shown, "denied": sorted(self._faults.denied)}), None
            case "PATCH", ["_settings"]:
                self._set(request.json())
            case "GET", ["_requests"]:
                return json_answer({"requests": [asdict(line) for line in self._requests]}), None
            case "DELETE", ["_requests"]:
                self._requests.clear()
            case "POST", ["_pause"]:
                return json_answer({}), self._pausing(request.json())
            case _:
                raise ApiError(404, "Not Found")
        return json_answer({}), None

    def _injected(self, wanted: dict[str, object]) -> Injected:
        try:
            return self._faults.inject(**wanted)  # type: ignore[arg-type] # inject raises for invalid arguments
        except (TypeError, ValueError) as error:
            raise ApiError(400, f"Invalid fault: {error}") from None

    def _numbered(self, number: str) -> Injected:
        for one in self._faults.active():
            if str(one.number) == number:
                return one
        raise ApiError(404, "No such fault.")

    def _set(self, wanted: dict[str, object]) -> None:
        wanted = dict(wanted)
        denied = wanted.pop("denied", None)
        if denied is not None and not (isinstance(denied, list) and all(isinstance(one, str) for one in denied)):
            raise ApiError(400, "Invalid setting: 'denied' is a list of permissions.")
        for name, value in wanted.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (name in NUMBERS and is_number) and not (name in SWITCHES and isinstance(value, bool)):
                raise ApiError(400, f"Invalid setting: {name!r}")
        for name, value in wanted.items():
            setattr(self._faults, name, value)
        if isinstance(denied, list):
            self._faults.denied = frozenset(denied)

    def _pausing(self, wanted: dict[str, object]) -> Callable[[], None]:
        seconds, how = wanted.get("seconds"), wanted.get("how", "refuse")
        if not isinstance(seconds, int | float) or how not in {"refuse", "hang"}:
            raise ApiError(400, "Invalid pause: seconds and how (refuse, hang) are expected.")
        return lambda: self._pause(float(seconds), str(how))


def _shown(one: Injected) -> dict[str, object]:
    return {"number": one.number, "hits": one.hits, "waiting": one.waiting, **asdict(one.fault)}
