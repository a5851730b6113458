"""The figure of regret: how far each tuner's best trial is above the exact optimum, per trial and per second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from meshwright.report.tuning import grouped_studies
from meshwright.units import seconds

COLOURS = ("#7f7f7f", "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d")
WIDTH, HEIGHT = 880, 410
PLOT = (64, 34, 352, 280)
"""Left, top, width and height of the first panel."""
GAP = 92
"""Pixels between the panels."""
FLOOR, CEILING = 1e-4, 10.0
"""Least and largest regret drawn; less than the least is drawn as it."""

Curve = list[tuple[float, float]]
"""(trials or seconds, regret) after each change."""


def regret_svg(document: Mapping[str, Any]) -> str:
    """Two panels with logarithmic axes; thin lines are single studies, thick ones the median over seeds.

    Args:
        document: a `meshwright.tune-comparison/1`.

    Returns:
        A whole SVG file.
    """
    optimum, search_s = document["optimum"]["value"], document["timing"]["search_s"]
    studies = grouped_studies(document)
    left, top, width, height = PLOT
    by_trial = {label: [_curve(study, optimum, timed=False) for study in found] for label, found in studies.items()}
    by_second = {label: [_curve(study, optimum, timed=True) for study in found] for label, found in studies.items()}
    ends = {label: max(study["timing"]["wall_s"] for study in found) for label, found in studies.items()}
    first = min([search_s, *(x for curves in by_second.values() for curve in curves for x, _ in curve[:1])])
    trials = _Panel(left, top, width, height, 1.0, max(2.0, document["budget"]), "trials")
    time = _Panel(
        left + width + GAP, top, width, height, max(1e-3, first / 2), max([search_s, *ends.values()]) * 1.1, "seconds"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui,sans-serif" font-size="12" role="img">',
        f"<title>Regret of tuners: {escape(document['space'])}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{left}" y="18" font-weight="bold">{escape(document["space"])}: {document["size"]:,} points</text>',
    ]
    for panel, curves in ((trials, by_trial), (time, by_second)):
        parts += panel.axes()
        end = panel.high
        for place, (label, found) in enumerate(curves.items()):
            colour = COLOURS[place % len(COLOURS)]
            parts.append(f'<g fill="none" stroke="{colour}"><title>{escape(label)}</title>')
            limit = end if panel is trials else ends[label]
            if len(found) > 1:
                parts += [panel.line(curve, limit, 'stroke-width="1" opacity="0.3"') for curve in found]
            parts.append(panel.line(median_curve(found), limit, f'stroke-width="2.2"{_dash(place)}'))
            parts.append("</g>")
    parts += _exact_mark(time, search_s)
    parts += _legend(studies, left, top + height + 52)
    return "\n".join([*parts, "</svg>", ""])


def median_curve(curves: Sequence[Curve]) -> Curve:
    """The median of step curves; a curve that has not begun counts as infinite.

    Args:
        curves: each ascending in its first number.
    """
    places = sorted({x for curve in curves for x, _ in curve})
    found: Curve = []
    for place in places:
        value = median(_at(curve, place) for curve in curves)
        if value < math.inf and (not found or value != found[-1][1]):
            found.append((place, value))
    return found


def _at(curve: Curve, place: float) -> float:
    value = math.inf
    for x, y in curve:
        if x > place:
            break
        value = y
    return value


def _curve(study: Mapping[str, Any], optimum: float, *, timed: bool) -> Curve:
    """Regret after each better trial, over trials or over seconds."""
    at_s = study["timing"]["at_s"]
    return [
        (at_s[point["trials"] - 1] if timed else float(point["trials"]), max(0.0, point["value"] / optimum - 1.0))
        for point in study["incumbents"]
    ]


def _dash(place: int) -> str:
    """Every second line is dashed, so that overlapping lines are seen."""
    return ' stroke-dasharray="7 4"' if place % 2 else ""


class _Panel:
    """One plot with logarithmic axes."""

    def __init__(self, left: int, top: int, width: int, height: int, low: float, high: float, label: str) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height
        self.low, self.high, self.label = low, high, label

    def x(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.left + self.width * min(1.0, share)

    def y(self, regret: float) -> float:
        inside = min(max(regret, FLOOR), CEILING)
        return self.top + self.height * (1.0 - math.log(inside / FLOOR) / math.log(CEILING / FLOOR))

    def axes(self) -> list[str]:
        left, top, right, bottom = self.left, self.top, self.left + self.width, self.top + self.height
        parts = [f'<rect x="{left}" y="{top}" width="{self.width}" height="{self.height}" fill="none" stroke="#888"/>']
        for power in range(round(math.log10(FLOOR)), round(math.log10(CEILING)) + 1):
            y = self.y(10.0**power)
            name = f"{100 * 10.0**power:g}%" if 10.0**power > FLOOR else f"≤{100 * FLOOR:g}%"
            parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
        for power in range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1):
            x = self.x(10.0**power)
            parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>')
        middle = self.left + self.width / 2
        parts.append(f'<text x="{middle:.0f}" y="{bottom + 32}" text-anchor="middle">{self.label}</text>')
        if self.label == "trials":
            turned = f"rotate(-90 14 {top + self.height / 2:.0f})"
            parts.append(
                f'<text x="14" y="{top + self.height / 2:.0f}" text-anchor="middle" transform="{turned}">'
                "above the optimum</text>"
            )
        return parts

    def line(self, curve: Curve, end: float, style: str) -> str:
        """A step line to the end of the study."""
        if not curve:
            return ""
        points = [f"M{self.x(curve[0][0]):.1f} {self.y(curve[0][1]):.1f}"]
        for x, y in curve[1:]:
            points.append(f"H{self.x(x):.1f}V{self.y(y):.1f}")
        points.append(f"H{self.x(max(end, curve[-1][0])):.1f}")
        return f'<path d="{"".join(points)}" {style}/>'


def _exact_mark(panel: _Panel, search_s: float) -> list[str]:
    """Where the exact search is: no regret after its seconds."""
    x, bottom = panel.x(search_s), panel.top + panel.height
    anchor, shift = ("end", -6) if x > panel.left + panel.width / 2 else ("start", 6)
    return [
        f'<line x1="{x:.1f}" y1="{panel.top}" x2="{x:.1f}" y2="{bottom}" stroke="black" stroke-dasharray="4 3"/>',
        f'<circle cx="{x:.1f}" cy="{bottom}" r="5" fill="black"/>',
        f'<text x="{x + shift:.1f}" y="{bottom - 8}" text-anchor="{anchor}">exact search: {seconds(search_s)}</text>',
    ]


def _legend(studies: Mapping[str, Sequence[Mapping[str, Any]]], left: int, top: int) -> list[str]:
    parts, x, y = [], left, top
    for place, (label, found) in enumerate(studies.items()):
        colour = COLOURS[place % len(COLOURS)]
        text = label + (f" ({len(found)} seeds)" if len(found) > 1 else "")
        size = 44 + 7 * len(text)
        if x + size > WIDTH - 10:
            x, y = left, y + 20
        style = f'stroke="{colour}" stroke-width="2.5"{_dash(place)}'
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" {style}/>')
        parts.append(f'<text x="{x + 30}" y="{y}">{escape(text)}</text>')
        x += size
    return parts
