"""What to call a plan, also one that has no one-line form, and what it assumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from meshwright.planning.plan_shape import groups_of, title
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.cluster import AND
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob

MOST_SHAPES = 4
"""Kinds of pipelines of measured layers that a title names."""
_ASSUMED_AS = {
    "seq_len": "sequence length",
    "encoder_seq_len": "sequence length of the encoder",
    "global_batch": "global batch",
    "dtype": "number format",
    "dtype of layers": "number format of layers",
}
"""Names of fields, which data keep, as people read them."""


def assumption_name(name: str) -> str:
    """`global batch` for `global_batch`.

    Args:
        name: the name of an assumption, in an answer's data.
    """
    return _ASSUMED_AS.get(name, name)


def planned_title(job: PlannedJob) -> str:
    """The title of a plan of a model or of measured layers."""
    return title_of(job, row_of(job.plan, job.model) if isinstance(job, Job) else None)


def title_of(job: PlannedJob, row: PlanRow | None = None) -> str:
    """The title of a plan where it may stand on several groups: its stages by group, pipelines parted by a bar.

    `2 x 8 H100 > 1 x 4 A100-80` are two stages of 8 H100 each, then one of 4 A100-80.

    Args:
        job: the plan and its cluster.
        row: the plan as a row, where it is one.
    """
    stages = [_stages(job, pipeline) for pipeline in range(len(job.plan.pipelines))]
    if not isinstance(job, Job):
        return _counted(stages)
    if job.cluster.homogeneous:
        return title(job.plan, job.model, job.name)
    if row is not None and len({group for own in stages for group, _ in own}) == 1:
        return f"{job.plan.devices} {stages[0][0][0]}: {row.format()}"
    return " | ".join(map(_by_group, stages))


def _stages(job: PlannedJob, pipeline: int) -> list[tuple[str, int]]:
    """Group and devices of each stage of a pipeline."""
    sizes = [worker.num_devices for worker in job.plan.pipelines[pipeline].workers]
    return list(zip(groups_of(job, pipeline), sizes, strict=True))


def _by_group(stages: Sequence[tuple[str, int]]) -> str:
    """The stages of a pipeline: `1 x 8 new > 2 x 4 old`."""
    return " > ".join(f"{len(list(run))} x {group_text(*stage)}" for stage, run in groupby(stages))


def _counted(pipelines: Iterable[Sequence[tuple[str, int]]]) -> str:
    """Equal pipelines counted: `2 x (1 x 8 new > 2 x 4 old) | 1 x 4 old`."""
    shapes = Counter(map(_by_group, pipelines))
    named = [text if count == 1 else f"{count} x ({text})" for text, count in shapes.items()]
    more = len(named) - MOST_SHAPES
    return " | ".join([*named[:MOST_SHAPES], *([f"and {more} more"] if more > 0 else [])])


def strategy_text(strategy: LayerStrategy) -> str:
    """What the layers of a stage share, in the words of a plan's line: `tp8 dp4 z1 rc-full tpov`."""
    from meshwright.specs.row_of import strategy_row  # a plan of one row has a name without it

    ranks = strategy.data.across
    row = strategy_row(replace(strategy, data=replace(strategy.data, across=0)) if ranks else strategy)
    if row is None:
        return _degrees(strategy)
    unsaid = {"dp1", row.sharding} if row.dp * row.cp_degree == 1 and not ranks else {"dp1"}
    held = f", states over all {ranks} ranks" if ranks else ""
    return " ".join(token for token in row.tokens(of_layers=True) if token not in unsaid) + held or "unsharded"


def _degrees(strategy: LayerStrategy) -> str:
    """What no line says whole, by its degrees."""
    expert = strategy.expert
    degrees = (("tp", strategy.tp), ("cp", strategy.cp), ("ep", expert.ep), ("etp", expert.etp), ("dp", strategy.dp))
    return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "unsharded"


def shortened_title(numbers: Sequence[int]) -> str:
    """`20+20+20+20`, and `8x16+7x4` where there are more than 8 numbers."""
    if len(numbers) <= 8:
        return "+".join(f"{number:,}" for number in numbers)
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1] = (number, runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return " + ".join(f"{times} x {number:,}" if times > 1 else f"{number:,}" for number, times in runs)


def group_text(name: str, count: int) -> str:
    """Devices of a group: `32 H100`; of several groups as one, `16 devices (H100 + H200)`."""
    return f"{count:,} devices ({name})" if AND in name else f"{count:,} {name}"
