"""The figure of regret and the table of tuners say what the studies say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from rich.console import Console

from meshwright.report.regret import median_curve, regret_svg
from meshwright.report.tuning import best_after, regret_percent, render_tune, render_tuners

SVG = "{http://www.w3.org/2000/svg}"


def study(label: str, seed: int, values: list[float | None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A study whose trials took a tenth of a second each; None is a trial that did not fit."""
    best, incumbents = float("inf"), []
    for number, value in enumerate(values, start=1):
        if value is not None and value < best:
            best = value
            incumbents.append({"trials": number, "value": value})
    found = {
        "label": label,
        "tuner": label,
        "algorithm": "a",
        "scheduler": "none",
        "seed": seed,
        "count": len(values),
        "counts": {"ok": sum(value is not None for value in values)},
        "resumed": 0,
        "incumbents": incumbents,
        "best": {"value": best, "name": "p"} if incumbents else None,
        "regret": best - 1.0 if incumbents else None,
    }
    at_s = [0.1 * (number + 1) for number in range(len(values))]
    return found, {"wall_s": at_s[-1], "priced_s": 0.01, "at_s": at_s, "took_s": [0.001] * len(values)}


def comparison(*studies: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": "meshwright.tune-comparison/1",
        "space": "a <small> space",
        "objective": "step_time_s",
        "size": 1000,
        "budget": 40,
        "optimum": {"value": 1.0, "name": "best", "space": 1000},
        "left_out": [],
        "studies": [found for found, _ in studies],
        "timing": {"search_s": 0.5, "studies": [timing for _, timing in studies]},
    }


DOCUMENT = comparison(
    study("random", 0, [None, 3.0, 2.0, *[None] * 36, 1.5]),
    study("random", 1, [4.0, None, 1.2, *[None] * 37]),
    study("tpe", 0, [2.0, 1.0, *[3.0] * 38]),
    study("tpe", 1, [*[None] * 40]),
)


def test_the_figure_is_one_file_with_a_line_a_study_and_a_median_a_tuner() -> None:
    root = ET.fromstring(regret_svg(DOCUMENT))
    groups = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert [group.findtext(f"{SVG}title") for group in groups] == ["random", "tpe"] * 2
    assert len(groups[0].findall(f"{SVG}path")) == 3
    text = "".join(root.itertext())
    assert "exact search: 500 ms" in text
    assert "random (2 seeds)" in text
    assert "a <small> space" in text
    assert not re.search(r"href|<script|<image|url\(", regret_svg(DOCUMENT))


def test_every_line_stays_in_its_panel() -> None:
    root = ET.fromstring(regret_svg(DOCUMENT))
    boxes = [
        tuple(float(box.get(name) or 0) for name in ("x", "y", "width", "height")) for box in root.findall(f"{SVG}rect")
    ][1:]
    paths = [path.get("d") or "" for path in root.iter(f"{SVG}path")]
    assert paths
    for path in paths:
        x = [float(value) for value in re.findall(r"[MH]([\d.]+)", path)]
        y = [float(value) for value in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", path)]
        inside = [
            left - 0.1 <= min(x)
            and max(x) <= left + width + 0.1
            and top - 0.1 <= min(y)
            and max(y) <= top + height + 0.1
            for left, top, width, height in boxes
        ]
        assert any(inside), path


def test_a_median_begins_when_half_of_the_studies_have() -> None:
    curves = [[(1.0, 0.4), (5.0, 0.1)], [(3.0, 0.2)], [(9.0, 0.3)]]
    assert median_curve(curves) == [(3.0, 0.4), (5.0, 0.2)]
    assert median_curve([[(1.0, 0.5)], []]) == []


def test_the_table_has_medians_and_says_where_nothing_was_found() -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(render_tuners(DOCUMENT))
    lines = {line.split()[0]: line.split() for line in capture.get().splitlines() if line.strip()}
    assert lines["random"][1] == "35%"
    assert lines["random"][4] == "60%"
    assert lines["tpe"][1] == "-"
    assert "medians over 2 seeds" in capture.get()


@pytest.mark.parametrize(
    ("regret", "text"), [(0.0, "0%"), (0.0042, "0.42%"), (0.13, "13%"), (None, "-"), (2.5, "250%")]
)
def test_a_regret_in_words(regret: float | None, text: str) -> None:
    assert regret_percent(regret) == text


def test_the_best_after_some_trials() -> None:
    found, _ = study("x", 0, [None, 3.0, None, 2.0])
    assert [best_after(found, trials) for trials in (1, 2, 3, 4, 99)] == [None, 3.0, 3.0, 2.0, 2.0]


def test_reasons_are_counted_by_kind() -> None:
    found, timing = study("random", 0, [None, None, None, 2.0])
    rows = [
        {"trial": 0, "status": "infeasible", "value": 2.0, "name": "p", "reason": "memory: 3 GiB of 2", "point": {}},
        {"trial": 1, "status": "infeasible", "value": 2.0, "name": "p", "reason": "memory: 4 GiB of 2", "point": {}},
        {"trial": 2, "status": "error", "value": None, "name": None, "reason": "ValueError: bad", "point": {}},
        {"trial": 3, "status": "ok", "value": 2.0, "name": "p", "reason": None, "point": {}},
    ]
    document = {**comparison((found, timing)), **found, "trials": rows}
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(render_tune(document))
    assert "2 x infeasible: memory\n" in capture.get()
    assert "1 x error: ValueError: bad" in capture.get()
    assert "100% above the optimum" in capture.get()
