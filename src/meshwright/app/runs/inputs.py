"""What `run` and `verify` take: a model made to fit this machine, a plan, and the training they say together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.app.requests.run import ExecutionFields
from meshwright.app.runs.rules import execution_problems, mixed_problems, planned_problems, problems_of_row
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.layout import ModelLayout
from meshwright.fields.gather import Gather
from meshwright.planning.plan_shape import groups_of
from meshwright.planning.plan_source import is_file, job_of
from meshwright.report.words.titles import planned_title
from meshwright.schedules import known_names, schedule_named
from meshwright.schedules.plan_rows import row_of, stages_of
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import homogeneous
from meshwright.specs.row_text import parse_row
from meshwright.specs.shardings import SHARDINGS

if TYPE_CHECKING:
    from meshwright.runtime.training.planned import PlannedTraining

DEVICES = 8
SEQ_LEN = 64
COMPUTE = {"bf16": "bfloat16", "fp16": "float16"}
"""Formats of products that are not those of the weights, as JAX calls them."""
PERCEPTRON_LAYERS = 8
OPTIMIZER = "adam"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """A training that this machine is asked for; JAX is not started yet."""

    name: str
    spec: ModelSpec | None
    """None for the perceptron."""
    row: PlanRow | None
    """None for a plan of unlike stages or several pipelines, which is in `job`."""
    stage_layers: tuple[int, ...]
    seq_len: int
    devices: int
    dtype: str
    hidden: int | None
    assumptions: tuple[str, ...]
    """Every default that shaped the run."""
    optimizer: str = OPTIMIZER
    """The optimizer that updates the weights."""
    job: Job | None = None
    """The planned job of a plan that is no row."""

    @property
    def title(self) -> str:
        """What the plan is called: its one line, or its stages by the group they stand on."""
        if self.row is not None:
            return self.row.format()
        assert self.job is not None
        return planned_title(self.job)

    @property
    def plan_devices(self) -> int:
        """Devices that the plan uses."""
        if self.row is not None:
            return self.row.devices
        assert self.job is not None
        return self.job.plan.devices

    def training(self, options: ExecutionFields) -> PlannedTraining:
        """The training itself; loads JAX.

        Args:
            options: the options where it runs.
        """
        from meshwright.runtime.training.of_job import job_training
        from meshwright.runtime.training.run import Training
        from meshwright.zoo.optimizers import optimizer_of

        shared: dict[str, Any] = {
            "spec": self.spec,
            "seq_len": self.seq_len,
            "hidden": self.hidden,
            "compute": COMPUTE.get(self.dtype),
            "seed": options.seed,
            "backend": options.backend,
            "ray": options.ray,
            "timeout_s": options.timeout_s,
            "hosts_per_mesh": options.hosts_per_mesh,
            "worker_devices": _named(options.worker_devices),
            "updates_by": optimizer_of(self.optimizer),
        }
        if self.row is not None and _of_ranks(self.row):
            from meshwright.runtime.training.ranks import RankTraining

            return RankTraining(row=self.row, stage_layers=self.stage_layers, **shared)
        if self.row is not None and not schedule_named(self.row.schedule).flushes:
            from meshwright.runtime.training.versioned import VersionedTraining  # few plans never drain

            return VersionedTraining(row=self.row, stage_layers=self.stage_layers, **shared)
        if self.row is not None and schedule_named(self.row.schedule).averages:
            from meshwright.runtime.training.averaged import AveragedTraining  # as few

            return AveragedTraining(row=self.row, stage_layers=self.stage_layers, **shared)
        if self.row is not None:
            return Training(row=self.row, stage_layers=self.stage_layers, **shared)
        assert self.job is not None
        return job_training(job=self.job, name=self.title, emulate=options.emulate or 0.0, **shared)


def _of_ranks(row: PlanRow) -> bool:
    """Whether each rank of a plan runs a program of its own with its part of the states."""
    away = bool(row.offload) and not schedule_named(row.schedule).pages
    return bool(row.data_words) or away or SHARDINGS[row.sharding].travels


def _named(worker_devices: str) -> str | tuple[str, ...]:
    """One name for all meshes, or one for each."""
    names = tuple(name.strip() for name in worker_devices.split(","))
    return names[0] if len(names) == 1 else names


def run_inputs(options: ExecutionFields) -> RunInputs:
    """Bring model and plan together.

    Args:
        options: what is asked.

    Raises:
        InputError: anything is malformed or does not go together; with every reason.
        UnsupportedError: an unknown name, or what does not run here.
    """
    notes: list[str] = []
    gather = Gather()
    filed = _filed(options, notes) if is_file(options.plan) else None
    for problem in execution_problems(options, planned=filed is not None):
        gather.errors.append(problem)
    if filed is not None and (problems := planned_problems(filed.job)):
        gather.errors.append(UnsupportedError(problems, code="MW411"))
    if filed is not None and (filed.row is None or options.emulate is not None):
        return _mixed_inputs(options, filed, notes, gather)
    return _row_inputs(options, filed, notes, gather)


def _row_inputs(options: ExecutionFields, filed: _Filed | None, notes: list[str], gather: Gather) -> RunInputs:
    """A plan that one row of degrees says, for a model of any number of layers."""
    from meshwright.runtime.plan_method import check_runs
    from meshwright.zoo.catalogue import PERCEPTRON, spec_named

    model = _model_asked(options, filed, gather)
    spec = gather.attempt(lambda: spec_named(model, layers=options.layers, hidden=options.hidden, vocab=options.vocab))
    row = filed.row if filed and filed.row else gather.attempt(lambda: _parsed(options, notes))
    if row is None:
        gather.done()
    assert row is not None
    seq_len = options.seq_len or (filed.seq_len if filed else _default_length(spec, notes))
    layers = options.layers or PERCEPTRON_LAYERS
    known = spec is not None or model == PERCEPTRON
    if problems := problems_of_row(row, spec, layers, seq_len) if known else ():
        gather.errors.append(InputError(problems, code="MW231"))
    gather.attempt(lambda: check_runs(row))
    optimizer = _optimizer_asked(options, filed, row, spec, gather) if known else OPTIMIZER
    gather.done()
    if (without := schedule_named(row.schedule).not_run) and row.pp > 1:
        notes.append(f"{row.schedule}: {without}")
    return RunInputs(
        name=str(model) if spec is None else spec.name,
        spec=spec,
        row=row,
        stage_layers=_stage_layers(spec, layers, row, seq_len, filed.stage_layers if filed else ()),
        seq_len=seq_len,
        devices=max(options.devices or 0, row.devices),
        dtype=options.dtype,
        hidden=options.hidden,
        optimizer=optimizer,
        assumptions=tuple(notes),
    )


def _optimizer_asked(
    options: ExecutionFields, filed: _Filed | None, row: PlanRow | None, spec: ModelSpec | None, gather: Gather
) -> str:
    """The optimizer that is named, else that of the plan file; what it does not run with is gathered."""
    from meshwright.zoo.optimizers import optimizer_problems

    usual = OPTIMIZER if filed is None else filed.job.workload.optimizer
    text = usual if options.optimizer is None else options.optimizer
    found = gather.attempt(lambda: list(optimizer_problems(text, row, spec, options.dtype)))
    if found:
        gather.errors.append(UnsupportedError(found, code="MW411"))
    return text


def _model_asked(options: ExecutionFields, filed: _Filed | None, gather: Gather) -> str | ModelSpec:
    """The model that is named, else that of the plan file.

    Raises:
        InputError: neither is there; with what else is wrong.
    """
    model = filed.model if options.model is None and filed is not None else options.model
    if model is None:
        gather.problem(
            Problem(
                what="no model is given",
                why="only a plan file carries its model",
                fix="name one, such as gpt-tiny",
                field="model",
            ),
            "MW203",
        )
        gather.done()
    assert model is not None
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filed:
    """What a plan file says."""

    job: Job
    row: PlanRow | None
    """None where no row says it."""
    stage_layers: tuple[int, ...]
    """Layers of each stage of a plan that a row says."""
    seq_len: int

    @property
    def model(self) -> ModelSpec:
        """The model that the plan was made for."""
        return self.job.model


def _filed(options: ExecutionFields, notes: list[str]) -> _Filed:
    job, _ = job_of(options.plan)
    row = row_of(job.plan, job.model) if len(_kinds(job)) == 1 else None
    held, _ = homogeneous(job.plan, unevenly=True) if row is not None else (None, ())
    if options.seq_len is None:
        notes.append(f"{job.workload.seq_len:,} tokens a sample, from the plan file")
    if row is not None and options.global_batch is not None:
        row = replace(row, gbs=options.global_batch)
    return _Filed(job=job, row=row, stage_layers=held.layers if held else (), seq_len=job.workload.seq_len)


def _kinds(job: Job) -> set[str]:
    """Names of the groups whose devices a plan uses."""
    return {name for pipeline in range(len(job.plan.pipelines)) for name in groups_of(job, pipeline)}


def _mixed_inputs(options: ExecutionFields, filed: _Filed, notes: list[str], gather: Gather) -> RunInputs:
    """A plan of unlike stages or several pipelines, for its own model or a narrower one of as many layers."""
    from meshwright.runtime.mixed_plan import check_plan_runs, stage_layers
    from meshwright.zoo.catalogue import spec_named

    job, model = filed.job, options.model or filed.job.model
    spec = gather.attempt(lambda: spec_named(model, layers=options.layers, hidden=options.hidden, vocab=options.vocab))
    seq_len = options.seq_len or filed.seq_len
    if problems := list(mixed_problems(options, job, spec)):
        gather.errors.append(InputError(problems, code="MW251"))
    gather.attempt(lambda: check_plan_runs(job.plan, seq_len))
    optimizer = _optimizer_asked(options, filed, None, spec, gather)
    gather.done()
    assert spec is not None
    return RunInputs(
        name=spec.name,
        spec=spec,
        row=None,
        job=job,
        stage_layers=stage_layers(job.plan.pipelines[0]),
        seq_len=seq_len,
        devices=max(options.devices or 0, job.plan.devices),
        dtype=options.dtype,
        hidden=options.hidden,
        optimizer=optimizer,
        assumptions=tuple(notes),
    )


def _parsed(options: ExecutionFields, notes: list[str]) -> PlanRow:
    """The one-line form; a batch that is not given keeps every stage at work."""
    devices = options.devices
    row = parse_row(
        options.plan, devices=devices or DEVICES, global_batch=options.global_batch or 0, schedules=known_names()
    )
    row = replace(row, schedule=schedule_named(row.schedule).token)
    if devices is None:
        notes.append(f"{row.devices} devices (--devices)")
    if not row.gbs:
        count = 1 if row.pp == 1 else 2 * row.pp
        row = replace(row, gbs=row.dp * row.mbs * count)
        notes.append(f"{row.gbs} samples a step: dp {row.dp} x mbs {row.mbs} x {count} micro-batches (--gbs)")
    if devices is not None and row.devices > devices:
        raise InputError(
            Problem(
                what=f"the plan needs {row.identity()} devices, --devices says {devices}",
                why="every rank of a plan is a device",
                fix=f"--devices {row.devices}, or a smaller plan",
                field="devices",
            ),
            code="MW251",
        )
    return row


def _default_length(spec: ModelSpec | None, notes: list[str]) -> int:
    """Tokens of a sample unless stated; a perceptron has none."""
    if spec is None:
        return SEQ_LEN
    notes.append(f"{min(SEQ_LEN, spec.max_seq_len)} tokens a sample (--seq)")
    return min(SEQ_LEN, spec.max_seq_len)


def _stage_layers(
    spec: ModelSpec | None, layers: int, row: PlanRow, seq_len: int, planned: tuple[int, ...]
) -> tuple[int, ...]:
    """Layers of each stage: those of the plan file, of as many layers; by their work, or of a perceptron evenly."""
    if sum(planned) == (layers if spec is None else spec.num_layers):
        return planned
    if spec is not None:
        return ModelLayout.of(spec, seq_len).split_of(row)
    parts = stages_of(row)
    whole, rest = divmod(layers, parts)
    return tuple(whole + (part < rest) for part in range(parts))
