"""A plan for the devices that a run has left, found by the planner as `plan --replan-from` finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from meshwright.app.profile import assumed_device
from meshwright.app.replan import replan
from meshwright.errors import InfeasibleError, MeshwrightError, Problem
from meshwright.estimate.layout import ModelLayout, expand
from meshwright.formats.cluster import node_group
from meshwright.report.words.titles import planned_title
from meshwright.runtime.mixed_plan import check_plan_runs, model_form
from meshwright.runtime.plan_method import check_runs, grid_of
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from meshwright.units import GIGA
from meshwright.zoo.tiny import TINY, scaled_model

if TYPE_CHECKING:
    from meshwright.runtime.timings import Machine
    from meshwright.runtime.training.job import JobTraining
    from meshwright.runtime.training.planned import PlannedTraining
    from meshwright.runtime.training.run import Training

TRIED = 20
"""Plans of the planner's answer that are looked at; the first that runs here is taken."""
PERCEPTRON_WIDTH = 32
MEMORY_BYTES_PER_S = 20 * GIGA
"""Assumed, as all of the device: only how it compares with the others decides between plans."""


def training_on(training: PlannedTraining, devices: int, machine: Machine, lost: Sequence[int] = ()) -> PlannedTraining:
    """A training of the same batch on fewer devices: of the plans that run here and use most, the quickest.

    Workers are nodes of a cluster of equal devices; those of a plan on several kinds stand where the plan put them.

    Args:
        training: what ran, under which plan; it goes on where as many devices are left.
        devices: the number of devices that are left.
        machine: the machine whose memory they share.
        lost: meshes whose workers are gone.

    Raises:
        InfeasibleError: no plan of this batch fits.
    """
    from meshwright.runtime.training.job import JobTraining
    from meshwright.runtime.training.run import Training

    if isinstance(training, JobTraining):
        return _mixed_on(training, lost)
    assert isinstance(training, Training)
    job, before = _job(training, machine), training.row
    if devices >= before.devices:
        return training
    found: list[PlanRow] = []
    if devices >= job.cluster.groups[0].devices_per_node:
        try:
            answer = replan(job, lost=f"{devices}-{before.devices - 1}", top=TRIED)
            found = [
                one for move in answer.moves if (one := row_of(move.plan.plan, job.model)) and _runs(one, training)
            ]
        except InfeasibleError:
            found = []
    if not found:
        raise InfeasibleError(
            Problem(
                what=f"no plan of {before.gbs} samples a step on the {devices} devices that are left",
                why=f"the plan so far was {before.format()}",
                fix="start again with more devices, or another --gbs",
                field="devices",
            ),
            code="MW311",
        )
    # What this machine takes for so little work is not known well enough to leave devices idle for it.
    row = max(found, key=lambda one: one.devices)
    stage_layers = ModelLayout.of(job.model, training.seq_len).split_of(row)
    return replace(training, row=row, stage_layers=stage_layers)


def _mixed_on(training: JobTraining, lost: Sequence[int]) -> JobTraining:
    """A plan on several kinds again, for the cluster without the devices of lost workers; it may leave more idle."""
    if not lost:
        return training
    job = training.job
    gone = sorted(number for mesh in set(lost) for number in training.mesh_devices[mesh])
    try:
        moves = replan(job, lost=",".join(map(str, gone)), top=TRIED).moves
    except InfeasibleError as error:
        raise _no_plan(job, error.problems[0].what) from None
    for move in moves:
        again = replace(move.plan.job, name=None)
        if isinstance(again, Job) and again.plan.devices and (found := _mixed_for(again, training)):
            return found
    raise _no_plan(job, "none of the plans runs here")


def _mixed_for(job: Job, before: JobTraining) -> JobTraining | None:
    """The same training under the plan of a job; None where that does not run here."""
    from meshwright.runtime.training.job import JobTraining
    from meshwright.runtime.training.of_job import job_training

    settings = {one.name: getattr(before, one.name) for one in fields(JobTraining)}
    try:
        check_plan_runs(job.plan, before.seq_len)
        for pipeline in job.plan.pipelines:
            model_form(job.plan, pipeline)
        found = job_training(**settings | {"job": job, "name": planned_title(job)})
    except MeshwrightError:
        return None
    return None if any(size % found.hosts_per_mesh for size in found.mesh_sizes) else found


def _no_plan(job: Job, why: str) -> InfeasibleError:
    return InfeasibleError(
        Problem(
            what=f"no plan of {job.plan.global_batch} samples a step for the devices that are left",
            why=why,
            fix="start again with more devices, or another --gbs",
            field="devices",
        ),
        code="MW311",
    )


def _job(training: Training, machine: Machine) -> Job:
    """What ran, as the planner sees it: each worker is a node."""
    row, model = training.row, _planned_as(training)
    device = replace(assumed_device(machine), memory_bandwidth_bytes_per_s=MEMORY_BYTES_PER_S)
    of_worker = row.devices // (row.pp * training.hosts_per_mesh)
    workers = node_group(name="workers", device=device, nodes=row.devices // of_worker, devices_per_node=of_worker)
    return Job(
        model=model,
        cluster=ClusterSpec(name="workers", groups=(workers,)),
        workload=Workload(seq_len=training.seq_len, global_batch=row.gbs, precision=PRECISIONS["fp32"]),
        plan=expand(row, model, training.seq_len),
    )


def _planned_as(training: Training) -> ModelSpec:
    """The model; for the perceptron, which the planner does not know, a decoder of as many layers and its width."""
    if training.spec is not None:
        return training.spec
    like = scaled_model(TINY["llama-tiny"], hidden=training.hidden or PERCEPTRON_WIDTH)
    (run,) = like.runs
    return replace(like, runs=(replace(run, repeats=sum(training.stage_layers)),))


def _runs(row: PlanRow, training: Training) -> bool:
    """Whether a plan runs here, and its meshes can be shared by as many hosts."""
    try:
        check_runs(row)
        grid_of(row)
    except MeshwrightError:
        return False
    return row.devices // row.pp % training.hosts_per_mesh == 0
