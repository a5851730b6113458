"""Megatron-LM: a launch script of its command-line options."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats import megatron
from meshwright.specs.job import Job
from meshwright.targets.contract import Files, JobTarget, TargetFiles, marked, target_files, text_of
from meshwright.targets.megatron.rules import rule_problems
from meshwright.targets.sayable import unequal_pipelines
from meshwright.units import of_capacity, percent, seconds

if TYPE_CHECKING:
    from meshwright.formats.launch_file import LaunchFile
    from meshwright.formats.shell import Script

SCRIPT = "train.sh"


def _megatron(job: Job, estimate: StepEstimate) -> TargetFiles:
    if broken := rule_problems(job):
        raise UnsupportedError(broken, code="MW420")
    try:
        script = megatron.megatron_script(job, predicted=_predicted(estimate))
    except UnsupportedError as error:
        raise UnsupportedError(list(_plainly(error.problems, job)), code=error.code) from None
    notes, start = script.notes, "MEGATRON=path/to/Megatron-LM bash train.sh"
    return target_files(job, ((SCRIPT, script.text),), notes=notes, start=start)


MARKS = re.compile(r"pretrain_\w{0,60}\.py|--micro-batch-size(?![\w-])")
"""Marks of a script: Megatron's programs, or an option of all its trainings; `pretrain_` is part of others' names
too."""
_OF_A_TRAINER = re.compile(r"--per[-_]device[-_]train[-_]batch[-_]size\b")
_table = marked((".yaml", ".yml"), ("--tensor-model-parallel-size:", "--micro-batch-size:"))


def marked_script(text: str) -> bool:
    """Whether the text of a script has marks of Megatron's; programs of Hugging Face's Trainer are called `pretrain_`,
    too.

    Args:
        text: the text of the script.
    """
    return "--micro-batch-size" in text or (MARKS.search(text) is not None and _OF_A_TRAINER.search(text) is None)


def _recognised(name: str, text: str) -> bool:
    # Recipes of Megatron-Bridge are called after what they pretrain; Megatron-DeepSpeed has its own target.
    if re.search(r"--deepspeed(?![\w-])|(?:^|[\s./])axolotl(?:\.cli\.| )train\b", text, re.MULTILINE):
        return False  # Axolotl's options have names of these
    script = PurePath(name).suffix in (".sh", ".slurm", ".sbatch") and marked_script(text)
    return _table(name, text) or (script and "model.tensor_model_parallel_size=" not in text)


def _plainly(problems: Sequence[Problem], job: Job) -> Iterator[Problem]:
    """The problems, those that only another plan resolves as one each: unequal pipelines, recompute layer by layer."""
    if len(job.plan.pipelines) > 1:
        yield unequal_pipelines("Megatron-LM", job)
        problems = [problem for problem in problems if problem.field != "pipelines"]
    by_layer = [problem for problem in problems if problem.field.removeprefix("strategies.").startswith("recompute")]
    by_layer = [problem for problem in by_layer if len(job.plan.strategies) > 1]
    if by_layer:
        kinds = Counter(
            job.plan.strategies[run.strategy].recompute.kind
            for pipeline in job.plan.pipelines
            for worker in pipeline.workers
            for chunk in worker.chunks
            if chunk.copy == "primary"
            for run in chunk.runs
        )
        yield Problem(
            what=f"the plan recomputes its layers differently ({', '.join(sorted(kinds))})",
            why="Megatron-LM recomputes all layers the same way, or the first few of every chunk",
            fix="make a plan that it can run with `meshwright plan ... --target megatron`",
            field="recompute",
        )
    yield from (problem for problem in problems if problem not in by_layer)


def _predicted(estimate: StepEstimate) -> str:
    between = f"{seconds(estimate.step_time_low_s)} to {seconds(estimate.step_time_high_s)}"
    peak = of_capacity(estimate.fullest.peak_memory_bytes, estimate.fullest.capacity_bytes)
    return f"step {seconds(estimate.step_time_s)} ({between}), MFU {percent(estimate.mfu)}, peak memory {peak}"


def _read(files: Files, devices: int | None = None) -> LaunchFile:
    from meshwright.formats.megatron.read import read_flags  # loads what evaluates scripts

    return read_flags(text_of(files, SCRIPT, _recognised), devices=devices)


def _read_script(script: Script, devices: int | None) -> LaunchFile:
    from meshwright.formats.megatron.read import read_flags

    return read_flags(script, devices=devices)


def _refused(job: Job) -> tuple[Problem, ...]:
    return megatron.translate(job).refused or rule_problems(job)


def as_run_by_megatron(job: Job) -> Job:
    """Megatron-FSDP keeps 16-bit shards of the weights beside the fp32 ones, 2 bytes per parameter, as ZeRO-3 does.

    Source: megatron/core/distributed/fsdp/src/megatron_fsdp of Megatron-LM, commit d98e8a64, 2026-08.
    """
    strategies = tuple(
        replace(one, data=replace(one.data, family="zero")) if one.data.family == "fsdp" and one.data.reshard else one
        for one in job.plan.strategies
    )
    if strategies == job.plan.strategies:
        return job
    return replace(job, plan=replace(job.plan, strategies=strategies))


TARGET = JobTarget(
    name="megatron",
    title="Megatron-LM",
    version=f"commit {megatron.COMMIT} (2026-08-22)",
    translate=_megatron,
    refusals_of=_refused,
    read=_read,
    script=_read_script,
    recognised=_recognised,
    as_run=as_run_by_megatron,
    unequal_nodes=True,
)
