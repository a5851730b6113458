"""The figure: well-formed, everything inside it, every task drawn where and as long as it runs."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from meshwright.report.timeline_svg import COLOURS, LEFT, PLOT, timeline_svg
from meshwright.schedules import Kind
from tests.report.pictures import plan_trace, unequal_picture

NAMESPACE = "{http://www.w3.org/2000/svg}"
BOX = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z")


def boxes(svg: str, colour: str) -> list[tuple[float, ...]]:
    paths = re.findall(rf'<path fill="{colour}" d="([^"]*)"', svg)
    return [tuple(map(float, box)) for path in paths for box in BOX.findall(path)]


def test_tasks_stand_where_they_run() -> None:
    picture = unequal_picture("1f1b", 4, 8)
    found = boxes(timeline_svg([picture]), COLOURS[Kind.F])
    table, scale = picture.timeline.table, PLOT / picture.end_s
    forwards = table.kind == Kind.F
    assert len(found) == forwards.sum() == 32
    starts = sorted((LEFT + picture.timeline.start_s[forwards] * scale).tolist())
    assert sorted(x for x, *_ in found) == pytest.approx(starts, abs=0.01)
    lasting = sum(width for _, _, width, _ in found) / scale
    seconds = (picture.timeline.end_s - picture.timeline.start_s)[forwards].sum()
    assert lasting == pytest.approx(float(seconds), rel=0.05)


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [("1f1b", 4, 8, 1), ("interleaved", 4, 8, 3), ("dualpipe", 4, 8, 1), ("seq1f1b", 4, 4, 1), ("gpipe", 64, 16, 1)],
)
def test_everything_lies_inside_and_nothing_overlaps(name: str, p: int, m: int, v: int) -> None:
    svg = timeline_svg([unequal_picture(name, p, m, v)])
    root = ET.fromstring(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    drawn = [box for colour in re.findall(r'<path fill="(#\w+)" d="M', svg) for box in boxes(svg, colour)]
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in drawn)
    texts = [(float(text.get("x", "0")), float(text.get("y", "0"))) for text in root.iter(f"{NAMESPACE}text")]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in texts)
    rows = [text for text in root.iter(f"{NAMESPACE}text") if (text.text or "").startswith("worker ")]
    at = sorted(float(row.get("y", "0")) for row in rows)
    assert all(below - above >= 10 for above, below in itertools.pairwise(at))
    assert len(at) == (p if p <= 16 else -(-p // 8))


def test_a_window_draws_the_tasks_of_its_part_alone_as_long_as_they_run() -> None:
    picture = unequal_picture("1f1b", 4, 64)
    whole, part = timeline_svg([picture]), timeline_svg([picture], (0.45, 0.55))
    timeline, from_s, to_s = picture.timeline, 0.45 * picture.end_s, 0.55 * picture.end_s
    forwards = (timeline.table.kind == Kind.F) & (timeline.end_s >= from_s) & (timeline.start_s <= to_s)
    found = re.findall(rf'<path fill="{COLOURS[Kind.F]}" d="([^"]*)"', part)
    assert sum(path.count("M") for path in found) == forwards.sum()
    assert len(part) < len(whole) / 2
    boxed = [tuple(map(float, one)) for path in found for one in re.findall(r"M(-?[\d.]+) [\d.]+h([\d.]+)", path)]
    middle = LEFT + PLOT / 2
    scale = PLOT / (to_s - from_s)
    starts = (LEFT + (timeline.start_s[forwards] - from_s) * scale).tolist()
    assert sorted(x for x, _ in boxed) == pytest.approx(sorted(starts), abs=0.01)
    assert any(x < middle < x + width for x, width in boxed)
    assert 'clip-path="url(#window)"' in part
    marks = [
        float(text.text or 0)
        for text in ET.fromstring(part).iter(f"{NAMESPACE}text")
        if text.get("class") == "m" and re.fullmatch(r"[\d.]+", text.text or "")
    ]
    assert marks[0] > 0, "the axis has the moments of the whole step"


def test_fused_tasks_share_the_height_of_their_row() -> None:
    svg = timeline_svg([unequal_picture("dualpipe", 4, 8)])
    heights = {height for *_, height in boxes(svg, COLOURS[Kind.B])}
    assert heights == {9.0, 18.0}


def test_a_plan_shows_its_memory_under_the_capacity_and_its_phases() -> None:
    svg = plan_trace().svg()
    assert "data-parallel" in svg
    assert "optimizer" in svg
    assert "capacity 79.1 GiB" in svg
    fullest = plan_trace().step.estimate.fullest
    assert f"memory of stage {fullest.stage}, the fullest" in svg


def test_two_steps_share_one_axis() -> None:
    short, long = unequal_picture("zb-h1", 4, 8, transfer_s=0), unequal_picture("gpipe", 4, 8, transfer_s=0)
    svg = timeline_svg([short, long])
    scale = PLOT / max(short.end_s, long.end_s)
    idle = boxes(svg, "#f3f3f3")
    assert sorted({width for _, _, width, _ in idle}) == pytest.approx(
        sorted(picture.end_s * scale for picture in (short, long)), abs=0.01
    )
    assert svg.count("time, ms") == 1
    assert svg.count(" at most<") == 2


def test_a_title_cannot_break_the_document() -> None:
    picture = unequal_picture("1f1b", 2, 2)
    object.__setattr__(picture, "title", "<a & b>")
    assert "&lt;a &amp; b&gt;" in timeline_svg([picture])
    ET.fromstring(timeline_svg([picture]))


@pytest.mark.parametrize(
    ("name", "v", "note"),
    [
        ("1f1b", 1, None),
        ("interleaved", 2, "paler: later chunks"),
        ("dualpipe", 1, "paler: the pipeline in the other direction"),
        ("dualpipev", 2, "paler: later chunks"),
        ("chimera", 1, "paler: the pipeline in the other direction"),
    ],
)
def test_the_legend_says_what_a_paler_colour_means(name: str, v: int, note: str | None) -> None:
    svg = timeline_svg([unequal_picture(name, 4, 8, v)])
    assert ("paler" in svg) == (note is not None)
    assert note is None or f"numbers: micro-batches; {note}<" in svg


def test_the_legend_speaks_of_numbers_where_tasks_have_theirs() -> None:
    few, many = (timeline_svg([unequal_picture("1f1b", 4, micro_batches, 1)]) for micro_batches in (8, 400))
    assert "numbers: micro-batches" in few
    assert "numbers:" not in many
    assert 'class="n"' not in many
