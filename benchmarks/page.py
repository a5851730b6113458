"""The live page in a browser: how soon it is painted, how large it is, how quick a slider is; its picture for the docs.

`python -m benchmarks.page` prints the numbers and writes docs/page.png. It needs a Chromium and the extra test.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

PICTURE = Path(__file__).parents[1] / "docs" / "page.png"
QUESTIONS = (
    ("llama-3.1-70b", "64xH100"),
    ("llama-3.1-405b", "1024xH100"),
    ("deepseek-v3", "2048xH800"),
)
PULLS = 40
"""Positions of a slider."""
TIMED = """
async () => {
  const { answer } = JSON.parse(document.getElementById("document").textContent);
  const ask = (length) => fetch("what-if", { method: "POST",
    body: JSON.stringify({ answer, plan: 0, changes: { seq_len: length }, settings: false }) });
  const times = [];
  for (let at = 0; at < PULLS + 5; at += 1) {
    const begun = performance.now();
    const found = await ask(4096 + 256 * at);
    if (!found.ok) throw new Error(await found.text());
    await found.json();
    if (at >= 5) times.push(performance.now() - begun);
  }
  return times;
}
"""


def main() -> None:
    """Measure and draw."""
    from playwright.sync_api import sync_playwright

    print(f"page, gzipped, with all modules and styles: {page_bytes() / 1e3:.0f} kB without its data")
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 1000}, device_scale_factor=1)
        for model, gpus in QUESTIONS:
            measure(page, model, gpus)
        browser.close()


def page_bytes() -> int:
    """Of what a browser loads once."""
    from meshwright.report.page.document import asset, module_texts, styles

    texts = [*module_texts(live=True).values(), styles(), asset("index.html")]
    return sum(len(gzip.compress(text.encode(), 9)) for text in texts)


def measure(page: Any, model: str, gpus: str) -> None:
    """One question: from the start of the command to its paint, then a slider."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "meshwright", "web", model, "--gpus", gpus, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        ready_s = time.perf_counter() - begun
        page.goto(url)
        page.wait_for_selector("html[data-drawn]", state="attached")
        paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        page.wait_for_selector("html[data-priced]", state="attached")
        times = page.evaluate(TIMED.replace("PULLS", str(PULLS)))
        cuts = quantiles(times, n=20)
        print(
            f"{model} on {gpus}: served after {ready_s:.2f} s, painted {paint_ms:.0f} ms after it is opened; "
            f"a slider is answered in {cuts[9]:.0f} ms, p95 {cuts[18]:.0f} ms"
        )
        if model == QUESTIONS[0][0]:
            page.click("#knob-recompute-sel")
            page.click("#tab-timeline")
            page.wait_for_timeout(1500)
            page.screenshot(path=str(PICTURE))
        process.send_signal(2)
        process.wait(20)


if __name__ == "__main__":
    main()
