"""Write a plan as the files that start today's framework, all of them or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import Problem, UnsupportedError, unknown_name
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.formats import megatron
from meshwright.formats.plan_json import content_hash, write_job
from meshwright.formats.writing import check_directory, write_folder
from meshwright.planning.exporters.torch_csv import LOADER_FILE, torch_files
from meshwright.planning.plan_shape import groups_of
from meshwright.planning.plan_source import PlanLike, job_of
from meshwright.specs.job import Job
from meshwright.units import of_capacity, percent, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFiles:
    """A job in the words of one target."""

    files: tuple[tuple[str, str], ...]
    """Name and content."""
    notes: tuple[str, ...]
    """What the target does a little differently."""
    start: str
    """The command that starts the run, inside the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan as files of a target."""

    target: str
    name: str | None
    """The plan's one-line form."""
    plan_hash: str
    files: tuple[tuple[str, str], ...]
    """Name and content."""
    directory: Path | None
    """Where they were written; None where only the text was asked for."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    start: str

    def __repr__(self) -> str:
        return f"Exported({self.target}: {', '.join(name for name, _ in self.files)} in {self.directory})"

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "schema": "meshwright.export/1",
            "target": self.target,
            "name": self.name,
            "plan_hash": self.plan_hash,
            "directory": None if self.directory is None else str(self.directory),
            "files": [
                {"name": name, "size_bytes": len(text.encode("utf-8")), "content": text} for name, text in self.files
            ],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "start": self.start,
        }


def export(
    plan: PlanLike,
    target: str = "megatron",
    directory: str | Path | None = None,
    *,
    force: bool = False,
) -> Exported:
    """Write a plan as the files of a target.

    Args:
        plan: a job, an entry of an answer, or a plan file (`plans.json#2` is the second plan of a set).
        target: name of a framework in `TARGETS`.
        directory: a folder that is new or empty; None writes nothing and only returns the text.
        force: write into a folder that holds files, over those of the same names.

    Returns:
        What was written and where.

    Raises:
        UnsupportedError: an unknown target, or all that the target cannot express of this plan.
        InputError: the plan file or the folder cannot be used.
    """
    translate = TARGETS.get(target)
    if translate is None:
        raise UnsupportedError(unknown_name("target", target[:80], TARGETS), code="MW406")
    if directory is not None:
        check_directory(directory, force=force)
    job, warnings = job_of(plan)
    estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    written = translate(job, estimate)
    if estimate.fits == "no":
        full = estimate.fullest
        over = of_capacity(full.peak_memory_bytes, full.capacity_bytes)
        warnings = (*warnings, f"the plan does not fit: {estimate.place(full)} needs {over}")
    if directory is not None:
        write_folder(directory, dict(written.files), force=force)
    return Exported(
        target=target,
        name=job.name,
        plan_hash=content_hash(job),
        files=written.files,
        directory=None if directory is None else Path(directory),
        notes=written.notes,
        warnings=warnings,
        start=written.start,
    )


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


def _torch_csv(job: Job, estimate: StepEstimate) -> TargetFiles:
    files, notes = torch_files(job)
    start = f"torchrun --nproc-per-node N train.py, with load_schedule() of {LOADER_FILE} in it"
    return TargetFiles(files=(("plan.json", write_job(job)), *files.items()), notes=notes, start=start)


TARGETS: dict[str, Callable[[Job, StepEstimate], TargetFiles]] = {"megatron": _megatron, "torch-csv": _torch_csv}
"""What writes the files of each target."""


def _predicted(estimate: StepEstimate) -> str:
    between = f"{seconds(estimate.step_time_low_s)} to {seconds(estimate.step_time_high_s)}"
    peak = of_capacity(estimate.fullest.peak_memory_bytes, estimate.fullest.capacity_bytes)
    return f"step {seconds(estimate.step_time_s)} ({between}), MFU {percent(estimate.mfu)}, peak memory {peak}"
