"""Write the files that start a training framework with a plan, all of them or none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.app.answer import Answer
from meshwright.app.requests.read import ExportRequest
from meshwright.errors import UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.formats.plan_json import content_hash, with_model
from meshwright.formats.writing import check_directory, write_folder
from meshwright.planning.plan_source import PlanLike, job_of, named_job
from meshwright.planning.used_nodes import on_used_nodes, used_nodes_note
from meshwright.report.words.verdict import peak_text
from meshwright.specs.job import Job
from meshwright.targets import target_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Answer):
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

    def data(self) -> dict[str, object]:
        """As data: `meshwright.export/1`."""
        sizes = [{"name": name, "size_bytes": len(text.encode()), "content": text} for name, text in self.files]
        return {"schema": "meshwright.export/1", **Answer.data(self), "files": sizes}


def exported(request: ExportRequest) -> Exported:
    """Write a plan as the files of a target, for the nodes that it uses alone.

    Raises:
        UnsupportedError: an unknown target, or all that the target cannot express of this plan.
        InputError: the plan or the folder cannot be used.
    """
    target = str(request.target)
    _check(target, request.directory, force=request.force)
    planned, warnings = named_job(request.plan, request.job)
    return _exported(request.plan, (with_model(planned), warnings), target, request.directory, request.force)


def export(
    plan: PlanLike,
    target: str = "megatron",
    directory: str | Path | None = None,
    *,
    force: bool = False,
) -> Exported:
    """Write a plan as the files of a target, for the nodes that it uses alone.

    Args:
        plan: a job, an entry of an answer, or a plan file (`plans.json#2` is the second plan of a set).
        target: name of a framework in `targets.TARGETS`.
        directory: a folder that is new or empty; None writes nothing and only returns the text.
        force: write into a folder that holds files, over those of the same names.

    Returns:
        What was written and where.

    Raises:
        UnsupportedError: an unknown target, or all that the target cannot express of this plan.
        InputError: the plan file or the folder cannot be used.
    """
    _check(target, directory, force=force)
    return _exported(plan, job_of(plan), target, directory, force)


def _check(target: str, directory: str | Path | None, *, force: bool) -> None:
    """What can be told before the plan is read."""
    target_named(target)
    if directory is not None:
        check_directory(directory, force=force)


def _exported(
    plan: PlanLike, read: tuple[Job, tuple[str, ...]], target: str, directory: str | Path | None, force: bool
) -> Exported:
    framework, (whole, warnings) = target_named(target), read
    job, note = on_used_nodes(whole), used_nodes_note(whole, each_node=framework.unequal_nodes)
    run = framework.as_run(job)
    estimate = estimate_plan(run.plan, run.model, run.cluster, run.workload)
    try:
        written = framework.written(job, estimate)
    except UnsupportedError as error:
        from meshwright.app.export_instead import instead

        other = instead(plan, job, framework)
        raise UnsupportedError([*error.problems, *([other] if other else [])], code=error.code) from None
    if estimate.fits == "no":
        place = estimate.place(estimate.fullest)
        warnings = (*warnings, f"the plan does not fit: {place} needs {peak_text(estimate)}")
    if directory is not None:
        write_folder(directory, dict(written.files), force=force)
    return Exported(
        target=framework.name,
        name=job.name,
        plan_hash=content_hash(job),
        files=written.files,
        directory=None if directory is None else Path(directory),
        notes=((note,) if note else ()) + written.notes,
        warnings=warnings,
        start=written.start,
    )
