"""What if of a plan over several kinds of device, in a real browser: stages of one kind are changed by themselves."""

from __future__ import annotations

from meshwright import plan
from meshwright.app.pages.source import source_of
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
        assert "A100-80: recompute none → full" in page.inner_text(".verdict")
        assert page.locator("#knob-A100-80-recompute-full[aria-pressed=true]").count() == 1
        assert browser.serious() == []
        assert browser.complaints == []


def test_settings_of_many_kinds_are_folded_and_stay_as_they_were_left() -> None:
    many = source_of(plan("llama-3.1-8b", gpus="8xH100,8xA100-80,8xH200", global_batch=64, top=1))
    with served(many) as address, chromium(own=address) as browser:
        page = browser.page
        page.goto(address)
        page.wait_for_selector("html[data-priced]", state="attached")
        kinds = page.locator("details.knobs > summary").all_inner_texts()
        assert set(kinds) == {group.name for group in many.plans[0].job.cluster.groups}
        assert page.locator("details.knobs[open]").count() == 0
        page.click(f"#knobs-{kinds[0]}")
        page.click(f"#knob-{kinds[0]}-recompute-full")
        page.wait_for_selector("html[data-priced='2']", state="attached")
        assert page.locator("details.knobs[open] > summary").all_inner_texts() == kinds[:1]
        assert browser.serious() == []
        assert browser.complaints == []
