"""The load of experts on the page: bars that sum to all tokens, ranks as they are priced, a stroke that prices anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from meshwright import estimate
from meshwright.app.pages.source import source_of
from meshwright.report.page.views.experts import view_data
from meshwright.specs.expert_load import ExpertLoad
from tests.report.page.chromium import chromium
from tests.report.page.sources import served, source

PLAN = "tp2.pp2.ep4.dp4.z1.mbs1.gbs64"
HOT = ((8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),)
COUNTS = "8,1,1,1,1,1,1,1\n1,1,1,8,1,1,1,1\n" * 16


def shown(load: Any, plan: str = PLAN) -> dict[str, Any]:
    stated = ExpertLoad(counts=load) if isinstance(load, tuple) else load
    answer = source_of(estimate("mixtral-8x7b", plan, gpus="16xH100", expert_load=stated))
    return view_data(answer.plans[0], answer)


@pytest.mark.parametrize("load", ["balanced", "1.5", "zipf:1.2", HOT])
def test_bars_are_over_the_mean_and_ranks_sum_their_experts(load: Any) -> None:
    data = shown(load)
    assert np.mean(data["load"]) == pytest.approx(1)
    (way,) = data["ways"]
    assert way["ranks"] == pytest.approx(np.reshape(data["load"], (4, 2)).mean(axis=1).tolist(), abs=1e-5)
    assert (data["experts"], data["top_k"], way["stages"]) == (8, 2, [[0, 0], [0, 1]])


def test_the_fullest_rank_is_the_one_that_is_priced() -> None:
    assert shown("1.5")["ways"][0]["computed"] == 1.5
    assert shown(HOT)["ways"][0]["computed"] == pytest.approx(4 * 9 / 15)
    shadowed = shown(HOT, "tp2.pp2.ep4.epshadow1.dp4.z1.mbs1.gbs64")["ways"][0]
    assert (shadowed["arriving"], shadowed["computed"]) == pytest.approx((4 * 2 / 15, 4 * (2 + 8 / 4) / 15))


def test_without_experts_there_is_nothing_to_draw() -> None:
    answer = source("dense")
    assert "experts" in view_data(answer.plans[0], answer)["absent"]


@pytest.fixture
def address() -> Iterator[str]:
    with served(source_of(estimate("mixtral-8x7b", PLAN, gpus="16xH100"))) as found:
        yield found


def test_strokes_laws_and_counts_price_the_plan_again(address: str, tmp_path: Any) -> None:
    file = tmp_path / "counts.csv"
    with chromium(own=address) as browser:
        page = browser.page
        page.goto(f"{address}#view=experts")
        page.wait_for_selector("html[data-priced]", state="attached")
        page.wait_for_selector("svg.bars")
        assert browser.serious() == []
        page.focus("#experts-zipf")
        page.keyboard.press("End")
        page.locator(".because", has_text="expert load zipf:2.5").wait_for()
        page.locator("#view p", has_text="No expert gets a token twice").wait_for()
        assert page.evaluate("document.activeElement.id") == "experts-zipf"
        page.click("#experts-alike")
        page.locator("#view p", has_text="All get the same").wait_for()
        box = page.locator("svg.bars").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.5)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=4)
        page.locator(".because", has_text="expert load counted on 1 layer").wait_for()
        page.mouse.up()
        page.locator("#view p", has_text="One load for every layer").wait_for()
        assert "changes=" in page.url
        file.write_text(COUNTS)
        page.set_input_files("#expert-counts", file)
        page.locator("#view p", has_text="Counted on 32 layers").wait_for()
        assert browser.complaints == []
        file.write_text("1,2\n")
        page.set_input_files("#expert-counts", file)
        page.locator("aside .problem", has_text="the load counts 2 experts").wait_for()
