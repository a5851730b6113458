"""Is this plan legal, does it fit, is there a better one, and what is the smallest change that repairs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.app.answer import Answer, model_entry
from meshwright.app.check_better import Better, better_plan
from meshwright.app.requests.check import CheckRequest
from meshwright.errors import InputError, Problem, ViolationError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.fields.field import values_of
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.writing import write_file
from meshwright.launch_files.fixes.base import ScriptFix
from meshwright.launch_files.fixes.configs import config_fix
from meshwright.launch_files.fixes.named import renamed_file
from meshwright.launch_files.fixes.script import of_mindspeed, script_fix
from meshwright.launch_files.format import format_of
from meshwright.launch_files.fused_loss import at_once, switch_of
from meshwright.launch_files.script import script_question
from meshwright.launch_files.source import LaunchSource, outside_of
from meshwright.launch_files.violation import Violation, too_large
from meshwright.launch_files.violation_place import at_their_lines
from meshwright.library.calibration import calibration
from meshwright.planning.axes import target_rule
from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.plan_source import measured_plan, question_beside_trainers
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.repair.of_plan import Repair, repairs_of_plan
from meshwright.planning.repair.of_target import JobRule, as_said
from meshwright.planning.repair.post_mortem import PostMortem, post_mortem
from meshwright.planning.whole_run import WholeRun, whole_run
from meshwright.records import plain
from meshwright.report.words import check as words
from meshwright.report.words.measured import folder_notes
from meshwright.report.words.post_mortem import post_mortem_lines, ran_out
from meshwright.report.words.titles import planned_title, title_of
from meshwright.report.words.verdict import plan_sentence
from meshwright.schedules import known_names
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.targets.contract import ReadTarget


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport(Answer):
    """What is wrong with a plan and what would repair it."""

    name: str | None
    title: str
    text: str
    violations: tuple[Violation, ...]
    estimate: StepPrice | None
    """None where the plan is not legal."""
    better: Better | None
    repairs: tuple[Repair, ...]
    """The smallest changes first, quickest first among equals."""
    warnings: tuple[str, ...]
    inputs: JobInputs | MeasuredJob | None
    """None where the launch file leaves model or cluster open, and they are asked for."""
    launch: LaunchFile | None = None
    """What was read, where a launch script is checked."""
    fix: ScriptFix | None = None
    """The script that was checked, with the better plan or the smallest repair in it."""
    post_mortem: PostMortem | None = None
    """Why a run of this plan ran out of memory; None unless a log was given."""
    run: WholeRun | None = None
    """The whole run under this plan; None where its tokens are not stated."""

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
        """0, 5 where there are violations, 2 where the user has to say something first."""
        return 2 if any(v.code == "ASK" for v in self.violations) else 5 if self.violations else 0

    def raise_violations(self) -> None:
        """Raise the violations, for callers that want an exception.

        Raises:
            ViolationError: if there are any.
        """
        if self.violations:
            raise ViolationError([Problem(what=v.what, why=v.why, fix=v.fix, field=v.field) for v in self.violations])

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration(self.inputs.workload.calibration if isinstance(self.inputs, JobInputs) else None)

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.check/1`."""
        died = self.post_mortem
        repairs = [repair.to_dict() | {"text": words.repair_line(repair)} for repair in self.repairs]
        return {
            "schema": "meshwright.check/1",
            **{name: getattr(self, name) for name in ("name", "title", "text", "ok", "exit_code", "legal")},
            "read": words.as_read(self.launch),
            "fits": self.estimate.fits if self.estimate else None,
            "dominated_by": plain(self.better),
            "violations": plain(self.violations),
            "fix": plain(self.fix),
            "repairs": repairs,
            "mends": repairs,  # what version 1 called them first; it keeps its keys
            "warnings": list(self.warnings),
            "post_mortem": died.to_dict() | {"text": list(post_mortem_lines(died))} if died else None,
            "estimate": plain(self.estimate),
            "run": plain(self.run),
            "inputs": None if self.inputs is None else _described(self.inputs),
        }


def check(request: CheckRequest) -> CheckReport:
    """Check a plan or an existing launch configuration.

    Returns:
        Violations, warnings, repairs and a better plan.

    Raises:
        InputError: malformed input; a plan that is only illegal or too large is an answer, not an error.
        UnsupportedError: an unknown name, or a plan that no model prices.
    """
    if request.source is not None:
        return _of_script(request, request.source)
    measured = measured_plan(request.plan, {**values_of(request.job), "oom_log": request.oom_log})
    if measured is not None:
        return _measured_report(*measured)
    question = question_beside_trainers(request.plan, request.job)
    rule = target_rule(question.trainer)
    return _report(question, [], search=request.search, rule=rule, oom_log=request.oom_log)


def _of_script(request: CheckRequest, file: str | os.PathLike[str]) -> CheckReport:
    """A launch configuration, with its violations where the file says what they are about, and the edits that help."""
    outside = outside_of(request.script, request.over)
    framework = request.source_format or format_of(file, outside)
    question, violations, launch, source = script_question(file, framework, request.job, outside)
    if question is None:
        return _asking(at_their_lines(violations, source, launch), launch)
    editable = source.editable
    report = _report(
        question,
        violations,
        search=request.search and not launch.questions,
        rule=_rule(source, launch),
        oom_log=request.oom_log,
        sayable=_sayable(editable, launch),
        unnamed="the launch script",
    )
    if launch.questions:
        renamed = renamed_file(source, launch)
        if request.fix and request.output is not None and renamed is not None:
            _write(renamed, Path(request.output))
        asked = words.asks(launch.questions)
        return replace(report, launch=launch, title="the launch script", text=asked, fix=renamed)
    own = question.job if question.plan is not None else None
    fix = _fix(editable, launch, report, own) if editable is not None else None
    fix = fix if fix is None or fix.changes or fix.why_not else None
    if request.fix and request.output is not None and fix is not None and fix.text:
        _write(fix, Path(request.output))
    return replace(report, violations=at_their_lines(report.violations, source, launch), launch=launch, fix=fix)


def _rule(source: LaunchSource, launch: LaunchFile) -> JobRule | None:
    """What the target of a launch configuration refuses, with the logits that its file makes."""
    rule = target_rule(source.target.searched)
    if source.target.name == "megatron" and of_mindspeed(launch):
        from meshwright.launch_files.fixes.mindspeed import refused  # few scripts start it

        rule = partial(refused, rule, launch)
    in_pieces = switch_of(launch) is not None or launch.workload.get("loss_tiles", 1) > 1
    return partial(_of_whole_logits, rule) if rule is not None and in_pieces else rule


def _sayable(editable: LaunchSource | None, launch: LaunchFile) -> Callable[[PlanRow], bool] | None:
    """Whether a trainer's file, or a script of a fork, says a plan; None of those that say all that the target runs."""
    if editable is not None and isinstance(editable.target, ReadTarget):
        from meshwright.launch_files.fixes import trainer  # few files are theirs

        return partial(trainer.says, editable, launch)
    if editable is not None and of_mindspeed(launch):
        from meshwright.launch_files.fixes import mindspeed  # few scripts start it

        return partial(mindspeed.says, launch)
    return None


def _asking(violations: tuple[Violation, ...], launch: LaunchFile) -> CheckReport:
    """A file that leaves model or cluster open: all that is asked for at once, and what was read."""
    return CheckReport(
        name=None,
        title="the launch script",
        text=words.asks(launch.questions),
        violations=violations,
        estimate=None,
        better=None,
        repairs=(),
        warnings=launch.notes,
        inputs=None,
        launch=launch,
    )


def _measured_report(job: MeasuredJob, warnings: tuple[str, ...]) -> CheckReport:
    """A plan of measured layers: its file is legal by being read, so that memory is what can be wrong."""
    estimate = price_job(job)
    notes = (*warnings, *folder_notes(job), "no other plan was searched: use `plan --profiles`", *words.tight(estimate))
    return CheckReport(
        name=None,
        title=planned_title(job),
        text=plan_sentence(job, estimate),
        violations=tuple(too_large(estimate)),
        estimate=estimate,
        better=None,
        repairs=(),
        warnings=notes,
        inputs=job,
    )


def _report(
    question: PlanQuestion,
    violations: list[Violation],
    *,
    search: bool,
    rule: JobRule | None,
    oom_log: str | os.PathLike[str] | None,
    sayable: Callable[[PlanRow], bool] | None = None,
    unnamed: str = "the plan",
) -> CheckReport:
    inputs, row = question.inputs, question.row
    estimate, wrong = _priced(question)
    violations = [*violations, *wrong]
    warnings = [*question.warnings, *(words.tight(estimate) if estimate is not None else ())]
    died = post_mortem(oom_log, question.job, estimate, row) if oom_log is not None and estimate is not None else None
    better = None
    if died is not None:
        violations.append(ran_out(died))
    elif search and inputs.cluster.homogeneous:
        better = better_plan(question, estimate, warnings, rule, sayable)
    elif search:
        warnings.append("no other plan was searched: use `plan` for clusters of several groups")
    spelled = partial(as_said, inputs=inputs, rule=rule, sayable=sayable)
    repairs = _repairs(row, inputs, estimate, died, spelled)
    faster = None if better is None else (better.name, better.gain)
    name = row.format() if row is not None else None
    shown = title_of(question.job, row) if question.plan else name or unnamed
    run = None if estimate is None or estimate.fits == "no" else whole_run(question.job, estimate)
    return CheckReport(
        name=name,
        title=shown,
        text=words.check_sentence(shown, question, estimate, len(violations), faster, run),
        violations=tuple(violations),
        estimate=estimate,
        better=better,
        repairs=repairs,
        warnings=tuple(warnings),
        inputs=inputs,
        post_mortem=died,
        run=run,
    )


def _repairs(
    row: PlanRow | None,
    inputs: JobInputs,
    estimate: StepEstimate | None,
    died: PostMortem | None,
    spelled: Callable[[PlanRow], PlanRow | None],
) -> tuple[Repair, ...]:
    """What repairs a plan of one row that is illegal, too large, or ran out of memory."""
    bad = estimate is None or estimate.fits == "no" or died is not None
    short = died.short_bytes if died else 0.0
    return repairs_of_plan(row, inputs, short, spelled) if bad and row is not None else ()


def _priced(question: PlanQuestion) -> tuple[StepEstimate | None, list[Violation]]:
    """The estimate of a plan, None where it is none, and what is illegal or too large of it."""
    inputs, plan = question.inputs, question.plan
    wrong = [Violation.of("LEGAL", problem) for problem in question.problems]
    if plan is None:
        return None, wrong
    estimate = estimate_plan(plan, inputs.model, inputs.cluster, inputs.workload)
    return estimate, [*wrong, *too_large(estimate)]


def _of_whole_logits(rule: JobRule, job: Job) -> tuple[Problem, ...]:
    """What a target refuses of a job whose logits the file's own switch makes in pieces."""
    return rule(at_once(job))


def _fix(source: LaunchSource, launch: LaunchFile, report: CheckReport, own: Job | None) -> ScriptFix | None:
    """The better plan in the user's script; where there is none, the quickest repair, else its own plan said rightly.

    Args:
        source: the user's files.
        launch: what was read of them.
        report: the report on them.
        own: the plan that they say; None where they say none.
    """
    inputs = report.inputs
    assert isinstance(inputs, JobInputs)
    job = report.better.job if report.better is not None else None
    if job is None and report.repairs:
        given = {"devices": inputs.cluster.devices, "global_batch": inputs.workload.global_batch}
        row = parse_row(report.repairs[0].name, **given, schedules=known_names())
        plan = expand(row, inputs.model, inputs.workload.seq_len)
        job = Job(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload.with_batch(row.gbs), plan=plan)
    if job is None and any(violation.code in ("OPTIONS", "MODEL") for violation in report.violations):
        job = own  # the plan is right, and what is around it is not
    if job is None:
        return None
    wanted = row_of(job.plan, job.model)
    if wanted is None:
        return None
    if isinstance(source.target, ReadTarget):
        from meshwright.launch_files.fixes.trainer import trainer_fix  # few files are theirs

        return trainer_fix(source, launch, wanted)
    job = at_once(job) if switch_of(launch) is not None else job
    estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    if source.by_options:
        return script_fix(source, launch, job, wanted, estimate)
    return config_fix(source, launch, job, wanted.format(), estimate)


def _write(fix: ScriptFix, path: Path) -> None:
    """The edited file, and those beside it that changed with it.

    Raises:
        InputError: one of those is in the folder already.
    """
    there = [name for name, _ in fix.beside if (path.parent / name).exists()]
    if there:
        what, why = f"{there[0]} is in the folder of {path}", "it changes with the plan, and would be overwritten"
        raise InputError(Problem(what=what, why=why, fix="name a file in another folder with -o", field="output"))
    for name, text in ((path.name, fix.text), *fix.beside):
        write_file(path.parent / name, text)


def _described(inputs: JobInputs | MeasuredJob) -> dict[str, object]:
    """The question as data."""
    if isinstance(inputs, MeasuredJob):
        return {
            "model": inputs.profile.describe(),
            "cluster": inputs.cluster.describe(),
            "workload": {"global_batch": inputs.global_batch, "dtype": "fp32", "sequence": "as profiled"},
            "assumptions": [],
        }
    return {
        "model": model_entry(inputs.model),
        "cluster": inputs.cluster.describe(),
        "workload": inputs.workload.describe(),
        "assumptions": plain(inputs.assumptions),
    }
