"""Plans beside each other and what a release was held against, in a real browser: their numbers are the library's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from meshwright import plan
from meshwright.app.pages.source import source_of
from meshwright.formats.files import read_table
from meshwright.library.calibration import PACKAGED
from meshwright.report.page.source import PageSource
from meshwright.units import gib, percent, seconds
from tests.report.page.chromium import Shown, chromium
from tests.report.page.sources import served

WINDOWS = """() => [...document.querySelectorAll(".beside-steps section")].map(({ pipeline }) =>
  [pipeline.shown.from, pipeline.shown.to, pipeline.step.end_s])"""

ALIKE = """() => new Set([...document.querySelectorAll(".beside-steps section")].map(({ pipeline }) =>
  `${pipeline.shown.from} ${pipeline.shown.to}`)).size === 1"""

AREAS = """() => [...document.querySelectorAll(".treemap rect")].map(({ width, height }) =>
  (width.baseVal.value + 1) * (height.baseVal.value + 1))"""


@pytest.fixture(scope="module")
def two_plans() -> PageSource:
    return source_of(plan("llama-3-8b", gpus="8xH100", top=2))


@pytest.fixture(scope="module")
def shown(two_plans: PageSource) -> Iterator[Shown]:
    with served(two_plans) as address, chromium(own=address) as browser:
        browser.page.goto(address)
        browser.page.wait_for_selector("html[data-priced]", state="attached")
        yield browser


def test_two_steps_stand_on_one_axis_and_move_together(shown: Shown, two_plans: PageSource) -> None:
    shown.page.click("#tab-compare")
    shown.page.wait_for_selector(".beside-steps section:nth-of-type(2) canvas")
    ends_s = [one.estimate.step_time_s for one in two_plans.plans]
    (from_a, to_a, end_a), (from_b, to_b, end_b) = shown.evaluate(WINDOWS)
    assert (end_a, end_b) == pytest.approx(tuple(ends_s))
    assert (from_a, to_a) == (from_b, to_b) == pytest.approx((0, max(ends_s)))
    shown.page.get_by_role("button", name="Zoom in").click()
    shown.until(ALIKE)  # the other follows a frame later
    (from_a, to_a, _), (from_b, to_b, _) = shown.evaluate(WINDOWS)
    assert (from_a, to_a) == (from_b, to_b)
    assert to_a - from_a < 0.7 * max(ends_s)
    assert shown.serious() == []
    assert shown.complaints == []


@pytest.mark.parametrize("width", [390, 1024])
def test_plans_beside_each_other_need_no_scrolling_aside(shown: Shown, width: int) -> None:
    shown.page.set_viewport_size({"width": width, "height": 900})
    try:
        assert shown.cut_off() == []
        assert shown.serious() == []
    finally:
        shown.page.set_viewport_size({"width": 1280, "height": 900})


def test_a_choice_of_plans_stays_on_a_phone(shown: Shown) -> None:
    longer = source_of(plan("llama-3-8b", gpus="8xH100", top=3))
    browser = shown.page.context.browser
    assert browser is not None
    with served(longer) as address:
        phone = browser.new_page(viewport={"width": 390, "height": 844})
        phone.goto(f"{address}#view=compare")
        phone.wait_for_selector(".beside-steps section:nth-of-type(2) canvas")
        assert phone.locator("#view label select").count() == 1
        assert phone.evaluate("() => document.documentElement.scrollWidth") <= 390
        whole_s = max(one.estimate.step_time_s for one in longer.plans[:2])
        assert phone.inner_text(".pipeline-window >> nth=0").endswith(f" of {seconds(whole_s)}")
        phone.close()


def test_the_memory_of_a_stage_is_areas_with_the_sizes_of_its_plan(shown: Shown, two_plans: PageSource) -> None:
    shown.page.click("#tab-memory")
    shown.page.wait_for_selector(".treemap")
    names = shown.evaluate("() => [...document.querySelectorAll('.treemap g')].map((one) => one.ariaLabel)")
    stage = max(two_plans.plans[0].estimate.stages, key=lambda one: one.peak_memory_bytes / one.capacity_bytes)
    sizes = stage.to_dict()["memory_bytes"]
    assert f"weights: {gib(sizes['weights'])}" in names
    assert len(names) == sum(size > 0 for size in sizes.values()) + (stage.peak_memory_bytes < stage.capacity_bytes)
    areas = shown.evaluate(AREAS)
    assert sum(areas) == pytest.approx(480 * 260, rel=0.05)
    assert shown.complaints == []


def test_without_a_file_the_errors_of_the_release_are_shown(shown: Shown) -> None:
    shown.page.click("#tab-accuracy")
    shown.page.wait_for_selector("#view table")
    fit: Mapping[str, Any] = read_table(PACKAGED, "calibration")
    said = shown.page.inner_text("#view")
    assert f"{fit['runs']} published steps of {len(fit['ranges']['left_out']['sources'])} sources" in said
    for name in ("after", "left_out"):
        assert percent(fit["errors"][name]["median"]) in said
    left_out = fit["ranges"]["left_out"]
    assert shown.page.locator("#view tbody tr").count() == 2 + len(left_out["sources"])
    none_inside = next(source for source, inside in left_out["sources"].items() if not inside)
    row = shown.page.locator("#view tbody tr").filter(has=shown.page.get_by_text(none_inside, exact=True))
    assert re.split(r"\s*\t\s*|\n+", row.inner_text())[1:] == [str(left_out["runs"][none_inside]), "0%"]
    assert shown.serious() == []


def test_memory_of_every_stage_and_the_effect_of_each_setting_are_said(shown: Shown, two_plans: PageSource) -> None:
    shown.page.set_viewport_size({"width": 1280, "height": 900})
    shown.page.click("#tab-overview")
    shown.page.click("#tab-compare")
    table = shown.page.locator("[aria-label='Memory stage by stage'] tbody tr")
    table.first.wait_for()
    a, b = ({stage.stage: stage.peak_memory_bytes for stage in one.estimate.stages} for one in two_plans.plans)
    assert table.count() == len(a.keys() | b.keys())
    _, first, second, change = table.first.locator("th, td").all_inner_texts()
    assert (first, second) == (gib(a[0]), gib(b[0]))
    assert change == ("same" if a[0] == b[0] else f"{'−' if b[0] < a[0] else '+'}{gib(abs(a[0] - b[0]))}")
    tags = shown.page.locator(".beside .badge.effect").all_inner_texts()
    assert tags
    assert set(tags) == {"execution"}
    shown.page.click("#knob-recompute-full")
    shown.page.locator(".because", has_text="What if").wait_for()
    shown.page.locator("#knob-seq_len").focus()
    shown.page.keyboard.press("ArrowLeft")
    row = shown.page.locator(".beside tbody th", has_text="seq_len")
    row.wait_for()
    assert "training" in row.inner_text()
    recompute = shown.page.locator(".beside tbody th", has_text="recompute")
    assert "execution" in recompute.inner_text()
    assert shown.complaints == []
