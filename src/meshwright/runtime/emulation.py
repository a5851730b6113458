"""Devices of other kinds, emulated: every task of a run takes as long as the planner says that its device takes.

What runs is real: the lists, the messages, the order in which workers wait for each other. What is emulated is how
long a task and a message take: the seconds that `estimate` prices for them on the planned devices. So a run shows
whether the planned step comes about when its parts take what they were planned to, and what another balance would have
cost; it says nothing about how well those parts are priced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.compiler.instructions import Instruction, Op, StepProgram
from meshwright.estimate.timeline import StepTimeline
from meshwright.schedules.times import Times

_STAGE = re.compile(r"(SEND_F|SEND_B|[FBIWR])(\d+)")
_BEFORE_UPDATE = frozenset({"unequal micro-batches", "gradient sum", "gradients to host"})
"""Phases of a worker behind its last task; the others wait for all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageSeconds:
    """Seconds of one micro-batch on one virtual stage."""

    by_task: Mapping[str, float]


def emulated_paces(planned: StepTimeline, program: StepProgram, *, scale: float) -> list[list[float]]:
    """Least seconds of every RUN, and of the way of every message, by mesh.

    Args:
        planned: the step as the planner prices it, its workers those of the program's meshes.
        program: instruction lists.
        scale: seconds of the run for each planned second.
    """
    stages = _stages(planned)
    last_s = _behind_last(planned)
    update_s = max((one.end_s for one in planned.phases), default=0.0) - _all_there_s(planned)
    paces = []
    for mesh, instructions in enumerate(program.lists):
        # A task that is called layer by layer takes its time in equal parts.
        parts = Counter((one.op, one.label) for one in instructions)
        own = [_seconds(one, stages) / parts[one.op, one.label] for one in instructions]
        tasks = [place for place, one in enumerate(instructions) if one.op is Op.RUN and _STAGE.match(one.label)]
        own[tasks[-1]] += last_s[mesh]
        updates = [
            place
            for place, one in enumerate(instructions)
            if one.op is Op.RUN and (one.executable or "").startswith("update")
        ]
        if updates:
            own[updates[-1]] += max(update_s, 0.0)
        paces.append([one_s * scale for one_s in own])
    return paces


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPaces:
    """Seconds of a step whose pipelines hold states together."""

    passes_s: tuple[float, ...]
    """Forward and backward of a micro-batch, with the gathers and sums that they wait for, of each pipeline."""
    behind_s: tuple[float, ...]
    """Seconds behind the last micro-batch, of each pipeline."""
    update_s: float
    """When all have their gradients."""


def joint_paces(planned: StepTimeline, *, scale: float) -> JointPaces:
    """What ranks of each pipeline take, as the planner prices it.

    Args:
        planned: the plan of pipelines of one stage.
        scale: seconds of the run for each planned second.
    """
    passes = (float(times.forward_s[0, 0] + times.backward_s[0, 0]) for times in planned.times)
    update_s = max((one.end_s for one in planned.phases), default=0.0) - _all_there_s(planned)
    return JointPaces(
        passes_s=tuple(scale * one_s for one_s in passes),
        behind_s=tuple(scale * one_s for one_s in _behind_last(planned)),
        update_s=scale * max(update_s, 0.0),
    )


def _seconds(one: Instruction, stages: Sequence[_StageSeconds]) -> float:
    if one.op not in (Op.RUN, Op.SEND) or (found := _STAGE.match(one.label)) is None:
        return 0.0
    return stages[int(found[2])].by_task.get(found[1], 0.0)


def _stages(planned: StepTimeline) -> list[_StageSeconds]:
    """Stages of all pipelines, numbered through as the lists number them."""
    placement = planned.timeline.table.placement
    first_worker, found = 0, []
    for chain, times in enumerate(planned.times):
        workers = (placement.worker[placement.chain == chain] - first_worker).tolist()
        found += _of_pipeline(times, workers)
        first_worker += len(set(workers))
    return found


def _of_pipeline(times: Times, workers: Sequence[int]) -> list[_StageSeconds]:
    chunks = [workers[:stage].count(worker) for stage, worker in enumerate(workers)]
    places = list(zip(workers, chunks, strict=True))
    found = []
    for stage, place in enumerate(places):
        backward_s = float(times.backward_s[place])
        weight_s = 0.0 if times.weight_s is None else float(times.weight_s[place])
        found.append(
            _StageSeconds(
                by_task={
                    "F": float(times.forward_s[place]),
                    "B": backward_s,
                    "I": backward_s - weight_s,
                    "W": weight_s,
                    "R": 0.0 if times.recompute_s is None else float(times.recompute_s[place]),
                    "SEND_F": _transfer_s(times, place),
                    "SEND_B": _transfer_s(times, places[stage - 1]) if stage else 0.0,
                }
            )
        )
    return found


def _transfer_s(times: Times, upstream: tuple[int, int]) -> float:
    """Seconds from a virtual stage to the next one, and back."""
    return float(times.transfer_s) if isinstance(times.transfer_s, float) else float(times.transfer_s[upstream])


def _behind_last(planned: StepTimeline) -> list[float]:
    """Seconds of each worker behind its last task, before it waits for the others."""
    found = [0.0] * len(planned.held_bytes)
    for phase in planned.phases:
        if phase.name in _BEFORE_UPDATE:
            found[phase.worker] += phase.end_s - phase.start_s
    return found


def _all_there_s(planned: StepTimeline) -> float:
    """When the slowest worker has its gradients."""
    own = [phase.end_s for phase in planned.phases if phase.name in _BEFORE_UPDATE]
    return max([planned.timeline.makespan_s, *own])
