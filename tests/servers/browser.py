"""A browser for tests: headless Chromium, controlled by the W3C's WebDriver protocol.

Must not know Airflow. The protocol is HTTP and JSON, and only a few of its commands are used, so no client library is
needed. Only loopback is used; the profile is new, in the directory of the driver.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tests.servers.base import Server, needed

PATIENCE: Final = 60.0
"""Seconds until a wait for a page fails."""

ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element's id in replies; defined by the standard."""

ENTER: Final = "\ue007"
"""The enter key in typed text; defined by the standard."""

TAB: Final = "\ue004"
SHIFT: Final = "\ue008"
ESCAPE: Final = "\ue00c"

CHROMIUM: Final = (
    "--headless",
    # Chromium does not run as root with its sandbox; it only loads pages of this machine
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--lang=en-US",
)


class Browser(Server):
    """A chromedriver process with one open window. All paths are relative to `site`."""

    def __init__(self, directory: Path, site: str) -> None:
        super().__init__(directory)
        self.site = site
        self._http = httpx.Client(base_url=f"http://{self.address}", timeout=PATIENCE, trust_env=False)
        self._session = ""

    def command(self) -> Sequence[str]:
        return [needed("chromedriver"), f"--port={self.port}"]

    def environment(self) -> Mapping[str, str]:
        return {"TZ": "UTC", "LANG": "C.UTF-8", "HOME": str(self.directory), "NO_PROXY": "*"}

    def is_ready(self) -> bool:
        try:
            return bool(self._http.get("/status").json()["value"]["ready"])
        except httpx.HTTPError:
            return False

    def start(self) -> Self:
        """Start it and open the window."""
        super().start()
        words = [*CHROMIUM, f"--user-data-dir={self.directory / 'profile'}"]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": needed("chromium"), "args": words},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        opened = self._told("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{opened['sessionId']}"
        return self

    def stop(self) -> None:
        """Close the window and end the driver."""
        if self._session and self.is_running:
            self._told("DELETE", self._session)
        self._session = ""
        super().stop()
        self._http.close()

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in pixels of the picture; the size of the window would include its frame."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def prefers(self, *, medium: str = "", **features: str) -> None:
        """Set the medium (`print`) and the user's preferences: `prefers_color_scheme="dark"`."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", media=medium, features=named)

    def devtools(self, command: str, **params: Any) -> Any:
        """Send a command of Chromium's DevTools protocol and return its result."""
        return self._told("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, path: str) -> None:
        """Go to a page of the site."""
        self._told("POST", f"{self._session}/url", {"url": self.site + path})

    def does(self, script: str, *words: Any) -> Any:
        """Run the body of a JavaScript function in the page and return its result."""
        return self._told("POST", f"{self._session}/execute/sync", {"script": script, "args": list(words)})

    def finishes(self, script: str, *words: Any) -> Any:
        """Run a JavaScript function that calls its last argument when it has ended; return what it called it with."""
        return self._told("POST", f"{self._session}/execute/async", {"script": script, "args": list(words)})

    def logged(self) -> list[str]:
        """Return what was written to the console since the last call: errors, warnings, violations of the policy."""
        return [str(entry["message"]) for entry in self._told("POST", f"{self._session}/se/log", {"type": "browser"})]

    def keeps(self, name: str, value: str) -> None:
        """Set a value in the site's local storage, where it keeps a user's choices; a page of the site must be open."""
        self.does("localStorage.setItem(arguments[0], arguments[1])", name, value)

    def click(self, xpath: str) -> None:
        """Wait until the first matching element can be clicked, and click it."""
        self._acts(xpath, "click", {})

    def types(self, xpath: str, text: str) -> None:
        """Wait for the first matching field, and type into it."""
        self._acts(xpath, "value", {"text": text})

    def presses(self, keys: str, *, shift: bool = False) -> None:
        """Type into whatever has the focus."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        if shift:
            strokes = [{"type": "keyDown", "value": SHIFT}, *strokes, {"type": "keyUp", "value": SHIFT}]
        source = {"type": "key", "id": "keyboard", "actions": strokes}
        self._told("POST", f"{self._session}/actions", {"actions": [source]})

    def shows(self, *texts: str) -> None:
        """Wait until the page shows all of these texts."""

        def there() -> bool:
            page = " ".join(str(self.does("return document.body.innerText")).split())
            return all(text in page for text in texts)

        self._until(there, f"the page does not show {texts}")

    def rests(self) -> None:
        """Remove the focus, and wait until two pictures, a second apart, are the same."""
        # a blinking caret would change every picture
        self.does("document.activeElement.blur()")
        seen = [b""]

        def still() -> bool:
            time.sleep(1.0)
            seen.append(self.picture())
            return seen[-1] == seen[-2]

        self._until(still, "the page goes on moving")

    def picture(self) -> bytes:
        """Return a screenshot of the window, as PNG."""
        return base64.b64decode(self._told("GET", f"{self._session}/screenshot"))

    def _acts(self, xpath: str, verb: str, body: Mapping[str, Any]) -> None:
        said: list[Exception] = []

        def done() -> bool:
            try:
                found = self._told("POST", f"{self._session}/element", {"using": "xpath", "value": xpath})
                self._told("POST", f"{self._session}/element/{found[ELEMENT]}/{verb}", body)
            except Refused as error:
                said.append(error)
                return False
            return True

        self._until(done, f"{verb} {xpath}", said)

    def _until(self, condition: Any, otherwise: str, said: Sequence[Exception] = ()) -> None:
        ends_at = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > ends_at:
                raise AssertionError(f"{otherwise}: {said[-1] if said else ''}")
            time.sleep(0.2)

    def _told(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        answer = self._http.request(verb, path, json=body).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise Refused(f"{answer['error']}: {str(answer.get('message')).partition(chr(10))[0]}")
        return answer


class Refused(Exception):
    """The driver cannot perform a command now: the element does not exist yet, or another one covers it."""
