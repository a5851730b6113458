"""Is this plan legal, does it fit, is there a better one, and what is the smallest change that mends it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.app.axes import target_rule
from meshwright.app.changes import Change, describe, distance, repairs
from meshwright.app.finding import find_plans, restricted
from meshwright.app.job_inputs import Count, JobInputs, job_inputs
from meshwright.app.plan_source import PlanLike, PlanQuestion, plan_question, with_row
from meshwright.app.post_mortem import REMEDIES, PostMortem, post_mortem
from meshwright.app.pricing import Pricer
from meshwright.app.title import title
from meshwright.app.verdict import TIE, against, memory, percent, sentence
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, ViolationError, unknown_name
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.formats.files import read_text
from meshwright.formats.megatron import model_facts, read_flags
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import plan_of
from meshwright.units import gib, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_MENDS = 5
MOST_PAIRS = 40
"""Single changes that are changed once more where no single one mends the plan."""
SOURCES = ("megatron",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that must not stay so."""

    code: str
    """`LEGAL`, `MEM_STAGE`, `MODEL` or `OPTIONS`."""
    what: str
    why: str = ""
    fix: str = ""
    field: str = ""
    stage: int | None = None
    need_bytes: float | None = None
    have_bytes: float | None = None

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "code": self.code,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "field": self.field,
            "stage": self.stage,
            "need_bytes": self.need_bytes,
            "have_bytes": self.have_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change that makes the plan legal and fit, priced."""

    change: str
    name: str
    changes: int
    """Settings that differ."""
    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    fits: str
    changes_training: bool

    def line(self) -> str:
        """One line for people."""
        trained = "; trains differently" if self.changes_training else ""
        tight = " (tight)" if self.fits == "tight" else ""
        peak = memory(self.peak_memory_bytes, self.capacity_bytes)
        return f"{self.change}: {seconds(self.step_time_s)}, {peak}{tight} ({self.name}){trained}"

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "change": self.change,
            "name": self.name,
            "changes": self.changes,
            "step_time_s": self.step_time_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "changes_training": self.changes_training,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """The best plan of the same question, where it beats the one checked."""

    name: str
    step_time_s: float
    gain: float
    """Relative time saved."""
    because: str

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {"name": self.name, "step_time_s": self.step_time_s, "gain": self.gain, "because": self.because}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport:
    """What is wrong with a plan and what would mend it."""

    name: str | None
    title: str
    text: str
    violations: tuple[Violation, ...]
    estimate: StepEstimate | None
    """None where the plan is not legal."""
    better: Better | None
    mends: tuple[Repair, ...]
    """The smallest changes first, quickest first among equals."""
    warnings: tuple[str, ...]
    inputs: JobInputs
    post_mortem: PostMortem | None = None
    """Of a run of this plan that ran out of memory."""

    @property
    def legal(self) -> bool:
        """Whether all degrees go together with model, devices and batch."""
        return self.estimate is not None and not any(v.code == "LEGAL" for v in self.violations)

    @property
    def ok(self) -> bool:
        """No violations."""
        return not self.violations

    @property
    def exit_code(self) -> int:
        """0, or 5 where there are violations."""
        return 5 if self.violations else 0

    def raise_violations(self) -> None:
        """For callers that want an exception.

        Raises:
            ViolationError: if there are any.
        """
        if self.violations:
            raise ViolationError([Problem(what=v.what, why=v.why, fix=v.fix, field=v.field) for v in self.violations])

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.check/1`."""
        found = self.inputs
        return {
            "schema": "meshwright.check/1",
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "ok": self.ok,
            "exit_code": self.exit_code,
            "legal": self.legal,
            "fits": self.estimate.fits if self.estimate else None,
            "dominated_by": self.better.to_dict() if self.better else None,
            "violations": [violation.to_dict() for violation in self.violations],
            "mends": [mend.to_dict() | {"text": mend.line()} for mend in self.mends],
            "warnings": list(self.warnings),
            "post_mortem": self.post_mortem.to_dict() if self.post_mortem else None,
            "estimate": self.estimate.to_dict() if self.estimate else None,
            "inputs": {
                "model": found.model.describe(),
                "cluster": found.cluster.describe(),
                "workload": found.workload.describe(),
                "assumptions": [{"name": a.name, "value": a.value, "basis": a.basis} for a in found.assumptions],
            },
        }

    def __repr__(self) -> str:
        return f"CheckReport({self.text})"

    def __rich__(self) -> RenderableType:
        from meshwright.report.check_report import render_check

        return render_check(self.to_dict())

    def _repr_html_(self) -> str:
        from meshwright.report.html import renderable_html

        return renderable_html(self.__rich__())


def check(
    model: ModelSpec | str | os.PathLike[str] | None,
    plan: PlanLike | ExecutionPlan | PlanRow | None = None,
    cluster: ClusterSpec | str | os.PathLike[str] | None = None,
    *,
    gpus: str | None = None,
    source: str | os.PathLike[str] | None = None,
    source_format: str = "megatron",
    seq_len: Count | None = None,
    global_batch: Count | None = None,
    tokens_per_step: Count | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    attention_kernel: str | None = None,
    expert_imbalance: float | None = None,
    tokens: Count | None = None,
    price: float | None = None,
    search: bool = True,
    oom_log: str | os.PathLike[str] | None = None,
) -> CheckReport:
    """Check a plan or an existing launch configuration.

    Args:
        model: library name, path or spec; None where a plan file carries it.
        plan: the one-line form, a row, a plan file, a job or an execution plan.
        cluster: `64xH100`, the path of a cluster file, or a spec.
        gpus: `64xH100`, instead of `cluster`.
        source: a launch script instead of a plan: its path, or its text where that has several lines.
        source_format: the framework that starts it: megatron.
        seq_len, global_batch, tokens_per_step, dtype, optimizer, attention_kernel, expert_imbalance, tokens, price: as
            `estimate` takes them; a launch script's own by default.
        search: also look for a better plan in the default space.
        oom_log: of a run of this plan that ran out of memory: says which part of the memory was predicted low, and
            mends only with what that run's numbers leave room for.

    Returns:
        Violations, warnings, the mends and a better plan.

    Raises:
        InputError: malformed input; a plan that is only illegal or too large is an answer, not an error.
        UnsupportedError: an unknown name, or a plan nobody prices.
    """
    given: dict[str, Any] = {
        "seq_len": seq_len,
        "dtype": dtype,
        "optimizer": optimizer,
        "attention_kernel": attention_kernel,
        "expert_imbalance": expert_imbalance,
        "tokens": tokens,
    }
    if (plan is None) == (source is None):
        what = "neither a plan nor a launch script is given" if plan is None else "a plan and a launch script are given"
        raise InputError(Problem(what=what, why="one of them is checked", fix="use --plan or --from", field="plan"))
    if source is not None:
        given |= {"global_batch": global_batch, "tokens_per_step": tokens_per_step}
        given |= {"price": price, "cluster": cluster, "gpus": gpus}
        question, violations = _from_script(model, source, source_format, given)
    else:
        assert plan is not None
        question = plan_question(
            model,
            plan,
            cluster=cluster,
            gpus=gpus,
            global_batch=global_batch,
            tokens_per_step=tokens_per_step,
            price=price,
            **given,
        )
        violations = []
    target = source_format if source is not None else None
    return _report(question, violations, search=search, target=target, oom_log=oom_log)


def _report(
    question: PlanQuestion,
    violations: list[Violation],
    *,
    search: bool,
    target: str | None,
    oom_log: str | os.PathLike[str] | None,
) -> CheckReport:
    inputs, row = question.inputs, question.row
    warnings = list(question.warnings)
    violations = [*violations, *(_illegal(problem) for problem in question.problems)]
    estimate = None
    if question.plan is not None:
        estimate = estimate_plan(question.plan, inputs.model, inputs.cluster, inputs.workload)
        violations += _too_large(estimate)
        if estimate.fits == "tight":
            full = estimate.fullest
            peak = memory(full.peak_memory_bytes, full.capacity_bytes)
            warnings.append(f"tight: stage {full.stage} needs {peak}; under 8% are left for what is not modelled")
    died = post_mortem(oom_log, question.job, estimate, row) if oom_log is not None and estimate is not None else None
    if died is not None:
        violations.append(_ran_out(died))
        search = False
    better = _better(question, estimate, warnings, target) if search and inputs.cluster.homogeneous else None
    bad = estimate is None or estimate.fits == "no" or died is not None
    mends = _mends(row, question, died.short_bytes if died else 0.0) if bad and row is not None else ()
    name = row.format() if row is not None else None
    shown = title(question.plan, inputs.model, name) if question.plan else name or "the launch script"
    return CheckReport(
        name=name,
        title=shown,
        text=_text(shown, question, estimate, violations, better),
        violations=tuple(violations),
        estimate=estimate,
        better=better,
        mends=mends,
        warnings=tuple(warnings),
        inputs=inputs,
        post_mortem=died,
    )


def _ran_out(died: PostMortem) -> Violation:
    low = died.low
    return Violation(
        code="MEM_STAGE",
        what=next(died.lines()),
        why=f"{low.name} took {gib(low.short_bytes)} more than predicted" if low else "",
        fix=REMEDIES[low.name] if low else "",
        field="memory",
        stage=died.stage.stage,
        need_bytes=died.stage.peak_memory_bytes + died.short_bytes,
        have_bytes=died.message.capacity_bytes or died.stage.capacity_bytes,
    )


def _illegal(problem: Problem) -> Violation:
    return Violation(code="LEGAL", what=problem.what, why=problem.why, fix=problem.fix, field=problem.field)


def _too_large(estimate: StepEstimate) -> Iterator[Violation]:
    over = [stage for stage in estimate.stages if stage.peak_memory_bytes > stage.capacity_bytes]
    for stage in over[:8]:
        kinds = sorted(stage.memory_bytes, key=lambda kind: -kind[1])[:3]
        largest = ", ".join(f"{kind.replace('_', ' ')} {gib(size)}" for kind, size in kinds)
        peak = memory(stage.peak_memory_bytes, stage.capacity_bytes)
        yield Violation(
            code="MEM_STAGE",
            what=f"stage {stage.stage} needs {peak}",
            why=f"at its peak ({stage.peak_moment}): {largest}",
            field="memory",
            stage=stage.stage,
            need_bytes=stage.peak_memory_bytes,
            have_bytes=stage.capacity_bytes,
        )


def _text(
    shown: str,
    question: PlanQuestion,
    estimate: StepEstimate | None,
    violations: list[Violation],
    better: Better | None,
) -> str:
    if estimate is None:
        reason = f"{len(violations)} violation{'s' if len(violations) != 1 else ''}"
        return f"{shown} is not legal for {question.inputs.model.name} on {question.inputs.cluster.name}: {reason}."
    text = sentence(question.job, estimate)
    if better is not None and better.gain > 0:
        text += f" {better.name} is {percent(better.gain)} faster."
    return text


def _better(
    question: PlanQuestion, estimate: StepEstimate | None, warnings: list[str], target: str | None
) -> Better | None:
    """The best plan of the default space that the target can run, if it beats this one by more than a tie."""
    inputs = question.inputs
    refuses = target_rule(target)

    def space_for(part: ClusterSpec) -> Space:
        return restricted(Space(), inputs.model, part, inputs.workload, refuses) if refuses else Space()

    try:
        found = find_plans(inputs.model, inputs.cluster, inputs.workload, space_for, top=1, refuses=refuses)
    except MeshwrightError as error:
        warnings.append(f"no other plan was looked for: {error.problems[0].what}")
        return None
    if not found.result.plans:
        return None
    best = found.result.plans[0]
    job = found.job(best, inputs.model, inputs.workload)
    name = title(best.plan, inputs.model, job.name)
    if estimate is None or estimate.fits == "no":
        return Better(name=name, step_time_s=best.estimate.step_time_s, gain=0.0, because="the best plan that fits")
    gain = 1.0 - best.estimate.step_time_s / estimate.step_time_s
    if gain < TIE:
        return None
    because = f"this one is {against(best.estimate, estimate)}"
    return Better(name=name, step_time_s=best.estimate.step_time_s, gain=gain, because=because)


def _mends(row: PlanRow, question: PlanQuestion, short_bytes: float) -> tuple[Repair, ...]:
    """One change that makes it legal and fit, else two; `short_bytes` more than predicted must fit too."""
    inputs = question.inputs
    pricer = Pricer(inputs.model, inputs.cluster, inputs.workload, inputs.cluster.devices)
    singles = list(repairs(row, inputs.model, pricer.devices))
    found = _good(row, singles, pricer, short_bytes)
    if not found:
        pairs = (
            again for change in singles[:MOST_PAIRS] for again in repairs(change.row, inputs.model, pricer.devices)
        )
        found = _good(row, pairs, pricer, short_bytes)
    found.sort(key=lambda mend: (mend.changes_training, mend.fits == "tight", mend.step_time_s))
    return tuple(found[:MOST_MENDS])


def _good(row: PlanRow, changes: Iterable[Change], pricer: Pricer, short_bytes: float) -> list[Repair]:
    found: dict[PlanRow, Repair] = {}
    for change in changes:
        priced = pricer.price(change.row)
        if not priced.fits or priced.estimate is None or change.row in found:
            continue
        full = priced.estimate.fullest
        if full.peak_memory_bytes + short_bytes > full.capacity_bytes:
            continue
        found[change.row] = Repair(
            change=describe(row, change.row),
            name=change.row.format(),
            changes=distance(row, change.row),
            step_time_s=priced.estimate.step_time_s,
            peak_memory_bytes=full.peak_memory_bytes,
            capacity_bytes=full.capacity_bytes,
            fits=priced.estimate.fits,
            changes_training=change.changes_training or change.row.gbs != row.gbs,
        )
    return list(found.values())


def _from_script(
    model: ModelSpec | str | os.PathLike[str] | None,
    source: str | os.PathLike[str],
    source_format: str,
    given: dict[str, Any],
) -> tuple[PlanQuestion, list[Violation]]:
    """A launch script as a question, with what is wrong in its options."""
    if source_format not in SOURCES:
        raise UnsupportedError(unknown_name("source", str(source_format)[:60], SOURCES), code="MW406")
    if model is None:
        why = "a launch script gives shapes, not all of a model"
        raise InputError(Problem(what="no model is given", why=why, fix="name the model it trains", field="model"))
    text = str(source) if isinstance(source, str) and "\n" in source else read_text(os.fspath(source), "launch script")
    where = job_inputs(model, cluster=given["cluster"], gpus=given["gpus"], price=given["price"])
    flags = read_flags(text, devices=where.cluster.devices)
    if flags.row is None and not flags.model and not flags.workload and flags.problems:
        raise InputError(flags.problems, code="MW231")
    own = {key: flags.workload.get(key) for key in ("seq_len", "optimizer", "attention_kernel")}
    own["dtype"] = flags.workload.get("precision")
    settings = {key: given.get(key) if given.get(key) is not None else own.get(key) for key in own}
    batch = {key: given[key] for key in ("global_batch", "tokens_per_step") if given[key] is not None}
    if not batch and "global_batch" in flags.workload:
        batch = {"global_batch": flags.workload["global_batch"]}
    rest = {key: given[key] for key in ("expert_imbalance", "tokens") if given[key] is not None}
    inputs = job_inputs(
        where.model,
        cluster=where.cluster,
        **batch,
        **{key: value for key, value in settings.items() if value is not None},
        **rest,
    )
    violations = [Violation(code="OPTIONS", what=p.what, why=p.why, fix=p.fix, field=p.field) for p in flags.problems]
    violations += _shape_differs(inputs.model, flags.model)
    warnings = tuple(f"the script does not say {name}" for name in flags.unresolved[:8])
    if flags.row is None:
        return PlanQuestion(inputs=inputs, row=None, plan=None, warnings=warnings), violations
    asked = inputs.workload.global_batch
    if inputs.batch_given and asked != flags.row.gbs:
        what = f"the script runs {flags.row.gbs} sequences per step, {asked} are asked for"
        violations.append(Violation(code="OPTIONS", what=what, why="a step has one batch", field="--global-batch-size"))
    question = with_row(flags.row, inputs, warnings)
    uneven = question.plan is not None and flags.layout is not None and sum(flags.layout) == inputs.model.num_layers
    if uneven and flags.layout is not None:
        question = replace(question, plan=plan_of(flags.row, flags.layout))
    return question, violations


def _shape_differs(model: ModelSpec, said: dict[str, Any]) -> Iterator[Violation]:
    """Options that describe another model than the one named."""
    facts = model_facts(model)
    for name, value in said.items():
        if name in facts and facts[name] != value and value is not None:
            yield Violation(
                code="MODEL",
                what=f"the script's {name.replace('_', ' ')} is {value}",
                why=f"{model.name} has {facts[name]}",
                fix="name the model that the script trains, or mend the option",
                field=name,
            )
