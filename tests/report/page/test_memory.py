"""The memory view's data: bars that are the answer's bytes, peaks with their moment, repairs that fit."""

from __future__ import annotations

import pytest

from meshwright.report.page.views.memory import view_data
from tests.report.page.chromium import chromium
from tests.report.page.sources import NAMES, served, source

STRIPS = """() => [...document.querySelectorAll("canvas.strip")].map(({ width, height }, at, all) => {
  const read = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  read.drawImage(all[at], 0, 0);
  return read.getImageData(0, 0, width, height).data.some((value) => value > 0);
})"""


@pytest.mark.parametrize("name", NAMES)
def test_bars_are_the_bytes_of_the_answer(name: str) -> None:
    answer = source(name)
    plan = answer.plans[0]
    data, stages = view_data(plan, answer), plan.entry["estimate"]["stages"]
    for stage, over_time in zip(stages, data["over_time"]["memory"]["workers"], strict=True):
        assert sum(stage["memory_bytes"].values()) == pytest.approx(stage["peak_memory_bytes"])
        assert over_time["capacity_bytes"] == stage["capacity_bytes"]
    assert data["fits"] == [stage.fits for stage in plan.estimate.stages]


def test_stages_have_the_capacity_of_their_own_device() -> None:
    answer = source("mixed")
    data = view_data(answer.plans[0], answer)
    stages = answer.plans[0].entry["estimate"]["stages"]
    assert len({(device, stage["capacity_bytes"]) for device, stage in zip(data["devices"], stages, strict=True)}) == 2


def test_the_peak_has_a_moment_and_a_task() -> None:
    answer = source("dense")
    over_time = view_data(answer.plans[0], answer)["over_time"]
    for row, task in zip(over_time["memory"]["workers"], over_time["tasks"], strict=True):
        assert 0 < row["peak_s"] < over_time["end_s"]
        assert task.startswith(("forward of micro-batch ", "recompute of micro-batch "))


def test_a_plan_that_does_not_fit_has_changes_that_do() -> None:
    answer = source("overfull")
    repairs = view_data(answer.plans[0], answer)["repairs"]
    assert repairs
    assert all(one["peak_memory_bytes"] <= one["capacity_bytes"] for one in repairs)
    fitting = source("dense")
    assert view_data(fitting.plans[0], fitting)["repairs"] == []


def test_memory_over_time_is_drawn_anew_after_each_change() -> None:
    """The canvases of what is gone are drawn on again, one for each picture."""
    with served(source("dense")) as address, chromium(own=address) as shown:
        page = shown.page
        page.goto(f"{address}#view=memory")
        page.wait_for_selector("html[data-priced='1'] canvas.strip", state="attached")
        for number, choice in enumerate(("full", "none", "full"), start=2):
            page.click(f"#knob-recompute-{choice}")
            page.wait_for_selector(f"html[data-priced='{number}']", state="attached")
            assert shown.evaluate(STRIPS) == [True, True]
        assert shown.complaints == []


ASKED = """() => {
  window.asked = [];
  const before = window.fetch;
  window.fetch = (path, more) => {
    if (more?.body?.includes('"asked"')) window.asked.push(path);
    return before(path, more);
  };
}"""
PULL = """(at) => {
  const slider = document.getElementById("knob-memory-bandwidth");
  slider.value = String(at);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  slider.dispatchEvent(new Event("change", { bubbles: true }));
}"""


def test_repairs_are_asked_for_once_nothing_is_changed_any_more() -> None:
    """Tens of plans are priced for them, which would take the server from sliders."""
    with served(source("overfull")) as address, chromium(own=address) as shown:
        page = shown.page
        page.goto(f"{address}#view=memory")
        page.wait_for_selector("html[data-priced='1'] .chip", state="attached")
        shown.evaluate(ASKED)
        shown.evaluate("() => { " + "".join(f"({PULL})({at});" for at in (9, 10, 11)) + " }")
        page.wait_for_selector(".chip", state="detached")
        page.wait_for_selector(".chip", state="attached")
        assert shown.evaluate("() => window.asked") == ["view"]
        assert shown.complaints == []
