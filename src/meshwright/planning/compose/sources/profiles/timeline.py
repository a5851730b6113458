"""One step of a measured job, task by task: 1F1B of every pipeline side by side, then gradients and the update.

A stage's transfers are part of its tasks, half of them forward and half backward, as the rule that prices it counts
them. The rule lets each micro-batch wait for the slowest stage; the tasks drawn may end before that, and what follows
starts where the rule has it.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from meshwright.estimate.timeline import Phase, StepTimeline, activation_line
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.job import costs_of, pipeline_shapes
from meshwright.planning.compose.sources.profiles.price import PacedPipeline, paced_pipelines, price_job
from meshwright.schedules import SCHEDULES, Times, simulate
from meshwright.schedules.beside import side_by_side
from meshwright.shapes import Float
from meshwright.specs.measured import MeasuredJob

HELD = ("weights", "gradients", "optimizer", "overhead")
"""Kinds of memory that stay the same through a step."""


def job_timeline(job: MeasuredJob) -> StepTimeline:
    """Every task of one step.

    Args:
        job: the plan with its measured layers.

    Raises:
        InputError: a micro-batch was not measured.
    """
    costs = costs_of(job)
    estimate, pipelines = price_job(job, costs), paced_pipelines(pipeline_shapes(job), costs)
    tables = [SCHEDULES["1f1b"].table(len(one.shape.stages), len(one.sizes), 1) for one in pipelines]
    most = max(len(one.sizes) for one in pipelines)
    each = [_durations(one, costs, most) for one in pipelines]
    forward_s, backward_s = (np.concatenate([pair[side] for pair in each]) for side in (0, 1))
    times = Times(forward_s=forward_s, backward_s=backward_s, by_micro_batch=True)
    timeline = simulate(side_by_side(tables), times)
    parts, memory = dict(estimate.breakdown_s), [dict(stage.memory_bytes) for stage in estimate.stages]
    end_s = estimate.step_time_s - parts["dp"] - parts["optimizer"]
    workers = range(len(estimate.stages))
    sums = [Phase(worker=w, name="gradient sum", start_s=end_s, end_s=end_s + parts["dp"]) for w in workers]
    updates = [
        Phase(worker=w, name="optimizer", start_s=end_s + parts["dp"], end_s=estimate.step_time_s) for w in workers
    ]
    first = list(accumulate((len(one.shape.stages) for one in pipelines), initial=0))
    kept = [
        memory[low + place]["activations"] / (len(one.shape.stages) - place)
        for one, low in zip(pipelines, first, strict=False)
        for place in range(len(one.shape.stages))
    ]
    return StepTimeline(
        estimate=estimate,
        timeline=timeline,
        phases=tuple(phase for phase in (*sums, *updates) if phase.end_s > phase.start_s),
        held_bytes=np.array([sum(kinds[kind] for kind in HELD) for kinds in memory]),
        transient_bytes=np.array([kinds["transient"] for kinds in memory]),
        activations=tuple(activation_line(timeline, worker, np.array([kept[worker]])) for worker in workers),
    )


def _durations(
    one: PacedPipeline, costs: ProfileCosts, most: int
) -> tuple[Float[np.ndarray, "stages chunks micro_batches"], Float[np.ndarray, "stages chunks micro_batches"]]:
    """Seconds of each forward and backward of a pipeline; zero behind its last micro-batch."""
    forward_s = np.zeros((len(one.shape.stages), 1, most))
    backward_s = np.zeros_like(forward_s)
    for size in set(one.sizes):
        pace = one.paces[size]
        own = np.flatnonzero(np.array(one.sizes) == size)
        for place, stage in enumerate(one.shape.stages):
            ahead_s = costs.forward_s(stage.device, stage.tp, size // stage.replicas)
            compute_s = float(ahead_s[pace.cuts[place + 1]] - ahead_s[pace.cuts[place]])
            moving_s = pace.stage_s[place] - pace.compute_s[place]
            forward_s[place, 0, own] = compute_s + moving_s / 2
            backward_s[place, 0, own] = pace.stage_s[place] - forward_s[place, 0, own]
    return forward_s, backward_s
