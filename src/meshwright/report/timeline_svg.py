"""Steps as one SVG figure for papers and pages: a row a worker, one time axis, memory of the fullest worker below.

Plain shapes and text, no scripts and no fonts of its own; tasks of one colour share a path, so that large steps stay
small files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from meshwright.report.picture import WORDS, MemoryLine, Picture, paler, ticks, ticks_between, time_unit
from meshwright.schedules import Kind, Timeline
from meshwright.shapes import Bool
from meshwright.units import GIB, gib, significant

COLOURS = {
    Kind.F: "#56b4e9",
    Kind.B: "#e69f00",
    Kind.I: "#f4bd66",
    Kind.W: "#5fbf9b",
    Kind.R: "#f0e442",
    Kind.X: "#d9d36b",
}
"""Colours of tasks, from the Okabe-Ito palette, which colour-blind readers tell apart."""
SPAN_COLOURS = {"data-parallel": "#cc79a7", "optimizer": "#8a8a8a"}
IDLE, OTHER, CAPACITY, INK = "#f3f3f3", "#b0b0b0", "#d55e00", "#222222"
LEFT, PLOT, RIGHT = 64.0, 880.0, 16.0
"""Width of labels, of the time axis, and of what is left free."""
MEMORY_HEIGHT = 70.0
MOST_NUMBERS = 3000
"""Micro-batch numbers drawn at most; beyond that they are too small to read."""
PALEST = 0.55
"""How far the last chunk's colour goes towards white."""


WHOLE = (0.0, 1.0)
"""A window that leaves nothing out."""


@dataclass(frozen=True, slots=True)
class _Across:
    """Where moments of a step are in the figure."""

    from_s: float
    to_s: float

    @property
    def scale(self) -> float:
        """Units of the figure per second."""
        return PLOT / (self.to_s - self.from_s)

    @property
    def left(self) -> float:
        """Place of the moment 0, which a window may have left of the figure."""
        return LEFT - self.from_s * self.scale

    def within(self, timeline: Timeline) -> Bool[np.ndarray, " tasks"]:
        """Which tasks are seen."""
        seen: Bool[np.ndarray, " tasks"] = (timeline.end_s >= self.from_s) & (timeline.start_s <= self.to_s)
        return seen


def timeline_svg(pictures: Sequence[Picture], window: tuple[float, float] = WHOLE) -> str:
    """One figure of one step, or of several stacked on one time axis.

    Args:
        pictures: the steps.
        window: shares of the longest step between which they are drawn.

    Returns:
        An SVG document.
    """
    # A step that takes no time is drawn on an axis of one second.
    end_s = max(picture.end_s for picture in pictures) or 1.0
    across = _Across(window[0] * end_s, window[1] * end_s)
    parts: list[str] = []
    numbered = False
    y = 28.0
    lead = [f"{number}: " if len(pictures) > 1 else "" for number in range(1, len(pictures) + 1)]
    for number, picture in zip(lead, pictures, strict=True):
        parts.append(_text(LEFT, y + 11, number + picture.title, "title"))
        y += 18
        drawn, numbers, names, height = _rows(picture, y, across)
        parts += [*_seen([*drawn, *numbers], window), *names]
        numbered |= bool(numbers)
        y += height + 4
    parts += _axis(across, y)
    y += 32
    for number, picture in zip(lead, pictures, strict=True):
        if picture.memory:
            line, words = _memory(picture, y, across, number)
            parts += [words[0], *_seen(line, window), *words[1:]]
            y += MEMORY_HEIGHT + 30
    parts[:0] = _legend(pictures, 6.0, numbered=numbered)
    if window != WHOLE:
        parts.insert(0, f'<clipPath id="window"><rect x="{_n(LEFT)}" width="{_n(PLOT)}" height="{_n(y)}"/></clipPath>')
    return _document(parts, LEFT + PLOT + RIGHT, y)


def _seen(parts: list[str], window: tuple[float, float]) -> list[str]:
    """What is drawn along the axis, cut where a window ends."""
    return parts if window == WHOLE else ['<g clip-path="url(#window)">', *parts, "</g>"]


def _document(parts: list[str], width: float, height: float) -> str:
    style = (
        f"svg{{font-family:Helvetica,Arial,sans-serif;font-size:10px;fill:{INK}}}"
        ".title{font-size:12px;font-weight:bold}.n{text-anchor:middle;dominant-baseline:central}"
        ".r{text-anchor:end;dominant-baseline:central}.m{text-anchor:middle}"
    )
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n'
    return head + '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"


def _n(value: float) -> str:
    """A coordinate with two decimals, shortened."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, text: str, kind: str = "", more: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{named}{more}>{escape(text, quote=False)}</text>'


def _row_height(workers: int) -> float:
    return 20.0 if workers <= 10 else max(8.0, 200.0 / workers + 4.0)


def _rows(picture: Picture, top: float, across: _Across) -> tuple[list[str], list[str], list[str], float]:
    """The rows of one step, the numbers in them, their names, and their height."""
    table, timeline = picture.timeline.table, picture.timeline
    scale, left = across.scale, across.left
    seen = picture.computed[across.within(timeline)[picture.computed]]
    pitch = _row_height(table.p)
    inner = pitch - (2.0 if pitch > 10 else 1.0)
    x = left + timeline.start_s * scale
    width = (timeline.end_s - timeline.start_s) * scale
    y = top + table.worker * pitch
    height = np.full(table.tasks, inner)
    # Fused tasks run together: each takes half of the row.
    second = picture.joined
    first = np.append(second[1:], False) & ~second
    height[first | second] = inner / 2
    y = np.where(second, y + inner / 2, y)
    gap = np.where(width > 4, 0.6, 0.0)
    empty = "".join(_box(left, top + row * pitch, picture.end_s * scale, inner) for row in range(table.p))
    parts = [f'<path fill="{IDLE}" d="{empty}"/>']
    for kind in sorted(set(table.kind.tolist())):
        for chunk in range(table.v):
            own = seen[(table.kind == kind)[seen] & (table.chunk == chunk)[seen]]
            if not len(own):
                continue
            columns = (x[own], y[own], (width - gap)[own], height[own])
            boxes = "".join(_box(*box) for box in zip(*(c.tolist() for c in columns), strict=True))
            parts.append(f'<path fill="{_shade(COLOURS.get(Kind(kind), OTHER), chunk, table.v)}" d="{boxes}"/>')
    for span in picture.spans:
        box = _box(left + span.start_s * scale, top + span.worker * pitch, (span.end_s - span.start_s) * scale, inner)
        parts.append(f'<path fill="{SPAN_COLOURS[span.lane]}" d="{box}"><title>{escape(span.name)}</title></path>')
    numbers = list(_numbers(picture, seen, x, y, width, height))
    every = 1 if pitch >= 12 else 4 if table.p <= 32 else 8
    names = [
        _text(LEFT - 6, top + row * pitch + inner / 2, f"{picture.noun} {row}", "r") for row in range(0, table.p, every)
    ]
    return parts, numbers, names, table.p * pitch


def _box(x: float, y: float, width: float, height: float) -> str:
    wide, high = _n(width), _n(height)
    return f"M{_n(x)} {_n(y)}h{wide}v{high}h-{wide}z"


def _numbers(
    picture: Picture, seen: np.ndarray, x: np.ndarray, y: np.ndarray, width: np.ndarray, height: np.ndarray
) -> Iterator[str]:
    """Micro-batches, where they fit."""
    table = picture.timeline.table
    units = table.micro_batch if table.segments == 1 else table.micro_batch // table.segments
    digits = np.char.str_len(units.astype(str))
    size = np.minimum(height * 0.62, width / digits * 1.35)
    fits = seen[size[seen] >= 5.0]
    if len(fits) > MOST_NUMBERS:
        return
    size = np.minimum(np.floor(size * 2) / 2, 10.0)
    for one in np.unique(size[fits]).tolist():
        yield f'<g class="n" style="font-size:{_n(one)}px">'
        own = fits[size[fits] == one]
        columns = (x[own] + width[own] / 2, y[own] + height[own] / 2, units[own])
        for at_x, at_y, unit in zip(*(c.tolist() for c in columns), strict=True):
            yield f'<text x="{_n(at_x)}" y="{_n(at_y)}">{unit}</text>'
        yield "</g>"


def _shade(colour: str, chunk: int, chunks: int) -> str:
    """The colour of a chunk: later chunks are paler."""
    if chunks == 1:
        return colour
    towards = PALEST * chunk / (chunks - 1)
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * towards):02x}" for part in parts)


def _legend(pictures: Sequence[Picture], top: float, *, numbered: bool) -> list[str]:
    kinds = sorted({kind for p in pictures for kind in p.timeline.table.kind[p.computed].tolist()})
    lanes = [name for name in SPAN_COLOURS if any(span.lane == name for p in pictures for span in p.spans)]
    entries = [(COLOURS.get(Kind(kind), OTHER), WORDS.get(Kind(kind), Kind(kind).name)) for kind in kinds]
    entries += [(SPAN_COLOURS[name], name) for name in lanes] + [(IDLE, "idle")]
    parts, x = [], LEFT
    for colour, word in entries:
        parts.append(f'<rect x="{_n(x)}" y="{_n(top + 2)}" width="12" height="10" fill="{colour}"/>')
        parts.append(_text(x + 16, top + 11, word))
        x += 16 + 5.6 * len(word) + 14
    notes = [*(["numbers: micro-batches"] if numbered else []), *dict.fromkeys(filter(None, map(paler, pictures)))]
    return [*parts, *([_text(x + 4, top + 11, "; ".join(notes))] if notes else [])]


def _axis(across: _Across, top: float) -> list[str]:
    unit_s, unit = time_unit(across.to_s)
    parts = [f'<path stroke="{INK}" stroke-width="0.8" fill="none" d="M{_n(LEFT)} {_n(top)}h{_n(PLOT)}"/>']
    for at_s in ticks_between(across.from_s, across.to_s):
        x = across.left + at_s * across.scale
        parts.append(f'<path stroke="{INK}" stroke-width="0.8" d="M{_n(x)} {_n(top)}v4"/>')
        parts.append(_text(x, top + 15, significant(at_s / unit_s), "m"))
    return [*parts, _text(LEFT + PLOT / 2, top + 27, f"time, {unit}", "m")]


def _memory(picture: Picture, top: float, across: _Across, lead: str) -> tuple[list[str], list[str]]:
    """Memory of the fullest worker over time, and what is written beside it, its title first."""
    scale, left = across.scale, across.left
    worker = max(range(len(picture.memory)), key=lambda at: picture.memory[at].peak_bytes)
    line = picture.memory[worker]
    highest = max(line.capacity_bytes, line.peak_bytes) * 1.05
    floor = top + MEMORY_HEIGHT + 16

    def y(size: float) -> float:
        return floor - size / highest * MEMORY_HEIGHT

    base, peak = line.held_bytes + line.transient_bytes, significant(line.peak_bytes / GIB)
    wide = picture.end_s * scale
    steps = _staircase(line, across, y, wide)
    title = f"{lead}memory of {picture.noun} {worker}, the fullest, in GiB: {peak} at most"
    drawn = [
        f'<path fill="#bcd4e8" d="{steps}V{_n(y(base))}H{_n(left)}z"/>',
        f'<path fill="#d9d9d9" d="{_box(left, y(base), wide, floor - y(base))}"/>',
        f'<path stroke="{INK}" stroke-width="0.8" fill="none" d="{steps}"/>',
    ]
    parts = [
        _text(LEFT, top + 10, title),
        f'<path stroke="{CAPACITY}" stroke-dasharray="5 3" fill="none" '
        f'd="M{_n(LEFT)} {_n(y(line.capacity_bytes))}h{_n(PLOT)}"/>',
        _text(LEFT + 4, floor - 4, "states and buffers"),
        _text(
            LEFT + PLOT, y(line.capacity_bytes) - 3, f"capacity {gib(line.capacity_bytes)}", "", ' text-anchor="end"'
        ),
    ]
    if base and y(base) - y(line.peak_bytes) > 14:
        middle = (max(left, LEFT) + min(left + wide, LEFT + PLOT)) / 2
        parts.append(_text(middle, y(base) - 4, "activations", "m"))
    for size in ticks(highest / GIB, most=3):
        parts.append(_text(LEFT - 6, y(size * GIB), significant(size), "r"))
    return drawn, parts


def _staircase(line: MemoryLine, across: _Across, y: Callable[[float], float], wide: float) -> str:
    """The path of bytes over time; where changes are closer than pixels, the most of each pixel."""
    left = across.left
    at, size = line.at_s * across.scale, line.activations_bytes
    if len(at) > wide:
        # The level that a pixel begins with counts too: the change before it.
        pixel = at.astype(np.int64)
        starts = np.flatnonzero(np.append(True, np.diff(pixel) > 0))
        size = np.maximum(np.maximum.reduceat(size, starts), np.append(0.0, size[starts[1:] - 1]))
        at = pixel[starts].astype(float)
    base = line.held_bytes + line.transient_bytes
    moves = [f"M{_n(left)} {_n(y(base))}"]
    for moment, level in zip(at.tolist(), size.tolist(), strict=True):
        moves.append(f"H{_n(left + moment)}V{_n(y(base + level))}")
    return "".join(moves) + f"H{_n(left + wide)}"
