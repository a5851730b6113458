"""One rank of a job by the framework's own code, and what our operator list says of the same rank."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.requests.xray import XrayRequest
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StageEstimate
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.write import megatron_script
from meshwright.launch_files.format import format_of
from meshwright.launch_files.script import script_question
from meshwright.launch_files.source import outside_of
from meshwright.library.models import config_of
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.plan_source import plan_question
from meshwright.records import plain
from meshwright.report.words import check as check_words
from meshwright.report.words import xray as words
from meshwright.report.words.titles import title_of
from meshwright.specs.job import Job
from meshwright.specs.row_of import homogeneous
from meshwright.targets import TARGETS
from meshwright.xray.compare import CollectiveRow, MemoryRow, ProductRow, collective_rows, memory_rows, product_rows
from meshwright.xray.ours import FORMS, OperatorForm, rank_work
from meshwright.xray.start import traced
from meshwright.xray.traced import Traced


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Xray(Answer):
    """What one rank of a framework does, and what our operator list says of it."""

    title: str
    stage: int
    traced: Traced
    products: tuple[ProductRow, ...]
    collectives: tuple[CollectiveRow, ...]
    memory: tuple[MemoryRow, ...]
    launch: LaunchFile | None = None
    """What was read, where a script says the plan."""
    warnings: tuple[str, ...] = ()

    @property
    def differences(self) -> tuple[str, ...]:
        """What the framework does that our list does not say, or says otherwise, in words."""
        return words.differences(self.products, self.collectives, self.memory)

    @property
    def text(self) -> str:
        """The verdict in a sentence."""
        return words.xray_sentence(self.title, self.stage, self.traced, self.products, self.collectives, self.memory)

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.xray/1`."""
        seen = self.traced
        return {
            "schema": "meshwright.xray/1",
            "title": self.title,
            "text": self.text,
            "read": check_words.as_read(self.launch),
            "stage": self.stage,
            **{
                name: plain(getattr(seen, name))
                for name in (
                    *("framework", "version", "rank", "world", "micro_batches", "of_micro_batches", "parameters"),
                    *("substitutes", "notes", "moments", "operators", "seconds"),
                )
            },
            "products": plain(self.products),
            "collectives": [row.to_dict() | {"same": row.same} for row in self.collectives],
            "memory": plain(self.memory),
            "differences": list(self.differences),
            "warnings": list(self.warnings),
        }


def xray(request: XrayRequest) -> Xray:
    """Run one rank of a job by the framework's own code, and compare.

    Returns:
        Operators, collectives and live bytes of the rank, ours beside them.

    Raises:
        InputError: malformed input, or a plan that is not legal.
        UnsupportedError: the framework is not installed, or does not run the job here.
    """
    question, launch, framework = _question(request)
    job = question.job
    if len(job.plan.pipelines) > 1 or homogeneous(job.plan)[0] is None:
        why = "frameworks give all ranks of a job the same degrees"
        raise UnsupportedError(Problem(what="the plan's stages differ", why=why, fix="name a plan of one row"))
    stage, rank = _place(request, job)
    estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    asked = {"framework": framework, "rank": rank, "world": job.plan.devices, "micro_batches": request.micro_batches}
    words = _said(framework, job, question, launch, request.job.model)
    seen = traced({**asked, **words}, request.python)
    form = FORMS.get(framework, OperatorForm())
    form = replace(form, fused_loss="--cross-entropy-loss-fusion" in words.get("options", {}))
    work = rank_work(job, stage, seen.micro_batches, form)
    hardware = hardware_of(job.cluster.groups[0], job.workload)
    return Xray(
        title=title_of(job, question.row),
        stage=stage,
        traced=seen,
        products=product_rows(seen, work, hardware, job.workload.precision, in_pieces=form.in_pieces),
        collectives=collective_rows(seen, work),
        memory=memory_rows(seen, _stage_of(estimate.stages, stage), hardware),
        launch=launch,
        warnings=question.warnings,
    )


def _stage_of(stages: tuple[StageEstimate, ...], number: int) -> StageEstimate:
    return next(stage for stage in stages if stage.stage == number)


def _question(request: XrayRequest) -> tuple[PlanQuestion, LaunchFile | None, str]:
    """The plan, what was read of a script, and whose code runs."""
    if request.source is None:
        framework = request.framework or "megatron"
        asked = request.job
        if asked.software is None and framework in TARGETS:
            asked = replace(asked, software=TARGETS[framework].software)
        return plan_question(request.plan, asked), None, framework
    outside = outside_of(request.script)
    target = format_of(request.source, outside)
    question, violations, launch, _ = script_question(request.source, target, request.job, outside)
    if question is None or launch.questions:
        raise InputError(launch.questions, code="MW231")
    if violations:
        raise InputError([Problem(what=one.what, why=one.why, fix=one.fix, field=one.field) for one in violations])
    return question, launch, request.framework or target


def _place(request: XrayRequest, job: Job) -> tuple[int, int]:
    """The stage and the rank: stages lie outermost, as both frameworks order them."""
    stages = len(job.plan.pipelines[0].workers)
    each = job.plan.devices // stages
    if request.rank is not None:
        if request.rank >= job.plan.devices:
            why = f"the job has ranks 0 to {job.plan.devices - 1}"
            raise InputError(Problem(what=f"rank {request.rank} is asked for", why=why, fix="name one", field="rank"))
        return request.rank // each, request.rank
    stage = request.stage or 0
    if stage >= stages:
        why = f"the plan has stages 0 to {stages - 1}"
        raise InputError(Problem(what=f"stage {stage} is asked for", why=why, fix="name one of them", field="stage"))
    return stage, stage * each


def _said(framework: str, job: Job, question: PlanQuestion, launch: LaunchFile | None, model: object) -> dict[str, Any]:
    """The job in the framework's own words: the script's options as they stand, else those we would export."""
    if framework == "megatron":
        spread = launch is not None and any(said.option == "--moe-tp-extend-ep" for said in launch.unpriced)
        if launch is not None and not spread:  # Megatron-Core has no such option: its own say the same
            options = {said.option: said.value for said in (*launch.unpriced, *launch.said)}
        else:
            options = dict(megatron_script(job, question.row).arguments)
        return {"options": options, "vocab": job.model.vocab}
    if framework == "torchtitan":
        estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
        return {"files": dict(TARGETS["torchtitan"].files(job, estimate).files)}
    return _of_class(job, model)


def _of_class(job: Job, model: object) -> dict[str, Any]:
    """A model's class in Transformers, whole, with the layers recomputed that the plan says."""
    if job.plan.devices > 1:
        why = "the class in Transformers is run whole"
        raise UnsupportedError(
            Problem(what=f"the plan has {job.plan.devices} ranks", why=why, fix="use --plan dp1.mbs1 with one GPU")
        )
    config = config_of(model) if isinstance(model, (str, os.PathLike)) else None
    if config is None:
        why = "the class in Transformers is made of it, and this model has none"
        raise UnsupportedError(
            Problem(what="no config.json", why=why, fix="name the model's config.json", field="model")
        )
    recompute = {strategy.recompute.kind for strategy in job.plan.strategies}
    if not recompute <= {"none", "full"}:
        why = "classes in Transformers recompute whole layers or none"
        raise UnsupportedError(
            Problem(what=f"recompute is {' and '.join(sorted(recompute))}", why=why, fix="use rc-full")
        )
    return {
        "config": config,
        "sequence": job.workload.seq_len,
        "micro_batch": job.plan.pipelines[0].micro_batch,
        "recompute": recompute == {"full"},
    }
