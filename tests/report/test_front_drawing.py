"""The front as text and as a figure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.report.front_drawing import front_rows, front_svg
from meshwright.report.plan_tables import front_list
from meshwright.units import GIB

NAMESPACE = "{http://www.w3.org/2000/svg}"


def _point(time_s: float, size_gib: float) -> dict[str, object]:
    return {"step_time_s": time_s, "peak_memory_bytes": size_gib * GIB, "devices": 8, "title": "dp8"}


def test_less_memory_is_lower_and_more_time_further_right() -> None:
    rows = front_rows([_point(1.0, 60.0), _point(2.0, 40.0), _point(4.0, 30.0)])
    places = {mark: (line, row.index(mark)) for mark in "123" for line, row in enumerate(rows[:-2]) if mark in row[10:]}
    assert places["1"][0] < places["2"][0] < places["3"][0]
    assert places["1"][1] < places["2"][1] < places["3"][1]
    assert front_rows([_point(1.0, 60.0)]) == []


def test_every_plan_that_is_listed_is_drawn_with_its_mark() -> None:
    """Nine of eleven were, and one of two in the same place."""
    front = [_point(1.0 + 0.001 * place, 60.0 - place) for place in range(11)]
    rows = front_rows(front)
    drawn = "".join(row.partition("|")[2] for row in rows[:-2]).replace(" ", "")
    assert sorted(drawn) == sorted("123456789ab")
    listed = [line.plain.split()[0] for line in front_list(front_of(front))]
    assert listed == [*"123456789ab"]
    together = front_rows([_point(1.0, 60.0), _point(1.0, 60.0), _point(4.0, 30.0)])
    assert any("12" in row for row in together)


def front_of(points: list[dict[str, object]]) -> list[dict[str, object]]:
    """Points as `pareto` has them."""
    return [{**point, "device_seconds": 8.0} for point in points]


def test_every_plan_of_the_front_is_a_dot_with_its_name() -> None:
    answer = mw.plan("gpt2", gpus="4xH100", global_batch=16, pareto=True)
    dots = ET.fromstring(answer.front_svg()).findall(f".//{NAMESPACE}circle/{NAMESPACE}title")
    assert len(dots) == len(answer.pareto)
    with pytest.raises(InputError, match="there is no front to draw"):
        mw.plan("gpt2", gpus="4xH100", global_batch=16).front_svg()


def test_the_axes_of_the_figure_have_round_numbers() -> None:
    svg = front_svg("two plans", [_point(2.54, 28.7), _point(7.39, 74.3)], 60.0 * GIB)
    across = re.findall(r'text-anchor="middle">([\d.]+) s<', svg)
    up = re.findall(r'text-anchor="end">(\d+)<', svg)
    assert across == ["3", "4", "5", "6", "7"]
    assert up == ["30", "40", "50", "60", "70"]
    assert "capacity 60<" in svg
