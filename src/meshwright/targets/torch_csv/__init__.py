"""The pipeline of a plan as the schedule files that PyTorch loads."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.torch_csv import write_actions
from meshwright.formats.torch_loader import COMMUNICATION_FILE, COMPUTE_FILE, loader_text
from meshwright.schedules import ScheduleTable, with_communication
from meshwright.schedules.plan_rows import schedule_of
from meshwright.schedules.torch_actions import to_actions
from meshwright.specs.job import Job
from meshwright.specs.plan import Chunk, Pipeline
from meshwright.targets import FINE_TUNING
from meshwright.targets.contract import JobTarget, TargetFiles, target_files

LOADER_FILE = "load_schedule.py"


def torch_files(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """Schedule files of a plan and a Python file that loads them; and what they leave to the trainer.

    Args:
        job: its plan has one pipeline.

    Raises:
        UnsupportedError: listing all that PyTorch's pipelines cannot do of the plan.
        InputError: the plan's stages do not fit its schedule.
    """
    pipeline = job.plan.pipelines[0]
    if problems := refused(job):
        raise UnsupportedError(problems, code="MW421")
    table = plan_table(pipeline)
    chunks = sorted(pipeline.chunks(), key=lambda chunk: chunk.virtual_stage)
    edges = (_holding(chunks, "embedding"), _holding(chunks, "head"))
    title = f"The pipeline of {job.name or job.model.name}: {pipeline.schedule.name} over {len(pipeline.workers)} ranks"
    files = {
        COMPUTE_FILE: write_actions(to_actions(table)),
        COMMUNICATION_FILE: write_actions(to_actions(with_communication(table))),
        LOADER_FILE: loader_text(
            title,
            pipeline.num_micro_batches,
            table.placement.worker.tolist(),
            [chunk.layers for chunk in chunks],
            edges,
        ),
    }
    return files, tuple(_notes(job, pipeline))


def refused(job: Job) -> tuple[Problem, ...]:
    """What PyTorch's pipelines cannot run of a plan."""
    return (*_beside(job), *_unequal(job), *_refused(job.plan.pipelines[0]))


def _beside(job: Job) -> Iterator[Problem]:
    """Adapters, of which its files say nothing, and streams, whose layers a loader would have to tell apart."""
    if job.model.lora is not None:
        why = "its files cut a model into stages and order their work; they say nothing of adapters"
        fix = "use a trainer that has adapters: " + ", ".join(FINE_TUNING)
        yield Problem(what="adapters (LoRA)", why=why, fix=fix, field="model")
    for stream in job.model.streams:
        yield Problem(
            what=f"a stream of {stream.name}",
            why="the loader cuts one list of equal blocks into stages",
            fix="plan the text alone, without --images" if stream.tower else "a decoder",
            field="model",
        )


def plan_table(pipeline: Pipeline) -> ScheduleTable:
    """The order in which a pipeline runs.

    Args:
        pipeline: the pipeline of a plan.

    Raises:
        InputError: its schedule does not take these workers, micro-batches and chunks.
    """
    chunks = max(len(worker.chunks) for worker in pipeline.workers)
    return schedule_of(pipeline.schedule).table(len(pipeline.workers), pipeline.num_micro_batches, chunks)


def _unequal(job: Job) -> Iterator[Problem]:
    """Pipelines and stages that differ in what every rank of a process group shares."""
    plan = job.plan
    if len(plan.pipelines) > 1:
        yield Problem(
            what=f"{len(plan.pipelines)} pipelines",
            why="torch.distributed.pipelining runs one pipeline; its data-parallel copies are equal and sum their "
            "gradients in one group",
            fix="a plan of one pipeline, such as that of one kind of device",
            field="pipelines",
        )
        return
    pipeline = plan.pipelines[0]
    strategies = [plan.strategies[plan.strategy_index(pipeline, worker)] for worker in pipeline.workers]
    degrees = list(dict.fromkeys((strategy.tp, strategy.cp, strategy.dp) for strategy in strategies))
    if len(degrees) > 1:
        degrees_text = " and ".join(f"tensor {tp}, context {cp}, data {dp}" for tp, cp, dp in degrees[:2])
        yield Problem(
            what=f"stages with different degrees: {degrees_text}",
            why="torch.distributed.pipelining sends each rank's activations unsplit to one rank of the next stage",
            fix="a plan with the same degrees on every stage; numbers of layers may differ",
            field="strategies",
        )


def _refused(pipeline: Pipeline) -> Iterator[Problem]:
    schedule = schedule_of(pipeline.schedule)
    if not schedule.exact_semantics:
        yield Problem(
            what=f"schedule {schedule.name}",
            why="torch.distributed.pipelining flushes the pipeline at the end of every step, with one version of the "
            "weights; this schedule does not compute that gradient",
            fix="a schedule that flushes, such as 1f1b",
            field="schedule",
        )
    if schedule.validates_behind:
        yield Problem(
            what=f"schedule {schedule.token}",
            why="torch.distributed.pipelining ends the step on all workers before the optimizer runs",
            fix=f"use {schedule.name}",
            field="schedule",
        )
    if schedule.sections() > 1 or hasattr(schedule, "exchanges"):
        yield Problem(
            what=f"schedule {schedule.name}",
            why="torch.distributed.pipelining runs micro-batches whole, and keeps activations where they arise",
            fix="a schedule of whole micro-batches, such as 1f1b",
            field="schedule",
        )
    copies = sum(chunk.copy != "primary" for chunk in pipeline.chunks())
    if copies:
        yield Problem(
            what=f"{copies} further copies of stages",
            why="torch.distributed.pipelining holds every stage on one rank",
            fix="a schedule of one copy of the weights, such as dualpipev",
            field="schedule",
        )
    if pipeline.shapes:
        yield Problem(
            what=f"micro-batches of {len(set(pipeline.shapes))} shapes",
            why="torch.distributed.pipelining cuts a batch into equal micro-batches",
            fix="a plan of equal micro-batches",
            field="shapes",
        )


def _holding(chunks: list[Chunk], part: str) -> int:
    """The virtual stage with the embedding or the head."""
    return next((chunk.virtual_stage for chunk in chunks if getattr(chunk, part)), 0 if part == "embedding" else -1)


def _notes(job: Job, pipeline: Pipeline) -> Iterator[str]:
    strategy = job.plan.strategies[job.plan.strategy_index(pipeline, pipeline.workers[0])]
    degrees = {"tensor": strategy.tp, "context": strategy.cp, "expert": strategy.expert.ep, "data": strategy.dp}
    others = ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    if others:
        yield f"the files order the pipeline; set up the other degrees ({others}) in your trainer"
    if job.model.tuning is not None:
        yield "the files order the pipeline; adapters and frozen weights are set up in your trainer"
    if strategy.recompute.kind != "none":
        yield f"recompute ({strategy.recompute.kind}) is a wrapper of your modules, such as torch.utils.checkpoint"
    if strategy.data.zero == 3:
        yield f"with FSDP load {COMPUTE_FILE}: PyTorch then gathers and frees the weights of each stage itself"


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    files, notes = torch_files(job)
    start = f"torchrun --nproc-per-node N train.py, with load_schedule() of {LOADER_FILE} in it"
    return target_files(job, tuple(files.items()), notes=notes, start=start)


TARGET = JobTarget(
    name="torch-csv",
    title="torch.distributed.pipelining",
    version="PyTorch 2.13 to 2.15",
    translate=_files,
    refusals_of=refused,
)
