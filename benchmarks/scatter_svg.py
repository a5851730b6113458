"""Predicted against measured as one SVG figure: both axes logarithmic, a dot a run, its reason on hovering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from meshwright.units import significant

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#7f7f7f")
SIZE, LEFT, TOP, RIGHT, BOTTOM = 400.0, 64.0, 34.0, 190.0, 44.0
BAND = 0.20
"""Errors that the grey band shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One run."""

    measured: float
    predicted: float
    kind: str
    """What it is coloured by."""
    text: str


def scatter_svg(title: str, unit: str, dots: Sequence[Dot]) -> str:
    """One square panel; the diagonal is a perfect prediction, the band one that is off by a fifth at most.

    Args:
        title: of the figure.
        unit: of both axes.
        dots: at least one.

    Returns:
        An SVG document.
    """
    values = [value for dot in dots for value in (dot.measured, dot.predicted)]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def along(value: float) -> float:
        return SIZE * (math.log10(value) - low) / (high - low)

    kinds = sorted({dot.kind for dot in dots}, key=lambda kind: (-sum(dot.kind == kind for dot in dots), kind))
    colour = {kind: COLOURS[min(place, len(COLOURS) - 1)] for place, kind in enumerate(kinds)}
    width, height = LEFT + SIZE + RIGHT, TOP + SIZE + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui,sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        f'<text x="{LEFT:g}" y="20" font-weight="bold">{escape(title)}</text>',
        f'<clipPath id="plot"><rect x="{LEFT:g}" y="{TOP:g}" width="{SIZE:g}" height="{SIZE:g}"/></clipPath>',
        *_band(low, high),
        *_axes(low, high, unit),
    ]
    for kind in kinds:
        parts.append(f'<g fill="{colour[kind]}" fill-opacity="0.6">')
        for dot in dots:
            if dot.kind == kind:
                x, y = LEFT + along(dot.measured), TOP + SIZE - along(dot.predicted)
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{escape(dot.text)}</title></circle>')
        parts.append("</g>")
    for place, kind in enumerate(kinds):
        y = TOP + 14 + 18 * place
        parts.append(f'<circle cx="{LEFT + SIZE + 16:g}" cy="{y - 4:g}" r="4" fill="{colour[kind]}"/>')
        count = sum(dot.kind == kind for dot in dots)
        parts.append(f'<text x="{LEFT + SIZE + 26:g}" y="{y:g}">{escape(kind)} ({count})</text>')
    return "\n".join([*parts, "</svg>", ""])


def _band(low: float, high: float) -> Iterator[str]:
    """The diagonal, and errors of at most BAND on either side of it."""
    scale = SIZE / (high - low)
    above, below = scale * math.log10(1 + BAND), scale * -math.log10(1 - BAND)
    left, right, top, bottom = LEFT, LEFT + SIZE, TOP, TOP + SIZE
    corners = ((left, bottom - above), (right, top - above), (right, top + below), (left, bottom + below))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    yield f'<polygon points="{points}" fill="#eeeeee" clip-path="url(#plot)"/>'
    yield f'<line x1="{left:g}" y1="{bottom:g}" x2="{right:g}" y2="{top:g}" stroke="#999999"/>'


def _axes(low: float, high: float, unit: str) -> Iterator[str]:
    """Frame, a tick at each power of ten and at twice and five times it, names of both axes."""
    yield (
        f'<rect x="{LEFT:g}" y="{TOP:g}" width="{SIZE:g}" height="{SIZE:g}" fill="none" stroke="#222222" '
        'stroke-width="0.7"/>'
    )
    steps = (1, 2, 5) if high - low < 3 else (1,)
    ticks = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    for tick in ticks:
        place = SIZE * (math.log10(tick) - low) / (high - low)
        if 0 <= place <= SIZE:
            x, y, text = LEFT + place, TOP + SIZE - place, significant(tick)
            yield f'<text x="{x:.1f}" y="{TOP + SIZE + 16:g}" text-anchor="middle">{text}</text>'
            yield f'<text x="{LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    yield f'<text x="{LEFT + SIZE / 2:g}" y="{TOP + SIZE + 36:g}" text-anchor="middle">measured, {unit}</text>'
    yield (
        f'<text x="16" y="{TOP + SIZE / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 16 {TOP + SIZE / 2:g})">predicted, {unit}</text>'
    )
