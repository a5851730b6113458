"""A plan from whatever names one: a job, an entry of an answer, a plan file, or the one-line form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from meshwright.errors import InputError, Problem
from meshwright.estimate.layout import expand
from meshwright.estimate.rules.legality import row_problems
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.formats.plan_json import PlannedJob, read_document, read_job, with_model
from meshwright.library import models
from meshwright.library.made_with import changes_since
from meshwright.planning.carried_plan import carried_plan, of_plan
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.question.job_inputs import JobInputs, job_fields, job_inputs, with_rest
from meshwright.schedules import known_names, schedule_named
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row


@runtime_checkable
class HasJob(Protocol):
    """An entry of an answer."""

    @property
    def job(self) -> PlannedJob:
        """The plan with its model, or measured layers, cluster and workload."""
        ...


PlanLike = Job | MeasuredJob | HasJob | Mapping[str, Any] | str | os.PathLike[str]


def job_of(plan: PlanLike) -> tuple[Job, tuple[str, ...]]:
    """The job a plan file or an entry of an answer holds, and warnings about the file.

    Raises:
        InputError: the file cannot be used, or the one-line form stands where a file is needed.
        UnsupportedError: the plan is of measured layers and carries no model.
    """
    planned, warnings = planned_job(plan)
    return with_model(planned), warnings


def planned_job(plan: PlanLike) -> tuple[PlannedJob, tuple[str, ...]]:
    """The job that a plan names, as `job_of` reads it, including plans of measured layers.

    Raises:
        InputError: the file cannot be used, or the one-line form stands where a file is needed.
    """
    if isinstance(plan, Job | MeasuredJob):
        return plan, ()
    if isinstance(plan, HasJob):
        return plan.job, ()
    if isinstance(plan, str) and not is_file(plan):
        raise InputError([_no_file(plan)], code="MW232")
    if isinstance(plan, Mapping):
        read = read_document(plan)
    elif isinstance(plan, (str, os.PathLike)):
        read = read_job(plan if isinstance(plan, str) else Path(plan))
    else:
        raise _no_plan(plan)
    return read.planned, (*read.warnings, *changes_since(read))


def named_job(
    plan: PlanLike | PlanRow, asked: JobFields, like: PlannedJob | None = None
) -> tuple[PlannedJob, tuple[str, ...]]:
    """The job that a plan names, as `planned_job` reads it, including plans of one line beside their model and cluster.

    Args:
        plan: a job, an entry of an answer, a plan file, a row or its one-line form.
        asked: model, cluster and workload of a plan of one line.
        like: another plan, whose model, cluster and workload it has where `asked` names none.

    Raises:
        InputError: the file cannot be used, or the plan is not legal, or nothing says what it is for.
        UnsupportedError: an unknown name.
    """
    if not is_one_line(plan):
        return planned_job(plan)  # type: ignore[arg-type]
    if asked.model is None and isinstance(like, Job):
        own, stated = job_fields(like.model, like.cluster, like.workload), _stated_batch(plan)
        asked = own if stated is None else replace(own, global_batch=stated)
    elif asked.model is None and isinstance(plan, str):
        return planned_job(plan)
    question = plan_question(plan, asked)
    return question.job, question.said


def is_one_line(plan: object) -> bool:
    """Whether a plan does not carry its model: a row, or a text that names no file."""
    return isinstance(plan, PlanRow) or (isinstance(plan, str) and not is_file(plan))


def _no_file(plan: str) -> Problem:
    """What stands where a plan file should: a model, or a plan in one line."""
    if models.knows(plan):
        what, why = f"{plan!r} is a model, no plan file", "this is asked of a plan"
        fix = f"find one with `meshwright plan {plan} --gpus 8xH100 -o plans.json`, and name plans.json#1"
    else:
        what = f"{plan[:80]!r} is no plan file"
        why = "a plan's one-line form does not say model, cluster and workload; a plan file does"
        fix = "add --model llama-3.1-70b --gpus 64xH100, or name a file that `plan -o plans.json` wrote"
    return Problem(what=what, why=why, fix=fix, field="plan")


def _no_plan(value: object) -> InputError:
    """The error of a value that is no plan, such as a whole plan set."""
    return InputError(
        what=f"plan is of type {type(value).__name__}",
        why="a plan is one entry of a plan set, a plan file or one line such as tp8.pp4.mbs1",
        fix="pass one entry: plans[0]" if isinstance(value, Sequence) else "pass one of these",
        field="plan",
        code="MW232",
    )


def measured_plan(
    plan: PlanLike | ExecutionPlan | PlanRow, settings: Mapping[str, object]
) -> tuple[MeasuredJob, tuple[str, ...]] | None:
    """A plan of measured layers, and warnings about its file; None for any other plan.

    Args:
        plan: the plan as `plan_question` takes it.
        settings: further fields of the question; a plan file of measured layers carries all of them.

    Raises:
        InputError: the file cannot be used, or another model, cluster or workload is given.
    """
    if isinstance(plan, ExecutionPlan | PlanRow | Job) or (isinstance(plan, str) and not is_file(plan)):
        return None
    job, warnings = planned_job(plan)
    if not isinstance(job, MeasuredJob):
        return None
    problems = [
        Problem(
            what=f"{name} is given with a plan of measured layers",
            why="its layers were measured on its own devices, at its own sequence length",
            fix="leave it out, or plan again with --profiles",
            field=name,
        )
        for name, value in settings.items()
        if value not in (None, False, ())
    ]
    if problems:
        raise InputError(problems, code="MW230")
    return job, warnings


def is_file(text: str) -> bool:
    """Whether text names a plan file rather than a plan: it has a path, a file ending, or is there."""
    path = text.partition("#")[0]
    if not path.strip() or "\0" in path or len(path) > 4096:
        return False
    return text.lstrip()[:1] == "{" or path.endswith(".json") or os.sep in path or os.path.exists(path)


def plan_question(plan: PlanLike | ExecutionPlan | PlanRow, asked: JobFields) -> PlanQuestion:
    """Bring a plan together with its model, cluster and workload.

    Args:
        plan: a row, its one-line form, a plan file or what it holds, a job, or an execution plan.
        asked: model, cluster and workload; what is not given comes from the plan file, else by default.

    Returns:
        The plan and what it is for; `problems` where its degrees are not legal.

    Raises:
        InputError: anything is malformed, or plan, model and cluster contradict each other.
        UnsupportedError: an unknown name.
    """
    question = _as_asked(plan, asked)
    inputs = question.inputs
    if question.plan is None or inputs.model.lora is None:
        return question
    carried = asked.like is None and asked.software is None and asked.lora is not None
    if inputs.software_given and not (carried and _carries_job(plan)):
        return question
    from meshwright.planning.trainer_of_plan import under_a_trainer  # few plans train adapters

    return under_a_trainer(question, asked, partial(_as_asked, plan))


def question_beside_trainers(plan: PlanLike | ExecutionPlan | PlanRow, asked: JobFields) -> PlanQuestion:
    """The same, with what each trainer makes of a plan on few devices where the question names no framework.

    Args:
        plan: the plan as `plan_question` takes it.
        asked: the question as `plan_question` takes it.

    Raises:
        InputError, UnsupportedError: as `plan_question` does.
    """
    from meshwright.planning.reasons import FEW_DEVICES  # loads what a search finds, which runs do without

    question = plan_question(plan, asked)
    inputs = question.inputs
    whole = question.plan is not None and inputs.model.tuning is None and not inputs.software_given
    if not (whole and inputs.cluster.homogeneous and inputs.cluster.devices <= FEW_DEVICES):
        return question
    from meshwright.planning.trainer_of_plan import beside_trainers  # loads the targets

    return beside_trainers(question, asked, partial(_as_asked, plan))


def _carries_job(plan: PlanLike | ExecutionPlan | PlanRow) -> bool:
    """Whether a plan brings its model, cluster and workload along."""
    # A text is looked at first: asking whether anything else has a job takes long.
    if isinstance(plan, (str, os.PathLike)):
        return _names_file(plan)
    return isinstance(plan, (Job, MeasuredJob, Mapping, HasJob))


def _as_asked(plan: PlanLike | ExecutionPlan | PlanRow, asked: JobFields) -> PlanQuestion:
    """A plan with its model, cluster and workload, whoever runs it."""
    if _carries_job(plan):
        job, read_warnings = job_of(plan)  # type: ignore[arg-type]
        job = replace(job, workload=with_rest(job.workload, asked.like or job.workload))
        return carried_plan(job, read_warnings, asked)
    if not isinstance(plan, (str, ExecutionPlan, PlanRow)):
        raise _no_plan(plan)
    if asked.model is None:
        why = "only a plan file carries its model"
        raise InputError(what="no model is given", why=why, fix="name one", field="model", code="MW203")
    text = plan if isinstance(plan, str) else ""
    stated = _stated_batch(plan)
    if stated is not None:
        _require_batch(stated, asked)
    own_batch = stated is None and asked.global_batch is None and asked.tokens_per_step is None
    inputs = job_inputs(asked if stated is None else replace(asked, global_batch=stated, tokens_per_step=None))
    if isinstance(plan, ExecutionPlan):
        workload = inputs.workload.with_batch(plan.global_batch)
        inputs = replace(inputs, workload=workload, batch_given=True)
        return of_plan(plan, inputs)
    row = plan if isinstance(plan, PlanRow) else _parse(text, inputs)
    warnings: tuple[str, ...] = ()
    if own_batch and row.devices == inputs.cluster.devices:
        usual = inputs.workload.global_batch
        row, inputs = _own_batch(row, inputs)
        if row.gbs != usual:
            step = f"dp {row.dp} x mbs {row.mbs} = {row.dp * row.mbs:,}"
            warnings = (f"a step has {row.gbs:,} sequences instead of the default {usual:,}, for {step}",)
    return with_row(row, inputs, warnings)


def _require_batch(stated: int, asked: JobFields) -> None:
    """Refuse another batch than the plan's, in sequences or in tokens."""
    said = ""
    if asked.global_batch not in (None, stated):
        said = f"--gbs says {asked.global_batch}"
    elif asked.tokens_per_step is not None and (asked_for := job_inputs(asked).workload.global_batch) != stated:
        said = f"--tokens-per-step says {asked.tokens_per_step:,}, which are {asked_for:,} sequences"
    if said:
        what, why, fix = f"the plan says gbs{stated}, {said}", "a step has one batch", "leave one of them out"
        raise InputError(Problem(what=what, why=why, fix=fix, field="gbs"), code="MW230")


def with_row(
    row: PlanRow, inputs: JobInputs, warnings: tuple[str, ...] = (), layers: tuple[int, ...] | None = None
) -> PlanQuestion:
    """A row with what it is for; written out as a plan if it is legal.

    Args:
        row: the plan.
        inputs: its job.
        warnings: the warnings of what was read.
        layers: the layers of each virtual stage, all layers of the model; as many each where nobody says it.
    """
    inputs = replace(inputs, workload=inputs.workload.with_batch(row.gbs))
    model, seq_len = inputs.model, inputs.workload.seq_len
    bare = 0 if layers is None else sum(count == 0 for count in (layers[0], layers[-1]))
    problems = row_problems(row, model, seq_len, inputs.cluster.devices, bare=bare)
    plan = None
    if not problems:
        plan = expand(row, model, seq_len) if layers is None else plan_of(row, layers)
    return PlanQuestion(inputs=inputs, row=row, plan=plan, problems=problems, warnings=warnings)


def _names_file(plan: str | os.PathLike[str]) -> bool:
    return not isinstance(plan, str) or is_file(plan)


def _stated_batch(plan: object) -> int | None:
    if isinstance(plan, (PlanRow,)):
        return plan.gbs
    if isinstance(plan, ExecutionPlan):
        return plan.global_batch
    match = re.search(r"(?:^|\.)\s*gbs([0-9]{1,9})\s*(?:\.|$)", plan) if isinstance(plan, str) else None
    return int(match[1]) if match and int(match[1]) else None


def _parse(text: str, inputs: JobInputs) -> PlanRow:
    if not text.strip():
        raise InputError(
            what="no plan is given",
            why="it says the degrees",
            fix="for example tp8.pp4.z1.mbs1",
            field="plan",
            code="MW210",
        )
    row = parse_row(
        text,
        devices=inputs.cluster.devices,
        global_batch=inputs.workload.global_batch,
        schedules=known_names(),
    )
    return replace(row, schedule=schedule_named(row.schedule).token)


def _own_batch(row: PlanRow, inputs: JobInputs) -> tuple[PlanRow, JobInputs]:
    """A batch that nobody gave moves to the nearest one that the plan's data ranks divide."""
    step, batch = row.dp * row.mbs, inputs.workload.global_batch
    if batch % step == 0:
        return row, inputs
    batch = max(step, round(batch / step) * step)
    note = Assumption(
        name="global_batch",
        value=f"{batch:,} sequences, the multiple of dp {row.dp} x mbs {row.mbs} next to the default",
        basis="assumed",
    )
    kept = tuple(a for a in inputs.assumptions if a.name != "global_batch")
    workload = inputs.workload.with_batch(batch)
    return replace(row, gbs=batch), replace(inputs, workload=workload, assumptions=(*kept, note))
