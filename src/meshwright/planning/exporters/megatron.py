"""Megatron-LM: a launch script of its command-line options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats import megatron
from meshwright.formats.plan_json import write_job
from meshwright.planning.exporters.base import Exporter, TargetFiles
from meshwright.planning.plan_shape import groups_of
from meshwright.specs.job import Job
from meshwright.units import of_capacity, percent, seconds


def _megatron(job: Job, estimate: StepEstimate) -> TargetFiles:
    try:
        script = megatron.megatron_script(job, predicted=_predicted(estimate))
    except UnsupportedError as error:
        raise UnsupportedError(list(_plainly(error.problems, job)), code=error.code) from None
    files = (("plan.json", write_job(job)), ("train.sh", script.text))
    notes = (*script.notes, *_order_of_nodes(job))
    return TargetFiles(files=files, notes=notes, start="MEGATRON=path/of/Megatron-LM bash train.sh")


def _order_of_nodes(job: Job) -> Iterator[str]:
    """On several kinds of nodes their order decides which stage runs where."""
    used = list(dict.fromkeys(groups_of(job, 0)))
    if len(used) > 1:
        yield f"ranks are numbered group by group: give the nodes of {' before those of '.join(used)}"


def _plainly(problems: Sequence[Problem], job: Job) -> Iterator[Problem]:
    """The problems, those that only another plan resolves as one each: unequal pipelines, recompute layer by layer."""
    if len(job.plan.pipelines) > 1:
        yield Problem(
            what=f"the plan has {len(job.plan.pipelines)} pipelines",
            why="Megatron-LM runs one shape of pipeline; all data-parallel ranks of a stage are equal",
            fix="make a plan of one kind of device, or of one pipeline",
            field="pipelines",
        )
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
            why="Megatron-LM recomputes all layers alike, or the first few of every chunk",
            fix="make a plan that it can run with `meshwright plan ... --target megatron`",
            field="recompute",
        )
    yield from (problem for problem in problems if problem not in by_layer)


def _predicted(estimate: StepEstimate) -> str:
    between = f"{seconds(estimate.step_time_low_s)} to {seconds(estimate.step_time_high_s)}"
    peak = of_capacity(estimate.fullest.peak_memory_bytes, estimate.fullest.capacity_bytes)
    return f"step {seconds(estimate.step_time_s)} ({between}), MFU {percent(estimate.mfu)}, peak memory {peak}"


MEGATRON = Exporter(name="megatron", files=_megatron, refused=lambda job: megatron.translate(job).refused)
