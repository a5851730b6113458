"""A page in headless Chromium: what it draws, what it logs, what it asks of a network."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[2] / "data" / "axe" / "axe.min.js.gz"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

CUT_OFF = """() => {
  document.querySelectorAll("#view details").forEach((one) => { one.open = true; });
  const all = [...document.querySelectorAll("#view .scrolled")];
  return all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.getAttribute("aria-label"));
}"""


@dataclass
class Shown:
    """A page on show."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of its console, exceptions, and requests beyond the file."""

    def open(self, file: Path, view: str, *more: str) -> None:
        """Show a view of a report; `more` are keys of its address."""
        self.page.goto("about:blank")
        self.page.goto(f"file://{file}#{'&'.join((f'view={view}', *more))}")
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def until(self, script: str, seconds: float = 60.0) -> None:
        """Wait until a function of JavaScript returns true; the page forbids the `eval` that Playwright's own way asks.

        Args:
            script: the function.
            seconds: at most.
        """
        late = time.monotonic() + seconds
        while not self.page.evaluate(script):
            assert time.monotonic() < late, f"never true: {script}"
            self.page.wait_for_timeout(20)

    def serious(self) -> list[str]:
        """Findings of axe-core that keep people out: rule, and the first element that breaks it."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(gzip.decompress(AXE.read_bytes()).decode())
        found = self.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:160]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def cut_off(self) -> list[str]:
        """Tables of the view, unfolded, that are wider than their place."""
        return list(self.page.evaluate(CUT_OFF))

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """What a function of JavaScript returns."""
        return self.page.evaluate(script, argument)


def _foreign(url: str, own: str) -> bool:
    return url.startswith(("http", "ws")) and not (own and url.startswith(own))


@contextmanager
def chromium(own: str = "") -> Iterator[Shown]:
    """A browser with one page at 1280 pixels.

    Args:
        own: address of the server behind the page; any other request is refused and complained of. Empty for a file.

    Raises:
        pytest.skip.Exception: no Chromium or no driver for it on this machine.
    """
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        shown = Shown(page)
        page.on("console", lambda said: said.type in ("error", "warning") and shown.complaints.append(said.text))
        page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        page.route(
            lambda url: _foreign(url, own), lambda route: (shown.complaints.append(route.request.url), route.abort())
        )
        try:
            yield shown
        finally:
            browser.close()
