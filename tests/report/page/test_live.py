"""The playground in a real browser, with its server: schedules moved by hand, sizes refused with their rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.page.chromium import chromium
from tests.report.page.sources import served, source


@pytest.fixture
def address() -> Iterator[str]:
    with served(source("mixed")) as found:
        yield found


def test_a_schedule_follows_the_hand(address: str) -> None:
    with chromium(own=address) as shown:
        shown.page.goto(f"{address}#view=playground")
        shown.page.wait_for_selector(".playground-shown canvas.pipeline-base")
        title = shown.page.locator(".playground-shown h2")
        assert title.first.inner_text().startswith("1f1b ")
        shown.page.select_option("#playground-name", "zb-h1")
        shown.page.select_option("#playground-below", "dualpipe")
        title.nth(1).filter(has_text="dualpipe ").wait_for()
        title.first.filter(has_text="zb-h1 ").wait_for()
        quicker = title.first.inner_text()
        shown.page.locator("#playground-weight_s").fill("90")
        title.first.filter(has_not_text=quicker).wait_for()
        assert shown.complaints == []
        shown.page.fill("#playground-p", "7")
        shown.page.locator(".notice", has_text="p is even").wait_for()
        # The refusal is an answer of the server, which a browser's console counts as an error of its own.
        assert all("422" in text for text in shown.complaints)


def test_every_control_of_a_schedule_has_a_name(address: str) -> None:
    with chromium(own=address) as shown:
        shown.page.goto(f"{address}#view=playground")
        shown.page.wait_for_selector(".playground-shown canvas.pipeline-base")
        for name in ("Forward", "Input gradient", "Weight gradient", "Recompute", "Transfer"):
            assert shown.page.get_by_role("slider", name=name).count() == 1
        for name in ("Schedule", "and below it"):
            assert shown.page.locator("form.playground").get_by_role("combobox", name=name).count() == 1
