"""The front of time and memory as a drawing: lines of text for a terminal, SVG for papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from meshwright.report.words.sizing import of_things
from meshwright.units import GIB, seconds, significant

ROWS, COLUMNS = 10, 60
"""Characters of the drawing as text."""
MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Marks of the plans of a drawing as text, in the order of its list."""
COLOURS = ("#1f5fa8", "#b35900", "#2b7d4f", "#8a3b8f", "#5c5c5c")
"""Colours of numbers of devices, the most first."""
MOST_TICKS = 6
"""Numbers of an axis, about."""
LEFT, TOP, WIDE, HIGH, RIGHT, BELOW = 70, 56, 520, 320, 170, 46


def front_in_order(front: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The front from the quickest plan on."""
    return sorted(front, key=lambda point: point["step_time_s"])


def front_rows(front: Sequence[Mapping[str, Any]]) -> list[str]:
    """The front as text: a digit or letter a plan, as its list has them, step time to the right and memory upwards.

    Args:
        front: entries of `pareto`, in order.

    Returns:
        Lines; none for fewer than two plans.
    """
    shown = front[: len(MARKS)]
    if len(front) < 2:
        return []
    (low_s, high_s), (low_gib, high_gib) = _ranges(shown)
    field = [[" "] * COLUMNS for _ in range(ROWS)]
    for number, point in enumerate(shown):
        x = round((COLUMNS - 1) * (point["step_time_s"] - low_s) / (high_s - low_s))
        y = round((ROWS - 1) * (point["peak_memory_bytes"] / GIB - low_gib) / (high_gib - low_gib))
        # Of plans that share a place each is drawn: the next, slower one stands a hair to the right.
        row = field[ROWS - 1 - y]
        free = (at for at in (*range(x, COLUMNS), *reversed(range(x))) if row[at] == " ")
        row[next(free, x)] = MARKS[number]
    scale = [f"{significant(high_gib)} GiB", *[""] * (ROWS - 2), f"{significant(low_gib)} GiB"]
    margin = max(map(len, scale))
    rows = [f"{name:>{margin}} |{''.join(line).rstrip()}" for name, line in zip(scale, field, strict=True)]
    left, right = seconds(low_s), seconds(high_s)
    return [
        *rows,
        f"{'':{margin}} +{'-' * COLUMNS}",
        f"{'':{margin}}  {left}{right:>{COLUMNS - len(left)}}",
    ]


def front_svg(title: str, front: Sequence[Mapping[str, Any]], capacity_bytes: float) -> str:
    """The front as a figure: a dot a plan, coloured by its number of devices, its name on hovering.

    Args:
        title: the title of the figure.
        front: entries of `pareto`, at least one.
        capacity_bytes: the capacity in bytes of the smallest device, drawn where it is near.

    Returns:
        An SVG document.
    """
    from meshwright.report.picture import ticks_between  # text does without what figures load

    (low_s, high_s), (low_gib, high_gib) = _ranges(front)

    def across(time_s: float) -> float:
        return LEFT + WIDE * (time_s - low_s) / (high_s - low_s)

    def up(size_gib: float) -> float:
        return TOP + HIGH * (1 - (size_gib - low_gib) / (high_gib - low_gib))

    counts = sorted({point["devices"] for point in front}, reverse=True)
    colour = {count: COLOURS[min(place, len(COLOURS) - 1)] for place, count in enumerate(counts)}
    width, height = LEFT + WIDE + RIGHT, TOP + HIGH + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui,sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#999"/>',
    ]
    for time_s in ticks_between(low_s, high_s, MOST_TICKS):
        x = across(time_s)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + HIGH}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + HIGH + 16}" text-anchor="middle">{escape(seconds(time_s))}</text>')
    for size_gib in ticks_between(low_gib, high_gib, MOST_TICKS):
        y = up(size_gib)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + WIDE}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{significant(size_gib)}</text>')
    parts.append(f'<text x="{LEFT + WIDE / 2}" y="{height - 8}" text-anchor="middle">step time</text>')
    parts.append(f'<text x="{LEFT - 50}" y="{TOP - 8}">GiB of the fullest device</text>')
    if low_gib < capacity_bytes / GIB < high_gib:
        y = up(capacity_bytes / GIB)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + WIDE}" stroke="#b00020" stroke-dasharray="5 4"/>')
        room = f"capacity {significant(capacity_bytes / GIB)}"
        parts.append(f'<text x="{LEFT + WIDE - 4}" y="{y - 5:.1f}" text-anchor="end" fill="#b00020">{room}</text>')
    for place, count in enumerate(counts):
        points = sorted((point for point in front if point["devices"] == count), key=lambda one: one["step_time_s"])
        at = [(across(point["step_time_s"]), up(point["peak_memory_bytes"] / GIB)) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour[count]}" stroke-opacity="0.45"/>')
        for point, (x, y) in zip(points, at, strict=True):
            size = significant(point["peak_memory_bytes"] / GIB)
            named = f"{point['title']}: {seconds(point['step_time_s'])}, {size} GiB"
            dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour[count]}">'
            parts.append(f"{dot}<title>{escape(named)}</title></circle>")
        y_key = TOP + 14 + 20 * place
        parts += [
            f'<circle cx="{LEFT + WIDE + 18}" cy="{y_key - 4}" r="5" fill="{colour[count]}"/>',
            f'<text x="{LEFT + WIDE + 30}" y="{y_key}">{of_things(count, "device")}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _ranges(front: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Least and most seconds, and GiB, never of no width."""
    times = [point["step_time_s"] for point in front]
    sizes = [point["peak_memory_bytes"] / GIB for point in front]
    return _spread(times), _spread(sizes)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * high
    return low - margin, high + margin
