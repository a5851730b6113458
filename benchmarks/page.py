"""The live page in a browser: paint, size, sliders, timeline, a report of a large plan; its picture for the docs.

`python -m benchmarks.page` prints the numbers and writes docs/page.png. It needs a Chromium and the extra test.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import quote

from benchmarks.timing import Line

PICTURE = Path(__file__).parents[1] / "docs" / "page.png"
QUESTIONS = (
    ("llama-3.1-70b", "64xH100"),
    ("llama-3.1-405b", "1024xH100"),
    ("deepseek-v3", "2048xH800"),
)
LONG = {"name": "interleaved", "p": 64, "m": 256, "v": 2, "forward_s": 1.0, "input_s": 1.0, "weight_s": 1.0}
"""The schedule whose timeline is moved."""
SLIDERS = 3
"""Sliders that are pulled from end to end, each position once: sequence length, then numbers of the cluster."""
PULLED = """
async (id) => {
  const [slider, root] = [document.getElementById(id), document.documentElement];
  const drawn = (before) => new Promise((done) => {
    const watch = new MutationObserver(() => root.dataset.priced !== before && (watch.disconnect(), done()));
    watch.observe(root, { attributes: true });
  });
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(null);
  }));
  const times = [];
  for (let at = 0; at <= Number(slider.max); at += 1) {
    const begun = performance.now();
    const done = drawn(root.dataset.priced);
    slider.value = String(at);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await done;
    await painted();
    times.push(performance.now() - begun);
  }
  const done = drawn(root.dataset.priced);
  slider.dispatchEvent(new Event("change", { bubbles: true }));
  await done;
  return times;
}
"""
MOVED = """
async () => {
  const { pipeline } = document.querySelector(".playground-shown section");
  pipeline.zoom(0.3);
  const before = pipeline.state.frames;
  const begun = performance.now();
  for (let at = 0; at < FRAMES; at += 1) {
    pipeline.pan(at % 40 < 20 ? 0.02 : -0.02);
    await new Promise(requestAnimationFrame);
  }
  await new Promise(requestAnimationFrame);
  const passed_s = (performance.now() - begun) / 1000;
  pipeline.zoomTo(1000);
  return { tasks: pipeline.step.count, per_s: (pipeline.state.frames - before) / passed_s };
}
"""
FRAMES = 120
MEGABYTE = 1e6

HEAVY_VIEWS = ("timeline", "memory")
"""Views that a moved slider has simulated anew."""


def main() -> None:
    """Measure, draw and print."""
    for line in page_lines(PICTURE):
        print("; ".join(cell for cell in line.cells() if cell != "-"))


def page_lines(picture: Path | None = None) -> list[Line]:
    """What looking costs.

    Args:
        picture: also drawn there, of the first question.
    """
    lines = [
        Line("page, compressed, without its data", page_bytes() / 1e3, 400, "kB", note="all modules and styles"),
        report_line(),
    ]
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser_path = None
    if browser_path is None:
        return [*lines, Line("page in a browser", None, 1, "s", note="needs Chromium and playwright")]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 1000}, device_scale_factor=1)
        lines.append(opening_line(page))
        for model, gpus in QUESTIONS:
            lines += measured(page, model, gpus, picture if (model, gpus) == QUESTIONS[0] else None)
        lines.append(timeline_line(page))
        browser.close()
    return lines


def page_bytes() -> int:
    """Of what a browser loads once."""
    from meshwright.report.page.shell import asset, module_texts, styles

    texts = [*module_texts(live=True).values(), styles(), asset("index.html")]
    return sum(len(gzip.compress(text.encode(), 9)) for text in texts)


def report_line() -> Line:
    """Size of the one-file report of a plan of 405B."""
    from meshwright import plan, report

    model, gpus = QUESTIONS[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.html"
        report(plan(model, gpus=gpus, top=1), output=file)
        size = file.stat().st_size
    return Line(f"`report`, {model} on {gpus}", size / MEGABYTE, 1.5, "MB", note="one HTML file with its data")


@contextmanager
def served(*asked: str) -> Iterator[str]:
    """The address of a live page, while it is served."""
    command = [sys.executable, "-m", "meshwright", "web", *asked, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(2)
            process.wait(20)


def opening_line(page: Any) -> Line:
    """From the start of the command to the first paint of the page that it opens, in a browser that runs."""
    with tempfile.TemporaryDirectory() as folder:
        shown, browser = Path(folder) / "shown", Path(folder) / "browser"
        browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.part; mv {shown}.part {shown}\n')
        browser.chmod(0o700)
        begun = time.perf_counter()
        command = [sys.executable, "-m", "meshwright", "web"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "BROWSER": str(browser)}
        ) as process:
            while not shown.exists() and process.poll() is None:
                time.sleep(0.002)
            page.goto(shown.read_text().strip())
            page.wait_for_selector("html[data-drawn] .verdict .plan", state="attached")
            painted_s = time.perf_counter() - begun
            page.wait_for_selector("html[data-confirmed]", state="attached")
            planned_s = time.perf_counter() - begun
            process.send_signal(2)
            process.wait(20)
    note = f"verdict and settings of the example, recorded; the planner has said the same after {planned_s:.2f} s"
    return Line("page from the start of the command, first paint", painted_s, 1, "s", note=note)


def measured(page: Any, model: str, gpus: str, picture: Path | None) -> list[Line]:
    """One question: from the start of the command to its paint, then a slider."""
    begun = time.perf_counter()
    with served(model, "--gpus", gpus) as url:
        ready_s = time.perf_counter() - begun
        page.goto(url)
        page.wait_for_selector("html[data-drawn]", state="attached")
        # The browser notes a paint some frames after it.
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
        paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        page.wait_for_selector("html[data-priced]", state="attached")
        times = pulled(page)
        by_view = {}
        for view in HEAVY_VIEWS:
            page.goto("about:blank")
            page.goto(f"{url}#view={view}")
            page.wait_for_selector(f"html[data-drawn^='{view}:'][data-priced]", state="attached")
            by_view[view] = quantiles(pulled(page, without=("knob-seq_len",)), n=20)
        if picture is not None:
            page.click("#knob-recompute-sel")
            page.click("#tab-timeline")
            page.wait_for_timeout(1500)
            page.screenshot(path=str(picture))
    cuts = quantiles(times, n=20)
    of = f"{model} on {gpus}"
    return [
        Line(f"page of {of}, first paint", paint_ms / 1e3, 1, "s", note=f"served after {ready_s:.2f} s of planning"),
        Line(f"slider of {of}, p95", cuts[18], 50, "ms", note=f"move to paint; median {cuts[9]:.0f} ms"),
        *(
            Line(f"slider of {of} beside its {view}, p95", own[18], 50, "ms", note=f"median {own[9]:.0f} ms")
            for view, own in by_view.items()
        ),
    ]


def pulled(page: Any, without: tuple[str, ...] = ()) -> list[float]:
    """Milliseconds from each move of a slider until the browser has painted what it changes.

    Args:
        page: that shows a plan.
        without: sliders that are left alone: the longest sequence would be simulated for every move after it.
    """
    sliders = page.evaluate("[...document.querySelectorAll('aside input[type=range]')].map((one) => one.id)")
    priced = [name for name in sliders if name not in ("knob-global_batch", "knob-memory-of-a-device", *without)]
    return [ms for name in priced[:SLIDERS] for ms in page.evaluate(PULLED, name)]


def timeline_line(page: Any) -> Line:
    """How smoothly a long timeline moves."""
    with served("gpt2", "--gpus", "2xH100") as url:
        page.goto(f"{url}#view=playground&playground.asked={quote(json.dumps(LONG))}")
        page.wait_for_selector(".playground-shown canvas.pipeline-base")
        page.wait_for_timeout(500)
        found = page.evaluate(MOVED.replace("FRAMES", str(FRAMES)))
    note = f"{found['tasks']:,} tasks, drawn without a GPU"
    return Line("timeline of 64 stages x 256 micro-batches", found["per_s"], 50, "frames per second", True, note)


if __name__ == "__main__":
    main()
