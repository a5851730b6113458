"""The frontier: axes to choose, the front over them, and plans one change away that a click shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright import plan, report
from meshwright.app.pages.source import page_source
from meshwright.app.requests.page import WebRequest
from tests.report.page.chromium import chromium
from tests.report.page.sources import served, source

POINTS = """() => [...document.querySelectorAll('#view svg[aria-label^="Plans by"]:not(.parallel) g[aria-label]')]
  .map((one) => one.getAttribute('aria-label'))"""

LYING = """() => [...new Set([...document.querySelectorAll('.ruled line')]
  .map((one) => one.y1.baseVal.value === one.y2.baseVal.value))]"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("frontier") / "plan.html"
    report(plan("llama-3-8b", gpus="8xH100", top=3, price=2.0, pareto=True), output=found)
    return found


def test_axes_are_chosen_and_kept_in_the_address(file: Path) -> None:
    with chromium() as shown:
        shown.open(file, "frontier")
        before = shown.evaluate(POINTS)
        assert shown.page.locator("#view polyline.front").count() == 1
        shown.page.select_option("#frontier-y", "cost")
        shown.page.select_option("#frontier-x", "rate")
        drawing = shown.page.locator("#view svg[aria-label='Plans by tokens/s per GPU and cost of a step']")
        assert drawing.count() == 1
        after = shown.evaluate(POINTS)
        assert 2 < len(after) <= len(before)
        assert all("USD" in one for one in after)
        assert "frontier.x=rate" in shown.page.url
        table = shown.page.locator("#view th", has_text="Cost of a step")
        assert table.count() == 1
        shown.page.select_option("#frontier-y", "energy")
        assert "plans are not drawn" in shown.page.inner_text("#view")
        shown.page.reload()
        shown.page.wait_for_selector("html[data-drawn]", state="attached")
        assert shown.page.locator("#frontier-x").input_value() == "rate"
        assert shown.serious() == []
        assert shown.complaints == []


@pytest.mark.parametrize(("width", "lies"), [(390, True), (1280, False)])
def test_axes_of_settings_lie_one_below_the_other_where_they_have_no_room(file: Path, width: int, lies: bool) -> None:
    with chromium() as shown:
        shown.page.set_viewport_size({"width": width, "height": 900})
        shown.open(file, "frontier")
        assert shown.cut_off() == []
        assert shown.evaluate(LYING) == [lies]
        every = shown.page.locator(".parallel polyline").count()
        value = shown.page.locator(".ruled [role=button]", has_text="yes").last
        value.focus()
        value.press("Enter")
        kept = shown.page.locator(".parallel polyline:not(.beyond)").count()
        assert 0 < kept < every
        assert shown.page.locator("#view", has_text=f"{kept} of {every} plans within the marks").count() == 1
        assert shown.serious() == []


def test_a_change_of_stages_is_shown_by_a_click() -> None:
    with served(source("mixed")) as address, chromium(own=address) as shown:
        shown.page.goto(f"{address}#view=frontier")
        change = shown.page.locator("#view .pick", has_text=re.compile(r": tp \d+ → \d+")).first
        change.click(timeout=120_000)
        shown.page.locator(".because", has_text="What if").wait_for(timeout=120_000)
        assert "changes=" in shown.page.url
        assert shown.complaints == []


def test_a_reason_that_excluded_plans_shows_some_of_them() -> None:
    question = page_source(WebRequest.read({"model": "llama-3-8b", "gpus": "8xH100", "top": 2}))
    with served(question) as address, chromium(own=address) as shown:
        shown.page.goto(f"{address}#view=frontier")
        reasons = shown.page.locator("[aria-label='Counts of the search'] .pick")
        reasons.filter(has_text="exceeds memory").first.click(timeout=120_000)
        large = shown.page.locator("[aria-label^='Excluded for their memory'] tbody tr")
        large.first.wait_for(timeout=120_000)
        assert all("GiB" in row.locator("td").last.inner_text() for row in large.all())
        reasons.filter(has_text="time bound").first.click()
        late = shown.page.locator("[aria-label^='Excluded for their time'] tbody tr")
        late.first.wait_for(timeout=120_000)
        assert all(row.locator("td").nth(1).inner_text().startswith("+") for row in late.all())
        assert all(row.locator("td").last.inner_text() == "–" for row in late.all())
        late.first.locator(".pick").click()
        shown.page.locator(".because", has_text="What if").wait_for(timeout=120_000)
        assert shown.complaints == []
