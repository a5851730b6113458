"""Steps as text: a line a worker, time from left to right, several steps stacked on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshwright.report.picture import WORDS, MemoryLine, Picture, ticks, time_unit
from meshwright.schedules import Kind
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Float, Int
from meshwright.units import gib, seconds, significant

STYLES = {Kind.F: "cyan", Kind.B: "green", Kind.I: "green", Kind.W: "magenta", Kind.R: "yellow", Kind.X: "yellow"}
FILL = {Kind.F: "-", Kind.B: "=", Kind.I: "=", Kind.W: "~", Kind.R: "+", Kind.X: "x"}
SPAN_MARKS = {"data-parallel": ("#", "red"), "optimizer": ("o", "bright_black")}
LEVELS = "▁▂▃▄▅▆▇█"
MOST_WORKERS = 64


class TimelineText:
    """Tasks as their micro-batch, their chunk (a, b, ...) where there are several, and a fill for their kind.

    A step that is too long for that is drawn from its beginning as far as it goes, or, with `whole`, from end to end
    with one mark for what runs in the middle of each column.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        whole: bool = False,
        gutters: Sequence[Sequence[str]] = (),
        memory: bool = True,
    ) -> None:
        """Draw steps below each other.

        Args:
            pictures: the steps.
            whole: draw all of the longest step, whatever its length.
            gutters: the gutters per picture and worker, text to the right of its line.
            memory: whether the memory of the fullest worker follows, where it is known.
        """
        self.pictures, self.whole, self.gutters, self.memory = tuple(pictures), whole, tuple(gutters), memory

    @property
    def end_s(self) -> float:
        """End of the longest step."""
        return max(picture.end_s for picture in self.pictures)

    @property
    def readable(self) -> float:
        """Columns per second at which every task has room for its micro-batch."""
        return max(_readable(picture) for picture in self.pictures)

    def room(self, width: int) -> int:
        """Columns of the time axis."""
        gutter = max((len(text) for texts in self.gutters for text in texts), default=-2) + 2
        return max(20, width - self._label - 2 - gutter)

    def fits(self, width: int) -> bool:
        """Whether all tasks can be drawn with their micro-batches."""
        return self.readable * self.end_s <= self.room(width)

    @property
    def _label(self) -> int:
        return max(len(str(picture.timeline.table.p - 1)) for picture in self.pictures)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = self.room(options.max_width)
        labelled = self.fits(options.max_width) or not self.whole
        scale = self.readable if labelled else room / self.end_s
        for number, picture in enumerate(self.pictures):
            if len(self.pictures) > 1:
                yield Text(picture.title, style="bold", no_wrap=True, overflow="ellipsis")
            gutter = self.gutters[number] if self.gutters else ()
            yield from self._lines(picture, gutter, room, scale, labelled=labelled)
        yield Text(" " * (self._label + 2) + _axis(min(self.end_s, room / scale), scale, room))
        for picture in self.pictures:
            if self.memory and picture.memory and not options.ascii_only:
                yield from self._memory(picture, room, scale)
        yield Text(self._legend(labelled=labelled))
        if self.end_s * scale > room + 0.5:
            yield Text(f"the first {seconds(room / scale)} of {seconds(self.end_s)} are drawn")

    def _lines(
        self, picture: Picture, gutter: Sequence[str], room: int, scale: float, *, labelled: bool
    ) -> Iterator[Text]:
        shown = min(picture.timeline.table.p, MOST_WORKERS)
        for worker in range(shown):
            line = Text(f"{worker:>{self._label}} |", no_wrap=True, overflow="crop")
            cells = _named(picture, worker, room, scale) if labelled else _sampled(picture, worker, room, scale)
            _mark_spans(picture, worker, cells, room, scale)
            if gutter:
                cells += [(" ", "")] * (room - len(cells)) + [(f"  {gutter[worker]}", "")]
            _append(line, cells)
            yield line
        if shown < picture.timeline.table.p:
            yield Text(f"... {picture.timeline.table.p - shown} more workers")

    def _memory(self, picture: Picture, room: int, scale: float) -> Iterator[Text]:
        """Activations of the fullest worker over time."""
        worker = max(range(len(picture.memory)), key=lambda at: picture.memory[at].peak_bytes)
        line = picture.memory[worker]
        most = float(line.activations_bytes.max(initial=0.0))
        if most <= 0:
            return
        levels = np.ceil(_most_per_column(line, room, scale) / most * (len(LEVELS) - 1)).astype(int)
        end = min(room, round(picture.end_s * scale))
        yield Text(" " * (self._label + 2) + "".join(LEVELS[level] for level in levels[:end]), style="green")
        name = f"activations of {picture.noun} {worker}, up to {gib(most)}"
        yield Text(f"{' ' * (self._label + 2)}{name}", no_wrap=True, overflow="ellipsis")

    def _legend(self, *, labelled: bool) -> str:
        tables = [picture.timeline.table for picture in self.pictures]
        kinds = sorted({kind for p in self.pictures for kind in p.timeline.table.kind[p.computed].tolist()})
        words = [f"{_fill(kind)} {WORDS.get(Kind(kind), Kind(kind).name)}" for kind in kinds]
        lanes = {span.lane for picture in self.pictures for span in picture.spans}
        words += [f"{mark} {name}" for name, (mark, _) in SPAN_MARKS.items() if name in lanes]
        if not labelled:
            return f"each column shows what runs in its middle; {', '.join(words)}"
        parts = max(table.segments for table in tables)
        counted = f"parts of micro-batches, {parts} of each" if parts > 1 else "micro-batches"
        return f"numbers are {counted}; {', '.join(words)}{_letters(tables)}"


Cell = tuple[str, str]
"""A character and its style."""
SHORTEST_S = 1e-300
"""Seconds a column may stand for: one over less is no number."""


def _letters(tables: Sequence[ScheduleTable]) -> str:
    """What letters beside numbers are: chunks of a worker, or pipelines that run at once, in both directions if two."""
    lettered = [table for table in tables if table.v > 1]
    if not lettered:
        return ""
    chains = {table.placement.chains for table in lettered}
    if chains == {1}:
        return "; a, b, ... are chunks"
    if all(table.v == table.placement.chains == 2 for table in lettered):
        return "; a and b are pipelines in opposite directions"
    return "; a, b, ... are chunks of each pipeline"


def _readable(picture: Picture) -> float:
    table, timeline = picture.timeline.table, picture.timeline
    label = len(str(int(table.micro_batch.max()))) + (1 if table.v > 1 else 0)
    lasting = timeline.end_s - timeline.start_s
    # Fused tasks share their time.
    lasting = np.where(picture.joined | np.append(picture.joined[1:], False), lasting / 2, lasting)
    # What takes less than a billionth of the whole is seen at no scale.
    seen = lasting > 1e-9 * timeline.end_s
    shortest_s = float(lasting[seen].min()) if seen.any() else 1.0
    return (label + 1) / max(shortest_s, SHORTEST_S)


def _fill(kind: int) -> str:
    return FILL.get(Kind(kind), "*")


def _own(picture: Picture, worker: int) -> Int[np.ndarray, " compute_tasks"]:
    """What one worker computes, in order."""
    low, high = np.searchsorted(picture.computed, picture.timeline.table.first[worker : worker + 2])
    return picture.computed[low:high]


def _named(picture: Picture, worker: int, room: int, scale: float) -> list[Cell]:
    """Cells of one worker with micro-batches, from the beginning as far as there is room."""
    table, timeline = picture.timeline.table, picture.timeline
    cells: list[Cell] = []
    for task in _own(picture, worker).tolist():
        start_s, end_s = float(timeline.start_s[task]), float(timeline.end_s[task])
        last = task + 1 < table.tasks and bool(picture.joined[task + 1])
        if picture.joined[task]:
            start_s = (start_s + end_s) / 2
        elif last:
            end_s = (start_s + end_s) / 2
        begin, end = round(start_s * scale), min(round(end_s * scale), room)
        if begin >= room:
            break
        kind = Kind(int(table.kind[task]))
        chunk = chr(ord("a") + int(table.chunk[task]) % 26) if table.v > 1 else ""
        name = f"{int(table.micro_batch[task])}{chunk}"[: end - begin]
        cells += [(" ", "")] * (begin - len(cells))
        cells += [(letter, STYLES.get(kind, "")) for letter in name + _fill(kind) * (end - begin - len(name))]
    return cells[:room]


def _sampled(picture: Picture, worker: int, room: int, scale: float) -> list[Cell]:
    """Cells of one worker with what runs in the middle of each."""
    table, timeline = picture.timeline.table, picture.timeline
    own = _own(picture, worker)
    middle_s = (np.arange(room) + 0.5) / scale
    task = own[np.maximum(np.searchsorted(timeline.start_s[own], middle_s, side="right") - 1, 0)]
    runs = (timeline.start_s[task] <= middle_s) & (middle_s < timeline.end_s[task])
    kinds = np.where(runs, table.kind[task], -1).tolist()
    return [(" ", "") if kind < 0 else (_fill(kind), STYLES.get(Kind(kind), "")) for kind in kinds]


def _mark_spans(picture: Picture, worker: int, cells: list[Cell], room: int, scale: float) -> None:
    """Write phases behind the pipeline into the cells, each in one column at least where it would be seen."""
    for span in picture.spans:
        if span.worker != worker:
            continue
        # A line is cut off at its end, where a column more is of no use.
        begin, end = round(span.start_s * scale), min(round(span.end_s * scale), room + 1)
        cells += [(" ", "")] * (end - len(cells))
        for at in range(begin, end):
            cells[at] = SPAN_MARKS[span.lane]


def _append(line: Text, cells: Sequence[Cell]) -> None:
    """Add cells, those of one style together."""
    letters, style = "", ""
    for letter, own in cells:
        if own != style:
            line.append(letters, style=style)
            letters, style = "", own
        letters += letter
    line.append(letters, style=style)


def _axis(end_s: float, scale: float, room: int) -> str:
    """`0         10        20 s`: each number begins where its moment is."""
    unit_s, unit = time_unit(end_s)
    line = ""
    for at_s in ticks(end_s, most=max(2, room // 12)):
        begin, label = round(at_s * scale), significant(at_s / unit_s)
        if begin >= len(line) and begin + len(f"{label} {unit}") <= room:
            line = line.ljust(begin) + label
    return f"{line} {unit}"


def _most_per_column(line: MemoryLine, room: int, scale: float) -> Float[np.ndarray, " columns"]:
    """The most bytes of activations in each column."""
    column = np.minimum((line.at_s * scale).astype(int), room - 1)
    most = np.zeros(room)
    np.maximum.at(most, column, line.activations_bytes)
    # A column begins with what the last change before it left.
    before = np.searchsorted(line.at_s, np.arange(room) / scale, side="right") - 1
    left = np.where(before >= 0, line.activations_bytes[np.maximum(before, 0)], 0.0)
    return np.maximum(most, left)
