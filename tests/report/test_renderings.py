"""What people see: complete, inside the width, readable without colour, self-contained in notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from meshwright import check, estimate, size
from meshwright.app.compare import compare
from meshwright.report.html import renderable_html
from meshwright.report.parts import MEMORY_LETTERS, letter_cells, memory_bar
from meshwright.report.plan_tables import PlanTable, bottleneck, shown_stages, wrap_name
from meshwright.report.words.titles import assumption_name
from tests.app.questions import GPUS, MODEL, best_plans

BUILDERS: dict[str, Callable[[], Any]] = {
    "plan set": best_plans,
    "plan": lambda: best_plans()[0],
    "explanation": lambda: best_plans()[0].explain(),
    "comparison": lambda: compare(best_plans()[0], best_plans()[1]),
    "check": lambda: check(MODEL, "z0.mbs8", GPUS, global_batch=64),
    "illegal": lambda: check(MODEL, "tp6", GPUS, search=False),
    "size": lambda: size(
        MODEL, "H100", step_time=5, pin="sharding=z1,tp=1,recompute=none", forbid="vpp,cp", global_batch=64
    ),
    "too large": lambda: estimate("llama-3-70b", "pp8", gpus=GPUS),
}

ANSWERS = {name: cache(build) for name, build in BUILDERS.items()}
"""Each answer is found once."""


def shown(answer: Any, width: int, *, encoding: str = "utf-8") -> str:
    class File(StringIO):
        pass

    file = File()
    File.encoding = property(lambda _: encoding)
    Console(file=file, width=width, force_terminal=False, color_system=None).print(answer)
    return file.getvalue()


def test_the_table_and_the_breakdown_give_the_largest_part_one_share() -> None:
    """Rounded so that all sum to 100%: 9.46% is 9.4% where other parts need the tenth more."""
    parts = {"compute": 89.57, "tp": 9.46, "optimizer": 0.69, "dp": 0.28}
    assert bottleneck({"breakdown_s": parts, "step_time_s": 100.0}) == ("tp", 0.094)
    assert bottleneck({"breakdown_s": {"compute": 9999.0, "dp": 1.0}, "step_time_s": 10000.0}) == ("dp", 0.0001)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ANSWERS)
def test_text_keeps_to_the_width_and_has_no_colour(name: str, width: int) -> None:
    text = shown(ANSWERS[name](), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\u200b" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_of_a_plan_set_has_everything(width: int) -> None:
    plans = best_plans()
    text = " ".join(shown(plans, width).split())
    for part in (plans[0].identities()[0], "runner-up", "MFU", "Memory of", "Time of a step", "Ranks", "Assumed"):
        assert part in text
    assert " ".join(plans.verdict.text.split()) in text
    for assumption in plans.assumptions:
        assert assumption_name(assumption.name) in text


def test_plan_names_can_be_copied_from_a_wide_page() -> None:
    text = shown(best_plans(), 120)
    for entry in best_plans():
        assert entry.title in text


def test_bars_are_plain_where_blocks_cannot_be_written() -> None:
    assert "█" not in shown(best_plans()[0], 100, encoding="ascii")
    assert "####" in shown(best_plans()[0], 100, encoding="ascii")


@pytest.mark.parametrize("name", ANSWERS)
def test_notebook_pages_load_nothing_and_close_their_tags(name: str) -> None:
    html = ANSWERS[name]()._repr_html_()
    assert not re.search(r"https?://|<script|<link|@import|src=", html)

    class Balanced(HTMLParser):
        stack: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.stack.pop() == tag

    parser = Balanced()
    parser.stack = []
    parser.feed(html)
    assert not parser.stack


def test_names_are_escaped() -> None:
    assert "<b>" not in renderable_html("<b>")


@pytest.mark.parametrize("name", ANSWERS)
def test_reprs_are_short(name: str) -> None:
    assert len(repr(ANSWERS[name]())) < 400


@given(
    sizes=st.lists(st.floats(0, 1e12), min_size=7, max_size=7),
    capacity=st.floats(1, 1e12),
    width=st.integers(4, 60),
)
def test_a_memory_bar_is_as_wide_as_it_should_be(sizes: list[float], capacity: float, width: int) -> None:
    parts = dict(zip(MEMORY_LETTERS, sizes, strict=True))
    cells = letter_cells(parts, capacity, width)
    assert all(count >= 0 for _, count in cells)
    assert sum(count for _, count in cells) <= width
    bar = memory_bar(parts, capacity, width)
    assert len(bar) == width
    assert bar.plain.endswith("!") == (sum(sizes) > capacity)


@given(
    tokens=st.lists(st.text("abc123-", min_size=1, max_size=9), min_size=1, max_size=9),
    mark=st.sampled_from([".", " "]),
    width=st.integers(10, 40),
)
def test_a_wrapped_name_is_the_name(tokens: list[str], mark: str, width: int) -> None:
    name = mark.join(tokens)
    lines = wrap_name(name, width)
    assert "".join(lines) == name
    assert all(len(line.rstrip()) <= width for line in lines)


def test_no_column_is_cut_where_names_of_plans_have_words() -> None:
    entry = best_plans().to_dict()["plans"][0]
    table = PlanTable([entry | {"title": "tp4.ep8.epdedup.dp144.hsdp9.mbs7.gbs1008.tpov + recompute per layer"}])
    for width in range(100, 140):
        console = Console(width=width, file=StringIO())
        console.print(table)
        assert "…" not in console.file.getvalue(), width


@given(st.lists(st.floats(1, 100), min_size=1, max_size=40))
def test_the_fullest_stage_is_always_shown(peaks: list[float]) -> None:
    stages = [{"stage": i, "peak_memory_bytes": peak, "capacity_bytes": 80.0} for i, peak in enumerate(peaks)]
    found = shown_stages(stages)
    assert len(found) <= 6
    assert max(peaks) in [stage["peak_memory_bytes"] for stage in found]
    numbers = [stage["stage"] for stage in found]
    assert numbers == sorted(set(numbers))
    assert {0, len(peaks) - 1} <= set(numbers)
