"""What may be asked of verbs that read plan files: `explain`, `compare`, `trace` and `export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from meshwright.app.requests.plan import PICTURE
from meshwright.fields.field import ask, group
from meshwright.fields.job import (
    FRAMEWORK_HELP,
    MONEY_AND_POWER,
    NAME,
    PLAN_FILE_HELP,
    WHAT_AND_WHERE,
    WRITE_ONE,
    JobFields,
)
from meshwright.fields.kinds import FieldKind, Flag, OutputFile, Window
from meshwright.fields.request import Reading, Request, request_fields

PATH = FieldKind(metavar="LOG", annotation="str | os.PathLike[str]")
LINE_OR_FILE = FieldKind(metavar="PLAN", annotation="PlanLike | PlanRow")
LINE_OR_FILE_HELP = f"{PLAN_FILE_HELP[:-1]}; or one line such as tp8.pp4.z1.mbs1, with --model."
BESIDE_A_PLAN = ("tokens", "failures", "price", "prices", "pue", "carbon_intensity")
MODEL_OF_A_LINE: dict[str, Any] = {"argument": False, "help": "Model of a one-line plan."}
CARRIED = "a plan file carries its model, cluster and workload"


def _of_job(reading: Reading) -> tuple[str, ...]:
    """Fields of model, cluster and workload that a request has."""
    return tuple(one.name for one in request_fields(JobFields) if one.name in reading.fields)


def _line_or_file(reading: Reading, plan: Any) -> None:
    """A plan in one line needs its model, a file carries it."""
    from meshwright.planning.plan_source import is_one_line, planned_job

    if plan is None:
        return
    if not is_one_line(plan):
        reading.refuse(_of_job(reading), "beside a plan file", CARRIED)
    elif "model" not in reading.given and isinstance(plan, str):
        reading.attempt(lambda: planned_job(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(Request):
    """Why this plan and no other. The ladder from plain data parallelism, its neighbours, its sensitivities."""

    examples: ClassVar = (
        "plan llama-3.1-70b --gpus 64xH100 -o plans.json",
        "explain plans.json",
        "explain plans.json#2",
        "explain tp8.pp4.z1.mbs1 --model llama-3.1-70b --gpus 64xH100",
    )
    returns: ClassVar = "The steps that lead to the plan, its neighbours and its sensitivities."
    positional: ClassVar = ("plan",)

    plan: Any = ask(LINE_OR_FILE_HELP, LINE_OR_FILE, argument=True, required=WRITE_ONE)
    svg: str | None = ask(PICTURE, OutputFile(), python=False)
    job: JobFields = group(JobFields, without=BESIDE_A_PLAN, model=MODEL_OF_A_LINE)

    def rules(self, reading: Reading) -> None:
        """A plan in one line needs its model, a file carries it."""
        _line_or_file(reading, self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest(Request):
    """Compare two plans, or a plan and its run, part by part. Says where seconds and bytes differ.

    With a log, predicted and measured stand side by side, by part of the step where the run reports parts: timers of
    Megatron and DeepSpeed, columns such as dp_s of a CSV, a trace of the PyTorch profiler. Each
    cause of the difference is named with its range.
    """

    examples: ClassVar = (
        "plan llama-3.1-70b --gpus 64xH100 -o plans.json",
        "compare plans.json#1 plans.json#2",
        "compare plans.json#1 plans.json#2 --timeline",
        "compare plans.json#1 tp8.pp4.z1.mbs1",
        "compare tp8.pp4.z1.mbs1 tp4.pp8.z1.mbs1 --model llama-3.1-70b --gpus 64xH100",
        "compare plans.json#1 --with-run train.log",
        "compare tp2.mbs1.gbs128 --with-run train.log --model llama-3.1-8b --gpus 8xH100",
    )
    returns: ClassVar = "The differences, largest first; with a log, both sides and what explains the difference."
    positional: ClassVar = ("first", "second")

    first: Any = ask(LINE_OR_FILE_HELP, LINE_OR_FILE, argument=True, required=WRITE_ONE)
    second: Any = ask(
        "Second plan, likewise; one line is for the first plan's model unless --model says another.",
        LINE_OR_FILE,
        argument=True,
    )
    with_run: Any = ask(
        "Log of a run of the plan, CSV of its steps, or profiler trace, instead of a second plan.", PATH
    )
    framework: str | None = ask(FRAMEWORK_HELP, NAME, usual="recognised by its lines")
    timeline: bool = ask("Also draw one step of each on a common time axis.", Flag(), python=False)
    svg: str | None = ask("Write the timelines as a figure, SVG or PNG.", OutputFile(), python=False)
    job: JobFields = group(
        JobFields,
        without=BESIDE_A_PLAN,
        model=MODEL_OF_A_LINE,
    )

    def rules(self, reading: Reading) -> None:
        """Two plans, or one and its run, and what is wrong with either."""
        from meshwright.planning.plan_source import is_one_line, planned_job

        plans = [plan for plan in (self.first, self.second) if plan is not None]
        files = [plan for plan in plans if not is_one_line(plan)]
        looked_at = files
        if "with_run" in self.given:
            self._with_log(reading, one_line=self.first is not None and not files)
        else:
            self._two_plans(reading, filed=len(files) == len(plans))
            if not files and "model" not in self.given:
                looked_at = [plan for plan in plans if isinstance(plan, str)]
        if "first" in self.given and self.given & {"second", "with_run"}:
            for plan in looked_at:
                reading.attempt(lambda plan=plan: planned_job(plan))  # type: ignore[misc]

    def _with_log(self, reading: Reading, *, one_line: bool) -> None:
        """One plan and its run."""
        why = "a plan is compared with another plan or with its run, and a log lists no tasks to draw"
        if "second" in self.given:
            what = f"a second PLAN beside {reading.called('with_run')}"
            reading.problem(what, why, "leave one of them out", "second")
        reading.refuse(("timeline", "svg"), f"beside {reading.called('with_run')}", why)
        if one_line and "model" not in self.given:
            fix = f"for example {reading.called('model')} llama-3.1-70b; only a plan file carries its model"
            reading.missing("model", fix)

    def _two_plans(self, reading: Reading, *, filed: bool) -> None:
        """Two plans, both in files or not."""
        why = "it names the framework that wrote the log"
        reading.refuse(("framework",), f"without {reading.called('with_run')}", why)
        if filed:
            reading.refuse(_of_job(reading), "beside plan files", CARRIED)
        if "first" in self.given and "second" not in self.given:
            fix = f"{WRITE_ONE}, or give its log: {reading.called('with_run')} train.log"
            reading.problem("the second PLAN is missing", "the verb needs it", fix, "second")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest(Request):
    """One step of a plan, task by task, as trace, figure or text. The trace opens in Perfetto and Chrome."""

    examples: ClassVar = (
        "plan llama-3.1-70b --gpus 64xH100 -o plans.json",
        "trace plans.json#1 -o step.json.gz --svg step.svg",
        "trace tp8.pp4.z1.mbs1.rc-full --model llama-3.1-70b --gpus 64xH100",
    )
    returns: ClassVar = "The tasks of a step."
    positional: ClassVar = ("plan", "output")

    plan: Any = ask(
        "A plan file, as plans.json#2, or one line, with --model.",
        FieldKind(metavar="PLAN", annotation="PlanLike | PlanRow"),
        argument=True,
        required="a plan file, or one line such as tp8.pp4.mbs1.z1 with --model and --gpus",
    )
    output: Any = ask(
        "Trace file for Perfetto and Chrome; gzipped if it ends in .gz.",
        OutputFile(),
        short="-o",
    )
    svg: Any = ask("Figure, SVG or PNG.", OutputFile())
    window: tuple[float, float] | None = ask(
        "The part of the step that the figure shows, such as 40%-60% of a long one.", Window(), usual="all of it"
    )
    memory_snapshot: Any = ask("Memory over the step, for PyTorch's memory viewer (pickle).", OutputFile())
    text: bool = ask("Draw the timeline as text (the default if no file is named).", Flag(), python=False)
    job: JobFields = group(
        JobFields,
        without=("tokens", "failures", "price", "calibration", *MONEY_AND_POWER),
        model={"argument": False, "help": "Model of a one-line plan."},
    )

    def rules(self, reading: Reading) -> None:
        """Files that can be written; a plan in one line needs its model."""
        from meshwright.planning.plan_source import is_file
        from meshwright.planning.question.job_inputs import job_inputs

        if isinstance(self.plan, str) and "model" not in self.given and not is_file(self.plan):
            fix = f"for example {reading.called('model')} llama-3.1-70b; only a plan file carries its model"
            reading.missing("model", fix)
        if "svg" not in self.given:
            reading.refuse(("window",), f"without {reading.called('svg')}", "it is a part of the figure")
        named = ("output", "svg", "memory_snapshot")
        files = {name: Path(path).resolve() for name in named if (path := getattr(self, name)) is not None}
        for name, path in files.items():
            if name != next(first for first in files if files[first] == path):
                what = f"{str(getattr(self, name))[:200]!r} is named for two files"
                fix = "name several, such as step.json.gz, step.svg and step.pickle"
                reading.problem(what, "the second would be written over the first", fix, name, "MW208")
        if "model" in self.given:
            reading.also(lambda: job_inputs(self.job), needs=WHAT_AND_WHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest(Request):
    """Write the files that start a framework with a plan. Refuses what the framework cannot express."""

    examples: ClassVar = (
        "plan llama-3.1-70b --gpus 64xH100 -o plans.json",
        "export plans.json#1 --to megatron -o launch",
        "export plans.json#1 --to torch-csv -o pipeline",
        "export tp8.pp4.z1.mbs1 --model llama-3.1-70b --gpus 64xH100 --to megatron -o megatron",
    )
    returns: ClassVar = "The files, what to know about them, and the command that starts them."
    positional: ClassVar = ("plan", "target", "directory")

    plan: Any = ask(LINE_OR_FILE_HELP, LINE_OR_FILE, argument=True, required=WRITE_ONE)
    target: str | None = ask("Target framework.", FieldKind(metavar="TARGET"), option="--to", required="--to megatron")
    directory: str | None = ask("Output folder, new or empty.", FieldKind(metavar="DIR"), option="--output", short="-o")
    force: bool = ask("Write into a folder that is not empty.", Flag())
    job: JobFields = group(JobFields, without=BESIDE_A_PLAN, model=MODEL_OF_A_LINE)

    def rules(self, reading: Reading) -> None:
        """The command writes files; in Python they may be kept. A plan in one line needs its model."""
        _line_or_file(reading, self.plan)
        if reading.typed and "directory" not in self.given:
            reading.problem("-o DIR is missing", "the verb needs it", "-o launch", "directory")
