"""One plan priced: time, memory, breakdown. Nothing is searched."""

from __future__ import annotations

import os

from meshwright.app.plan_set import PlanSet, ranked
from meshwright.errors import InputError
from meshwright.estimate.price import estimate_plan
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import inexact
from meshwright.planning.job_inputs import Count
from meshwright.planning.plan_source import PlanLike, plan_question
from meshwright.planning.reason import Reason, idle_reason
from meshwright.planning.reasons import plan_reasons
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import run_sentence, sentence, verdict_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload


def estimate(
    model: ModelSpec | str | os.PathLike[str] | None,
    plan: PlanLike | ExecutionPlan | PlanRow,
    cluster: ClusterSpec | str | os.PathLike[str] | None = None,
    workload: Workload | None = None,
    *,
    gpus: str | None = None,
    seq_len: Count | None = None,
    global_batch: Count | None = None,
    tokens_per_step: Count | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    attention_kernel: str | None = None,
    expert_imbalance: float | None = None,
    tokens: Count | None = None,
    price: float | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> PlanSet:
    """Price one plan.

    Args:
        model: library name, path or spec; None where a plan file carries it.
        plan: the one-line form, a row, a plan file, a job or an execution plan.
        cluster: `64xH100`, the path of a cluster file, or a spec; a plan file carries its own.
        workload: a spec, instead of the options below.
        gpus: `64xH100`, instead of `cluster`.
        seq_len: tokens of a sequence.
        global_batch: sequences per step; by default what the plan says, else 4,194,304 tokens.
        tokens_per_step: instead of `global_batch`.
        dtype: bf16, fp16, fp8 or fp32.
        optimizer: adam, sgd, ...
        attention_kernel: flash or materialised.
        expert_imbalance: tokens of the fullest expert rank over the mean.
        tokens: of the whole run, for days and cost.
        price: of one device and hour.
        calibration: of predictions: a record, or a file that `meshwright calibrate` wrote; the library's by default.

    Returns:
        A plan set of one plan and no search, whether the plan fits or not.

    Raises:
        InputError: the plan is not legal, or anything is malformed or contradictory, all problems together.
        UnsupportedError: an unknown name, or a plan nobody prices.
    """
    settings: dict[str, object] = {
        "seq_len": seq_len,
        "global_batch": global_batch,
        "dtype": dtype,
        "optimizer": optimizer,
        "attention_kernel": attention_kernel,
        "expert_imbalance": expert_imbalance,
        "tokens": tokens,
    }
    if workload is not None:
        settings |= {
            "seq_len": workload.seq_len,
            "global_batch": workload.global_batch,
            "dtype": workload.precision,
            "optimizer": workload.optimizer,
            "attention_kernel": workload.attention_kernel,
            "expert_imbalance": workload.expert_imbalance,
            "tokens": workload.tokens,
        }
        calibration = calibration if calibration is not None else workload.calibration
    question = plan_question(
        model,
        plan,
        cluster=cluster,
        gpus=gpus,
        tokens_per_step=tokens_per_step,
        price=price,
        calibration=calibration,
        like=workload,
        **settings,  # type: ignore[arg-type]
    )
    if question.plan is None:
        raise InputError(question.problems, code="MW231")
    return priced_set(question.job, question.inputs.assumptions, question.warnings)


def priced_set(job: Job, assumptions: tuple[Assumption, ...] = (), warnings: tuple[str, ...] = ()) -> PlanSet:
    """A job as an answer of one plan."""
    priced = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    only = ranked(job, priced)
    run = whole_run(job, priced)
    warnings = (*warnings, *inexact(line.schedule.name for line in job.plan.pipelines if len(line.workers) > 1))
    if job.plan.devices < job.cluster.devices:
        warnings = (*warnings, reason_text(idle_reason(job.plan.devices, job.cluster.devices, "plan")))
    return PlanSet(
        model=job.model,
        cluster=job.cluster,
        workload=job.workload,
        assumptions=assumptions,
        verdict=verdict_of(
            sentence(job, priced) + (f" {run_sentence(run)}." if run else ""),
            (Reason.of("identity", text=only.identities()[0]), *plan_reasons(job, priced, None)),
        ),
        plans=(only,),
        warnings=(*warnings, *only.rank_map().warnings),
        run=run,
    )
