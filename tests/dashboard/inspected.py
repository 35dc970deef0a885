"""A browser that watches what a page does: violations of its policy, errors, what it keeps in memory, accessibility.

Must not know the pages of the dashboard. Accessibility is checked by axe-core, which is in a package of `make setup`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from tests.servers.browser import TAB, Browser

WCAG: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""The rules that a page is checked by: WCAG 2.2, levels A and AA, and what axe-core recommends besides."""

_WATCH: Final = """
window.happened = []
const note = text => window.happened.push(text)
addEventListener('securitypolicyviolation', e => note(`policy: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`))
addEventListener('error', e => note(`error: ${e.message || e.target.src || e.target.href}`), true)
addEventListener('unhandledrejection', e => note(`rejected: ${e.reason}`))
for (const name of ['alert', 'confirm', 'prompt', 'open', 'print']) window[name] = () => note(`executed: ${name}`)
"""

_AUDIT: Final = """
const [tags, done] = arguments
axe.run(document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations', 'incomplete']}).then(
  found => done({
    passes: found.passes.length,
    violations: found.violations.flatMap(one => one.nodes.map(
      node => `${one.id}: ${node.target} ${node.failureSummary} ${node.html}`)),
  }),
  error => done({passes: 0, violations: [String(error)]}),
)
"""


def axe() -> str:
    """Return the source of axe-core."""
    found = find_spec("axe_playwright_python")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "axe.min.js").read_text("utf-8")


class Inspected(Browser):
    """A browser whose pages note what happens in them from their first line on."""

    def start(self) -> Self:
        """Start it, open the window, and watch every page that it will load."""
        super().start()
        self.devtools("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        return self

    def complaints(self) -> list[str]:
        """Return what the open page did that it must not, and what the console says since the last call.

        Chromium logs the status of a page that was not found, too: that is no complaint.
        """
        page = f"{self.site}/lock?"
        said = [line for line in self.logged() if not (line.startswith(page) and "status of 404" in line)]
        return [*self.does("return window.happened.splice(0)"), *said]

    def audit(self) -> list[str]:
        """Return every violation of `WCAG` in the open page as text."""
        if not self.does("return Boolean(window.axe)"):
            self.does(axe())
        found = self.finishes(_AUDIT, list(WCAG))
        assert found["passes"] > 10, found
        return list(found["violations"])

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.does("return document.scrollingElement.scrollWidth - innerWidth"))

    def memory(self) -> dict[str, float]:
        """Return, after a garbage collection, the bytes of the heap and the numbers of nodes and listeners."""
        self.devtools("HeapProfiler.collectGarbage")
        self.devtools("Performance.enable")
        metrics = self.devtools("Performance.getMetrics")["metrics"]
        wanted = ("JSHeapUsedSize", "Nodes", "JSEventListeners", "Documents")
        return {one["name"]: one["value"] for one in metrics if one["name"] in wanted}

    def focus(self) -> str:
        """Return the text, name or id of what has the focus."""
        script = (
            "const e = document.activeElement; return (e.innerText || e.value || e.name || e.id || e.tagName).trim()"
        )
        return str(self.does(script))

    def sees(self, script: str, seconds: float, *words: Any) -> float:
        """Wait until a function's result is true; return how long that took. AssertionError after `seconds`."""
        begun_at = time.monotonic()
        while not self.does(script, *words):
            took = time.monotonic() - begun_at
            assert took < seconds, f"not within {seconds} s: {script}\n{self.does('return document.body.innerText')}"
            time.sleep(0.05)
        return time.monotonic() - begun_at

    def tabs_to(self, reached: Callable[[str], bool], most: int = 60) -> list[str]:
        """Press the tab key until the focus is where it is wanted; return what had the focus, in order."""
        passed: list[str] = []
        for _ in range(most):
            self.presses(TAB)
            passed.append(self.focus())
            if reached(passed[-1]):
                return passed
        raise AssertionError(f"the tab key reaches only {passed}")
