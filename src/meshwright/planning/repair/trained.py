"""The part of a search space that some trainer of adapters runs, as it is priced."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from meshwright.errors import Problem
from meshwright.estimate.layout import expand
from meshwright.planning.for_target import software_of
from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.target_space import plain_instead, restricted
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import Tuning
from meshwright.specs.workload import Workload
from meshwright.targets import FINE_TUNING, TARGETS
from meshwright.targets.contract import Target


def as_trained(model: ModelSpec, workload: Workload, *, software_given: bool = False) -> tuple[ModelSpec, ...]:
    """A model with the adapters that trainers make of those asked for: of experts that are parameters most make none.

    Args:
        model: the model with adapters, as they were asked for.
        workload: the step.
        software_given: whether its framework was stated.
    """
    lora = model.lora
    if lora is None or not model.is_moe:
        return (model,)
    trainers = _trainers(model, workload, software_given=software_given)
    made = dict.fromkeys([*(one.adapted(model, lora) for one in trainers), lora])
    # What stores experts in few bits, too, holds the least.
    return tuple(replace(model, tuning=Tuning(lora=one)) for one in sorted(made, key=lambda one: len(one.skip)))


def _trainers(model: ModelSpec, workload: Workload, *, software_given: bool) -> list[Target]:
    """Trainers that run on a step's framework; all of them where that was stated and is the own of none."""
    base = model.lora.base if model.lora is not None else None
    named = [TARGETS[name] for name in FINE_TUNING]
    found = [one for one in named if software_of(one, base) == workload.software.partition("@")[0]]
    return named if software_given and not found else found


def trained_by_some(
    space_for: SpaceFor, model: ModelSpec, workload: Workload, *, software_given: bool = False
) -> SpaceFor:
    """The space of plans that a trainer runs under the workload's framework.

    Args:
        space_for: the search space for a number of devices.
        model: the model with adapters.
        workload: the step.
        software_given: the framework was stated, and prices whatever any trainer runs where it is the own of none.
    """
    trainers = _trainers(model, workload, software_given=software_given)

    def refuses(job: Job) -> tuple[Problem, ...]:
        first: tuple[Problem, ...] = ()
        for trainer in trainers:
            problems = trainer.problems(replace(job, model=trainer.loaded(job.model)))
            if not problems:
                return ()
            first = first or problems
        return first

    def some_run_on(part: ClusterSpec) -> bool:
        makers = {group.device.vendor for group in part.groups}
        return any(one.vendors is None or makers <= set(one.vendors) for one in trainers)

    @cache
    def trained(part: ClusterSpec) -> Space:
        if not some_run_on(part):
            return space_for(part)  # the user's own script is all that there is
        space = restricted(space_for(part), model, part, workload, refuses)
        # Of the layers that a plan computes again, restricted asks for all or none.
        row = PlanRow(dp=part.devices, gbs=part.devices, recompute="block", recompute_layers=1)
        plan = expand(row, model, workload.seq_len)
        some = Job(model=model, cluster=part, workload=workload.with_batch(row.gbs), plan=plan)
        return plain_instead(space, [refuses(some)]) or space

    return trained
