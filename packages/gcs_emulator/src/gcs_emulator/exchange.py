"""Passing of a request through the faults to the API.

Defines the order in which the log is written, a fault strikes and the change is committed. Tests of locks depend on
this order.
"""

from __future__ import annotations

import threading
from typing import assert_never

from gcs_emulator.api import Api, refusal
from gcs_emulator.clock import Clock
from gcs_emulator.errors import ApiError
from gcs_emulator.faults import Action, Faults, Injected
from gcs_emulator.http_messages import Answer, Request
from gcs_emulator.request_log import LoggedRequest, RequestLog
from gcs_emulator.routes import Route


class Exchange:
    """The request handler of one server. A response of None means that the connection is closed without one."""

    def __init__(self, api: Api, faults: Faults, requests: RequestLog, clock: Clock) -> None:
        self._api = api
        self._faults = faults
        self._requests = requests
        self._clock = clock

    def answer(self, request: Request) -> Answer | None:
        """Return the response to a request, or None."""
        try:
            asked, refused = self._api.route(request), None
        except ApiError as error:
            asked, refused = Route("unknown"), refusal(request, error)
        line = self._requests.begin(
            LoggedRequest(
                asked.kind, request.method, request.path, request.query, asked.bucket, asked.name, self._clock()
            )
        )
        answer = refused if refused is not None else self._through_faults(request, asked)
        self._requests.finish(line, answer.status if answer is not None else None)
        return answer

    def _through_faults(self, request: Request, asked: Route) -> Answer | None:
        if not self._faults.delay():
            return None
        injected = self._faults.pick(asked.kind, asked.name)
        if injected is None:
            return self._api.answer(request, asked)
        return self._struck(request, asked, injected)

    def _struck(self, request: Request, asked: Route, injected: Injected) -> Answer | None:
        failed = refusal(request, ApiError(injected.fault.status))
        match injected.fault.action:
            case Action.FAIL:
                return failed
            case Action.FAIL_AFTER_COMMIT:
                self._api.answer(request, asked)
                return failed
            case Action.LOSE_REQUEST:
                return None
            case Action.LOSE_ANSWER:
                self._api.answer(request, asked)
                return None
            case Action.STALL:
                return self._api.answer(request, asked) if injected.hold() else None
            case Action.STALL_ANSWER:
                answer = self._api.answer(request, asked)
                return answer if injected.hold() else None
            case Action.HANG:
                injected.hold()
                return None
            case Action.REPEAT:
                answer = self._api.answer(request, asked)
                threading.Thread(target=self._repeat, args=(request, asked, injected), daemon=True).start()
                return answer
            case other:
                assert_never(other)

    def _repeat(self, request: Request, asked: Route, injected: Injected) -> None:
        if injected.hold():
            self._api.answer(request, asked)
            injected.note_repetition()
