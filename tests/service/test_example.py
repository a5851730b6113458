"""The example of the page: its recorded answer is the planner's, and is there before the planner has said it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from meshwright import plan
from meshwright.service import example
from meshwright.service.local import listening
from meshwright.service.waiting import waiting_page
from tests.report.page.chromium import chromium

FILE = Path(example.__file__).with_name(example.FILE)


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Where two documents differ by more than the last digits of a number."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return [found for name in left for found in differences(left[name], right[name], f"{where}.{name}")]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [found for at in range(len(left)) for found in differences(left[at], right[at], f"{where}[{at}]")]
    if isinstance(left, float) and isinstance(right, float | int):
        return [] if math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-12) else [f"{where}: {left} is {right}"]
    return [] if left == right else [f"{where}: {str(left)[:80]} is {str(right)[:80]}"]


def test_the_recorded_answer_is_what_the_planner_says() -> None:
    found = json.loads(json.dumps(example.worked_out()))
    if os.environ.get("MESHWRIGHT_UPDATE_DOCS"):
        FILE.write_text(json.dumps(found, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
        example.recorded_example.cache_clear()
    assert differences(example.recorded_example(), found)[:5] == [], "`make example` records it anew"


def test_the_example_is_what_the_command_of_its_page_answers() -> None:
    page = example.recorded_example()["page"]
    assert page["made_by"]["command"] == "meshwright plan llama-3.1-70b --gpus 64xH100 --seq 8192"
    answer = plan("llama-3.1-70b", gpus="64xH100", seq_len=8192)
    shown, said = page["document"]["plans"][0], answer.plans[0]
    assert shown["name"] == said.row.format()
    assert shown["estimate"]["step_time_s"] == pytest.approx(said.estimate.step_time_s, rel=1e-6)


def test_the_page_has_verdict_and_settings_before_there_is_an_answer() -> None:
    plans = example.recorded_example()["page"]["document"]["plans"]
    listener = listening(None)
    own = f"http://127.0.0.1:{listener.getsockname()[1]}/key/"
    with waiting_page(listener, "key", example.example_page()) as drawn, chromium(own=own) as shown:
        assert not drawn.is_set()
        shown.page.goto(own)
        shown.page.wait_for_selector("html[data-priced]", state="attached")
        assert drawn.wait(20), "the page asks the planner once it is drawn"
        assert shown.page.inner_text(".verdict .plan") == plans[0]["title"]
        assert float(shown.page.inner_text(".tile.lead .value").removesuffix(" s")) == pytest.approx(
            plans[0]["estimate"]["step_time_s"], rel=5e-3
        )
        assert shown.page.locator("aside input[type=range]").count() >= 4
        assert shown.page.locator("#view .grid").count() == 1
        # What is asked meanwhile waits for the planner; nothing is refused.
        shown.page.click("#knob-recompute-full")
        shown.page.wait_for_timeout(300)
        assert shown.page.locator(".problem").count() == 0
        assert shown.complaints == []
    listener.close()
