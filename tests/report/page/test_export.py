"""Files of a framework on the page, in a real browser: those of `export`, changed lines and refusals with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshwright import plan
from meshwright.app.export import export
from meshwright.app.pages.source import source_of
from meshwright.report.page.source import PageSource
from meshwright.targets import TARGETS
from tests.report.page.chromium import Shown, chromium
from tests.report.page.sources import served

FILE = """(name) => document.querySelector(`pre[aria-label="${name}"]`)?.textContent ?? null"""
LINES = "(kind) => [...document.querySelectorAll(`#view .${kind}`)].map(({ textContent }) => textContent.trim())"


@pytest.fixture(scope="module")
def two_plans() -> PageSource:
    return source_of(plan("llama-3-8b", gpus="16xH100", pin="sharding=z1", top=2))


@pytest.fixture
def shown(browser: Shown) -> Shown:
    browser.complaints.clear()
    browser.page.click("#tab-overview")
    return browser


@pytest.fixture(scope="module")
def browser(two_plans: PageSource) -> Iterator[Shown]:
    with served(two_plans) as address, chromium(own=address) as browser:
        browser.page.goto(address)
        browser.page.wait_for_selector("html[data-priced]", state="attached")
        yield browser


def test_the_files_are_those_of_export(shown: Shown, two_plans: PageSource) -> None:
    shown.page.click("#tab-export")
    shown.page.wait_for_selector('pre[aria-label="train.sh"]')
    for name, text in export(two_plans.plans[0].job, "megatron").files:
        assert shown.evaluate(FILE, name) == text
    runs = shown.page.locator("#export-to optgroup[label='run this plan'] option").all_inner_texts()
    job = two_plans.plans[0].job
    assert runs == [name for name in TARGETS if not TARGETS[name].problems(job)]
    assert shown.page.input_value("#export-to") == runs[0]
    assert shown.serious() == []
    assert shown.complaints == []


def test_compared_plans_have_the_lines_in_which_their_files_differ(shown: Shown, two_plans: PageSource) -> None:
    shown.page.click("#tab-compare")
    shown.page.click("text=Lines of their configuration that differ")
    shown.page.wait_for_selector("#view pre.file .come")
    texts: list[Any] = [dict(export(one.job, "megatron").files)["train.sh"].splitlines() for one in two_plans.plans]
    come = {line.removeprefix("+ ").strip() for line in shown.evaluate(LINES, "come")}
    gone = {line.removeprefix("- ").strip() for line in shown.evaluate(LINES, "gone")}
    own, other = ({line.strip() for line in lines} for lines in texts)
    assert own - other <= gone
    assert other - own <= come
    assert shown.serious() == []


def test_what_a_framework_cannot_run_is_refused_with_a_search_for_what_it_can(shown: Shown) -> None:
    shown.page.click("#tab-export")
    shown.page.wait_for_selector('pre[aria-label="train.sh"]')
    shown.page.select_option("#export-to", "torchtitan")
    shown.page.wait_for_selector("#view .problem")
    assert "MW420" in shown.page.inner_text("#view")
    assert shown.page.get_by_role("button", name="Search the best plan that torchtitan runs").count() == 1
    shown.page.select_option("#export-to", "megatron")
    shown.page.wait_for_selector('pre[aria-label="train.sh"]')
