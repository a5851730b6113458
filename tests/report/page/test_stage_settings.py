"""What if of a plan over two kinds of device, in a real browser: the stages of one kind are changed by themselves."""

from __future__ import annotations

from tests.report.page.chromium import chromium
from tests.report.page.sources import served, source


def test_stages_of_one_kind_are_changed_by_themselves() -> None:
    with served(source("mixed")) as address, chromium(own=address) as browser:
        page = browser.page
        page.goto(address)
        page.wait_for_selector("html[data-priced]", state="attached")
        before = page.inner_text(".tile.lead .value")
        page.click("#knob-A100-80-recompute-full")
        page.wait_for_selector("html[data-priced='2']", state="attached")
        assert page.inner_text(".tile.lead .value") != before
        assert "A100-80: recompute none -> full" in page.inner_text(".verdict")
        assert page.locator("#knob-A100-80-recompute-full[aria-pressed=true]").count() == 1
        assert browser.serious() == []
        assert browser.complaints == []
