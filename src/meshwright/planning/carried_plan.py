"""A plan file with another model, cluster or step in place of its own: what is priced, and what it was not made for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.estimate.rules.legality import plan_problems
from meshwright.fields.job import JobFields
from meshwright.library import models
from meshwright.library.calibration import calibration as calibration_of
from meshwright.library.software import canonical
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.question.job_inputs import JobInputs, job_fields, job_inputs, resolve_cluster
from meshwright.planning.question.tuned import trained_text, with_tuning
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.precision import ROLES
from meshwright.specs.workload import Workload


def carried_plan(job: Job, warnings: tuple[str, ...], asked: JobFields) -> PlanQuestion:
    """A plan file's own model, cluster and workload, with what else was given in their place.

    Args:
        job: the job that the file holds.
        warnings: the warnings of its reading.
        asked: what the question states besides.

    Raises:
        InputError: another batch is asked for, or a model of another number of layers.
    """
    _check_batch(job.workload, asked)
    asked = _with_files_read(asked)
    workload, workload_warnings = _workload_fields(job, asked)
    model, model_warnings = _model_asked(job.model, asked)
    cluster, cluster_warnings = _cluster_asked(job, asked)
    own = job_fields(job.model, job.cluster, job.workload)
    beside = {name: getattr(asked, name) for name in _BESIDE_THE_PLAN}
    inputs = job_inputs(replace(own, **workload, **beside, model=model, cluster=cluster))
    _check_layers(job.plan, model)
    warnings = (*warnings, *workload_warnings, *model_warnings, *cluster_warnings)
    return of_plan(job.plan, inputs, warnings)


def of_plan(plan: ExecutionPlan, inputs: JobInputs, warnings: Iterable[str] = ()) -> PlanQuestion:
    """A plan that is there in full, with what it is for and what is illegal of it.

    Args:
        plan: the plan, of one row or of any pipelines.
        inputs: its job.
        warnings: the warnings of what was read.
    """
    problems = plan_problems(plan, inputs.model, inputs.workload.seq_len)
    row = row_of(plan, inputs.model) if inputs.cluster.homogeneous or not problems else None
    legal = None if problems else plan
    return PlanQuestion(inputs=inputs, row=row, plan=legal, problems=problems, warnings=tuple(warnings))


_BESIDE_THE_PLAN = (
    *("price", "prices", "power", "pue", "carbon_intensity"),
    *("bf16_first", "bf16_last", "calibration", "host_ram", "nvme", "pcie"),
)
"""What a question says anew of any plan file: nothing of it is the plan's own."""
OF_THE_STEP = (
    *("seq_len", "lengths", "packing", "dtype", *ROLES, "optimizer", "attention_kernel"),
    *("loss_tiles", "mlp_tiles", "expert_load", "tokens"),
)
"""What a plan file states of its step, and a question may state otherwise."""


def _check_batch(workload: Workload, asked: JobFields) -> None:
    per_step = workload.global_batch * workload.seq_len
    if asked.global_batch in (None, workload.global_batch) and asked.tokens_per_step in (None, per_step):
        return
    wanted, runs = f"{asked.global_batch} are", f"{workload.global_batch} sequences"
    if asked.global_batch in (None, workload.global_batch):
        wanted, runs = f"{asked.tokens_per_step:,} are", f"{runs} = {per_step:,} tokens"
    problem = Problem(
        what=f"the plan file runs {runs} per step, {wanted} asked for",
        why="a plan's number of micro-batches is part of it",
        fix="leave the batch out, or plan again",
        field="gbs",
    )
    raise InputError(problem, code="MW230")


def _with_files_read(asked: JobFields) -> JobFields:
    """A question with lengths and loads of experts in place of the files that state them; few questions do."""
    if asked.lengths is not None:
        from meshwright.formats.lengths import lengths_of

        asked = replace(asked, lengths=lengths_of(asked.lengths))
    if asked.expert_load is not None:
        from meshwright.formats.expert_load import expert_load_of

        asked = replace(asked, expert_load=expert_load_of(asked.expert_load))
    return asked


def _workload_fields(job: Job, asked: JobFields) -> tuple[dict[str, Any], Iterator[str]]:
    """What is asked of the step in place of the plan's own, and what of it the plan was not made for."""
    workload, own = job.workload, job_fields(job.model, job.cluster, job.workload)
    replaced: dict[str, Any] = {"dynamic_cp": True} if asked.dynamic_cp else {}
    replaced |= {name: value for name in OF_THE_STEP if (value := getattr(asked, name)) is not None}
    if asked.software is not None:
        replaced["software"] = canonical(asked.software)

    def warnings() -> Iterator[str]:
        if (chosen := replaced.get("software", workload.software)) != workload.software:
            yield f"{chosen} is used, the plan was made for {workload.software}"
        for name in OF_THE_STEP:
            planned = getattr(workload.precision, ROLES[name].attribute) if name in ROLES else getattr(own, name)
            made_for = getattr(planned, "name", planned)
            if name in replaced and str(getattr(replaced[name], "name", replaced[name])) != str(made_for):
                yield f"{name} {replaced[name]} is used, the plan was made for {made_for}"

    return replaced, warnings()


def _model_asked(made_for: ModelSpec, asked: JobFields) -> tuple[ModelSpec, list[str]]:
    spec, warnings = made_for, []
    if asked.model is not None:
        spec = asked.model if isinstance(asked.model, ModelSpec) else models.resolve(asked.model)
        if spec != made_for:
            warnings.append(f"{spec.name} is priced, the plan was made for {made_for.name}")
    if asked.lora is not None or asked.freeze:
        spec = with_tuning(replace(spec, tuning=None), asked.lora, asked.freeze)
        if spec != made_for:
            trained = trained_text(made_for) or "training in full"
            warnings.append(f"{trained_text(spec)}; the plan was made for {trained}")
    return spec, warnings


def _cluster_asked(job: Job, asked: JobFields) -> tuple[ClusterSpec, list[str]]:
    if asked.cluster is None and asked.gpus is None:
        return job.cluster, []
    fitted = None if asked.calibration is None else calibration_of(asked.calibration)
    cluster = resolve_cluster(asked.cluster, asked.gpus, fitted)
    if cluster.groups == job.cluster.groups:
        return cluster, []
    used, there = job.plan.devices, cluster.devices
    idle = f" and runs on {used} of these {there} devices" if used < there else ""
    return cluster, [f"{cluster.name} is priced, the plan was made for {job.cluster.name}{idle}"]


def _check_layers(plan: ExecutionPlan, model: ModelSpec) -> None:
    if plan.num_layers == model.num_layers:
        return
    problem = Problem(
        what=f"the plan holds {plan.num_layers} layers, {model.name} has {model.num_layers}",
        why="every layer belongs to exactly one stage",
        fix="give the model the plan was made for",
        field="layers",
    )
    raise InputError(problem, code="MW230")
