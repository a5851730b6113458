"""A pipeline schedule as text: one line a worker, time from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from meshwright.report.library_tables import plain_row
from meshwright.schedules import Kind, Timeline
from meshwright.units import significant

STYLES = {Kind.F: "cyan", Kind.B: "green", Kind.I: "green", Kind.W: "magenta", Kind.R: "yellow"}
FILL = {Kind.F: "-", Kind.B: "=", Kind.I: "=", Kind.W: "~", Kind.R: "+"}
WORDS = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input gradient", Kind.W: "weight gradient", Kind.R: "again"}
MOST_WORKERS = 64


class Drawing:
    """Every task as its micro-batch, its chunk (a, b, ...) where there are several, and a fill for its kind."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        timeline = self.timeline
        table = timeline.table
        shown = min(table.p, MOST_WORKERS)
        room = max(20, options.max_width - len(str(table.p)) - 4)
        label = len(str(int(table.micro_batch.max()))) + (1 if table.v > 1 else 0)
        lasting = timeline.end_s - timeline.start_s
        shortest_s = float(lasting[lasting > 0].min()) if (lasting > 0).any() else 1.0
        columns_per_s = (label + 1) / shortest_s
        for worker in range(shown):
            low, high = int(table.first[worker]), int(table.first[worker + 1])
            line = Text(f"{worker:>{len(str(table.p - 1))}} |", no_wrap=True, overflow="crop")
            drawn = 0
            for task in range(low, high):
                begin = round(float(timeline.start_s[task]) * columns_per_s)
                end = round(float(timeline.end_s[task]) * columns_per_s)
                if begin >= room:
                    break
                kind = Kind(int(table.kind[task]))
                chunk = chr(ord("a") + int(table.chunk[task]) % 26) if table.v > 1 else ""
                name = f"{int(table.micro_batch[task])}{chunk}"[: end - begin]
                cell = name + FILL[kind] * (end - begin - len(name))
                line.append(" " * (begin - drawn))
                line.append(cell[: room - begin], style=STYLES[kind])
                drawn = begin + len(cell)
            yield line
        if shown < table.p:
            yield Text(f"... {table.p - shown} more workers")
        kinds = [Kind(kind) for kind in sorted(set(table.kind.tolist()))]
        legend = ", ".join(f"{FILL[kind]} {WORDS[kind]}" for kind in kinds)
        chunks = "; a, b, ... are chunks" if table.v > 1 else ""
        yield Text(f"numbers are micro-batches; {legend}{chunks}")
        if timeline.makespan_s * columns_per_s > room:
            yield Text(
                f"the first {significant(room / columns_per_s)} of {significant(timeline.makespan_s, 6)} s are drawn"
            )


def schedule_page(run: Mapping[str, Any], timeline: Timeline) -> RenderableType:
    """The `schedule NAME` page.

    Args:
        run: a `meshwright.schedule/1`.
        timeline: the same, to draw.
    """
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    plain_row(facts, "schedule", f"{run['name']}, p {run['p']}, m {run['m']}, v {run['v']}")
    plain_row(facts, "time", f"{significant(run['makespan_s'], 6)} s")
    bubbles = f"{run['bubble_makespan']:.1%} of the makespan idle, {run['bubble_span']:.1%} of the longest span"
    plain_row(facts, "bubble", bubbles)
    plain_row(
        facts, "activations", f"{_runs([worker['peak_activations'] for worker in run['workers']])} live per worker"
    )
    copies = run["workers"][0]["weight_copies"]
    exact = "the gradient of the whole batch" if run["exact_semantics"] else "not the gradient of one set of weights"
    plain_row(facts, "semantics", f"{exact}; {copies} weight {'copy' if copies == 1 else 'copies'}")
    return Group(Drawing(timeline), Text(), facts)


def schedule_list(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The `schedule list` table.

    Args:
        rows: entries of `meshwright.schedules/1`.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("schedule", no_wrap=True)
    for heading in ("what", "other names", "source"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        plain_row(table, row["name"], row["title"], ", ".join(row["aliases"]), row["source"])
    return table


def _runs(numbers: Sequence[int]) -> str:
    """`4, 3, 2, 1`, shortened in the middle."""
    words = [str(number) for number in numbers]
    return ", ".join(words if len(words) <= 16 else [*words[:7], "...", *words[-7:]])
