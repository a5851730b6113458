"""Plan sets and plans for the terminal: verdict first, then the table, memory, time, ranks and assumptions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import ShareBars, bullet, heading, memory_bar, memory_legend, warning
from meshwright.report.words.titles import assumption_name
from meshwright.report.words.verdict import rate_heading
from meshwright.units import GIB, of_capacity, percent, percents, rounded, seconds, significant

RATES = {"tokens_per_s_per_device": rounded, "mfu": percent}
"""Rates of an estimate that need a model, and how they are shown."""
UNKNOWN = "-"
"""Stands for a rate of measured layers: a profile states no sequence length and no FLOP."""
NARROW = 100
"""Below this width the table leaves out the memory bar."""
MOST_STAGES = 6
FITS_STYLES = {"yes": "green", "tight": "yellow", "no": "red"}


def render_plan_set(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.plan-set/1`.

    Args:
        document: the plan set as data.
    """
    best = document["plans"][0]
    verdict = document["verdict"]
    parts: list[RenderableType] = [Text(verdict["text"], style="bold"), Text()]
    parts += [bullet(text) for text in (*best["identities"], *verdict["why"][1:])]
    runner_up = verdict["runner_up"]
    if runner_up:
        parts.append(
            bullet(
                f"runner-up: {runner_up['title']}, {seconds(runner_up['step_time_s'])}: {runner_up['loses_because']}"
            )
        )
    parts += [warning(text) for text in document["warnings"]]
    if document.get("mixing"):
        from meshwright.report.cluster_map import cluster_map

        parts += [heading("Cluster"), *cluster_map(document["inputs"]["cluster"]["groups"], document["mixing"]["map"])]
    parts += [Text(), PlanTable(document["plans"]), *tie_lines(document["tie"])]
    if document.get("trainers"):
        from meshwright.report.trainer_table import trainer_table  # only answers of adapters have trainers

        parts += trainer_table(document["trainers"])
    parts += plan_body(best)
    ranks = document["rank_map"]
    if ranks["groups"]:
        parts += [heading("Ranks"), *(bullet(line) for line in rank_lines(ranks))]
    if document.get("pareto"):
        from meshwright.report.front_drawing import front_in_order, front_rows  # few answers have a front

        front = front_in_order(document["pareto"])
        drawing = (Text(f"  {row}", no_wrap=True, overflow="crop") for row in front_rows(front))
        parts += [heading("Time, memory, devices and cost"), *drawing, *front_list(front)]
    parts += [heading("Assumed"), *assumption_lines(document["inputs"]["assumptions"])]
    return Group(*parts)


def tie_lines(tie: Mapping[str, Any]) -> list[RenderableType]:
    """Which plans of the table tie with the best."""
    ranks = tie["ranks"]
    if not ranks:
        return []
    in_a_row = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    named = f"{ranks[0]} to {ranks[-1]}" if in_a_row else f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    limit = f"within {percent(tie['within'])} of plan {ranks[0]}, too close to predict which runs faster"
    return [bullet(f"plans {named} tie: {limit}")]


def render_plan(entry: Mapping[str, Any]) -> RenderableType:
    """One entry of `plans`: name, identities, memory and time."""
    estimate = entry["estimate"]
    if "mfu" not in estimate:
        line = f"{entry['title']}: {seconds(estimate['step_time_s'])} per step"
        return Group(Text(line, style="bold"), *(bullet(text) for text in entry["identities"]), *plan_body(entry))
    low, high = seconds(estimate["step_time_low_s"]), seconds(estimate["step_time_high_s"])
    line = (
        f"{entry['title']}: {seconds(estimate['step_time_s'])} per step ({low} to {high}), "
        f"{percent(estimate['mfu'])} MFU, {percent(estimate['hfu'])} HFU"
    )
    return Group(Text(line, style="bold"), *(bullet(text) for text in entry["identities"]), *plan_body(entry))


def plan_body(entry: Mapping[str, Any]) -> list[RenderableType]:
    """Memory of the stages and parts of the step."""
    estimate = entry["estimate"]
    stages = estimate["stages"]
    full = fullest(stages)
    parts: list[RenderableType] = [heading(f"Memory of {entry['title']}"), StageBars(stages)]
    parts.append(bullet(memory_legend(full["memory_bytes"])))
    parts.append(bullet(f"peak of {stage_name(full, stages)}: {full['peak_moment']}"))
    parts += [heading(f"Time of a step, {seconds(estimate['step_time_s'])}"), breakdown(estimate)]
    return parts


class PlanTable:
    """Top plans; the columns depend on the width there is."""

    def __init__(self, plans: Sequence[Mapping[str, Any]]) -> None:
        self.plans = plans

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= NARROW
        gap = 2 if wide else 1
        headings = [
            "#",
            "plan",
            "step",
            rate_heading(self.plans) if wide else "tok/s",
            "MFU",
            "GiB",
            "most" if not wide else "bottleneck",
        ]
        rows = [self._row(plan, wide=wide) for plan in self.plans]
        widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
        bar = 12 if wide else 0
        others = sum(widths) - widths[1] + gap * (len(headings) - 1) + (bar + gap if bar else 0)
        name = max(16, min(widths[1], options.max_width - others))
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        for number, text in enumerate(headings):
            if number == 5 and wide:
                table.add_column("memory", no_wrap=True)
            left = number in (1, 6)
            table.add_column(text, justify="left" if left else "right", no_wrap=True)
        for plan, row in zip(self.plans, rows, strict=True):
            full = fullest(plan["estimate"]["stages"])
            cells: list[RenderableType] = [
                row[0],
                "\n".join(line.rstrip() for line in wrap_name(row[1], name)),
                *row[2:5],
            ]
            if wide:
                cells.append(memory_bar(full["memory_bytes"], full["capacity_bytes"], bar))
            cells += [Text(row[5], style=FITS_STYLES[plan["estimate"]["fits"]]), row[6]]
            table.add_row(*cells)
        yield table

    def _row(self, plan: Mapping[str, Any], *, wide: bool) -> list[str]:
        estimate = plan["estimate"]
        full = fullest(estimate["stages"])
        name, share = bottleneck(estimate)
        peak, of = (significant(full[key] / GIB) for key in ("peak_memory_bytes", "capacity_bytes"))
        return [
            str(plan["rank"]),
            plan["title"],
            seconds(estimate["step_time_s"]),
            *(show(estimate[key]) if key in estimate else UNKNOWN for key, show in RATES.items()),
            f"{peak}/{of}",
            f"{name} {percent(share)}",
        ]


def wrap_name(name: str, width: int) -> list[str]:
    """A plan's name cut behind its dots or spaces so that each line fits; joined again it is the name."""
    lines = [""]
    for token in re.findall(r"[^. ]*[. ]?", name):
        if lines[-1] and len(lines[-1]) + len(token.rstrip()) > width:
            lines.append("")
        lines[-1] += token
    return lines


class StageBars:
    """Memory of every stage, or of the first, the fullest and the last where there are many."""

    def __init__(self, stages: Sequence[Mapping[str, Any]]) -> None:
        self.stages = stages

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = shown_stages(self.stages)
        names = [stage_name(stage, self.stages) for stage in shown]
        label = max(map(len, names))
        sizes = [of_capacity(stage["peak_memory_bytes"], stage["capacity_bytes"]) for stage in shown]
        layers = [layer_text(stage["layers"]) for stage in shown]
        room = options.max_width - label - max(map(len, sizes)) - 6
        width = max(8, min(48, room - min(24, max(map(len, layers)) + 2)))
        before = -1
        for stage, size, layers_text, name in zip(shown, sizes, layers, names, strict=True):
            number = self.stages.index(stage)
            if number > before + 1:
                yield Text(f"  ... {number - before - 1} more", style="dim")
            before = number
            bar = memory_bar(stage["memory_bytes"], stage["capacity_bytes"], width)
            line = Text.assemble(f"  {name:<{label}}  ", bar, f"  {size}", no_wrap=True, overflow="ellipsis")
            rest = options.max_width - len(line) - 2
            if len(layers_text) <= rest:
                line.append(f"  {layers_text}", style="dim")
            yield line


def stage_name(stage: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> str:
    """`stage 1`, with its pipeline where there are several."""
    several = stages[-1]["pipeline"] > 0
    return f"pipeline {stage['pipeline']} stage {stage['stage']}" if several else f"stage {stage['stage']}"


def shown_stages(stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All stages if they are few; else the first two, the fullest and the last."""
    if len(stages) <= MOST_STAGES:
        return list(stages)
    number = stages.index(fullest(stages))
    return [stages[i] for i in sorted({0, 1, number, len(stages) - 1})]


def layer_text(layers: Sequence[Sequence[int]]) -> str:
    """`20 layers`, and which where they are one range; `no layer` of a stage with the embedding or the head alone."""
    number = sum(last - first + 1 for first, last in layers)
    if not layers:
        return "no layer"  # embedding or head alone
    where = f" {layers[0][0]}-{layers[0][1]}" if len(layers) == 1 else f" in {len(layers)} chunks"
    return f"{number} layer{'s' if number != 1 else ''}{where}"


def breakdown(estimate: Mapping[str, Any]) -> ShareBars:
    """Parts of the step, largest first, as shares that sum to 100%."""
    parts, step_s = estimate["breakdown_s"], estimate["step_time_s"]
    return ShareBars(
        (name, parts[name] / step_s, f"{share:>5}  {seconds(parts[name])}") for name, share in percents(parts).items()
    )


def bottleneck(estimate: Mapping[str, Any]) -> tuple[str, float]:
    """The largest part of the step that is not compute, and its share, rounded as in `breakdown`."""
    parts = estimate["breakdown_s"]
    name = max((name for name in parts if name != "compute"), key=parts.__getitem__)
    rounded = percents(parts).get(name)
    return name, float(rounded.rstrip("%")) / 100 if rounded else parts[name] / estimate["step_time_s"]


def fullest(stages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The stage with the least headroom."""
    return max(stages, key=lambda stage: stage["peak_memory_bytes"] / stage["capacity_bytes"])


def rank_lines(ranks: Mapping[str, Any], stages: int = 4) -> list[str]:
    """Groups, then the stages."""
    lines = []
    for group in ranks["groups"]:
        many = "1 group" if group["groups"] == 1 else f"{group['groups']:,} groups"
        place = f"across {group['domain']}" if group["leaves_domain"] else f"inside {group['domain']}"
        step = "consecutive ranks" if group["stride"] == 1 else f"ranks {group['stride']} apart"
        lines.append(f"{group['name']}{group['size']}: {step}, {many}, {place}")
    shown = ranks["stages"]
    if len(shown) > stages:
        shown = [*shown[: stages - 1], "...", shown[-1]]
    return [*lines, *shown]


def front_list(front: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Plans no other beats in time, memory, devices and cost at once, marked as they are drawn.

    Args:
        front: the front in the order of the drawing.
    """
    from meshwright.report.front_drawing import MARKS

    return [
        Text(
            f"  {mark}  {seconds(entry['step_time_s'])}, {significant(entry['peak_memory_bytes'] / GIB)} GiB, "
            f"{entry['devices']:,} devices, {significant(entry['device_seconds'])} device-seconds: {entry['title']}"
        )
        for mark, entry in zip(chain(MARKS, repeat(" ")), front, strict=False)
    ]


def assumption_lines(assumptions: Sequence[Mapping[str, str]]) -> list[RenderableType]:
    """Every default that shaped the answer."""
    return [bullet(f"{assumption_name(a['name'])}: {a['value']} [{a['basis']}]") for a in assumptions]
