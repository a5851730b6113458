"""What `run` and `verify` take: a model made to fit this machine, a plan, and the training they say together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshwright.app.requests.run import ExecutionFields
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, unknown_name
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.legality import row_problems
from meshwright.planning.plan_source import is_file, job_of
from meshwright.schedules import known_names, schedule_named
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, parse_row

if TYPE_CHECKING:
    from meshwright.runtime.training_run import Training

DEVICES = 8
SEQ_LEN = 64
DTYPES = ("fp32", "fp64", "bf16")
PERCEPTRON_LAYERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """A training that this machine is asked for; JAX is not started yet."""

    name: str
    spec: ModelSpec | None
    """None for the perceptron."""
    row: PlanRow
    stage_layers: tuple[int, ...]
    seq_len: int
    devices: int
    dtype: str
    hidden: int | None
    assumptions: tuple[str, ...]
    """Every default that shaped the run."""

    def training(self, options: ExecutionFields) -> Training:
        """The training itself; loads JAX.

        Args:
            options: where it runs.
        """
        from meshwright.runtime.training_run import Training

        return Training(
            spec=self.spec,
            row=self.row,
            stage_layers=self.stage_layers,
            seq_len=self.seq_len,
            hidden=self.hidden,
            compute="bfloat16" if self.dtype == "bf16" else None,
            seed=options.seed,
            backend=options.backend,
            ray=options.ray,
            timeout_s=options.timeout_s,
            hosts_per_mesh=options.hosts_per_mesh,
        )


def run_inputs(options: ExecutionFields) -> RunInputs:
    """Bring model and plan together.

    Args:
        options: what is asked.

    Raises:
        InputError: anything is malformed or does not go together; with every reason.
        UnsupportedError: an unknown name, or what does not run here.
    """
    from meshwright.runtime.plan_method import check_runs
    from meshwright.zoo.catalogue import PERCEPTRON, spec_named

    notes: list[str] = []
    errors: list[MeshwrightError] = []
    if options.dtype not in DTYPES:
        errors.append(UnsupportedError(unknown_name("dtype", options.dtype, DTYPES), code="MW403"))
    filed = _filed(options, notes) if is_file(options.plan) else None
    model = options.model if options.model is not None or filed is None else filed.model
    if model is None:
        raise InputError(Problem(what="no model is given", why="only a plan file carries its model",
                                 fix="name one, such as gpt-tiny", field="model"), code="MW203")  # fmt: skip
    spec: ModelSpec | None = None
    try:
        spec = spec_named(model, layers=options.layers, hidden=options.hidden, vocab=options.vocab)
    except MeshwrightError as error:
        errors.append(error)
    try:
        row = filed.row if filed else _parsed(options, notes)
    except MeshwrightError as error:
        _raise([*errors, error])
    seq_len = options.seq_len or (filed.seq_len if filed else _default_length(spec, notes))
    layers = options.layers or PERCEPTRON_LAYERS
    known = spec is not None or model == PERCEPTRON
    if problems := _problems(row, spec, layers, seq_len) if known else ():
        errors.append(InputError(problems, code="MW231"))
    try:
        check_runs(row)
    except MeshwrightError as error:
        errors.append(error)
    _raise(errors)
    return RunInputs(
        name=str(model) if spec is None else spec.name,
        spec=spec,
        row=row,
        stage_layers=_stage_layers(spec, layers, row.pp * row.vpp, seq_len),
        seq_len=seq_len,
        devices=max(options.devices or 0, row.devices),
        dtype=options.dtype,
        hidden=options.hidden,
        assumptions=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filed:
    """What a plan file says."""

    model: ModelSpec
    row: PlanRow
    seq_len: int


def _filed(options: ExecutionFields, notes: list[str]) -> _Filed:
    job, _ = job_of(options.plan)
    row = row_of(job.plan, job.model)
    if row is None:
        raise UnsupportedError(
            Problem(what=f"the plan in {options.plan} has no one-line form", why="plans of equal stages run here",
                    fix="another plan of the set", field="plan"), code="MW411")  # fmt: skip
    if options.seq_len is None:
        notes.append(f"{job.workload.seq_len:,} tokens a sample, from the plan file")
    row = row if options.global_batch is None else replace(row, gbs=options.global_batch)
    return _Filed(model=job.model, row=row, seq_len=job.workload.seq_len)


def _parsed(options: ExecutionFields, notes: list[str]) -> PlanRow:
    """The one-line form; a batch that is not given keeps every stage at work."""
    devices = options.devices
    row = parse_row(options.plan, devices=devices or DEVICES, global_batch=options.global_batch or 0,
                    schedules=known_names())  # fmt: skip
    row = replace(row, schedule=schedule_named(row.schedule).token)
    if devices is None:
        notes.append(f"{row.devices} devices (--devices)")
    if not row.gbs:
        count = 1 if row.pp == 1 else 2 * row.pp
        row = replace(row, gbs=row.dp * row.mbs * count)
        notes.append(f"{row.gbs} samples a step: dp {row.dp} x mbs {row.mbs} x {count} micro-batches (--gbs)")
    if devices is not None and row.devices > devices:
        raise InputError(
            Problem(what=f"the plan needs {row.identity()} devices, --devices says {devices}",
                    why="every rank of a plan is a device", fix=f"--devices {row.devices}, or a smaller plan",
                    field="devices"), code="MW251")  # fmt: skip
    return row


def _problems(row: PlanRow, spec: ModelSpec | None, layers: int, seq_len: int) -> tuple[Problem, ...]:
    """What is wrong with a plan for a model; a perceptron has layers and a batch only."""
    if spec is not None:
        return row_problems(row, spec, seq_len, row.devices)
    problems = [
        Problem(what=f"{name} {degree} for a perceptron", why=f"it has no {part}", fix=f"leave {name} out", field=name)
        for name, degree, part in (("cp", row.cp_degree, "tokens"), ("ep", row.ep, "experts"),
                                   ("etp", row.etp, "experts"))
        if degree > 1
    ]  # fmt: skip
    if row.pp * row.vpp > layers:
        problems.append(Problem(what=f"pp {row.pp} x vpp {row.vpp} stages for {layers} layers",
                                why="every stage has a layer", fix=f"pp of at most {layers}", field="pp"))  # fmt: skip
    if row.micro_batches * row.dp * row.mbs != row.gbs:
        problems.append(Problem(what=f"gbs is {row.gbs}", fix="another --gbs", field="gbs",
                                why=f"it is a multiple of dp {row.dp} x mbs {row.mbs}"))  # fmt: skip
    return tuple(problems)


def _default_length(spec: ModelSpec | None, notes: list[str]) -> int:
    """Tokens of a sample unless stated; a perceptron has none."""
    if spec is None:
        return SEQ_LEN
    notes.append(f"{min(SEQ_LEN, spec.max_seq_len)} tokens a sample (--seq)")
    return min(SEQ_LEN, spec.max_seq_len)


def _stage_layers(spec: ModelSpec | None, layers: int, parts: int, seq_len: int) -> tuple[int, ...]:
    """Layers of each stage: by their work, or of a perceptron as even as can be."""
    if spec is not None:
        return tuple(ModelLayout.of(spec, seq_len).split(parts))
    whole, rest = divmod(layers, parts)
    return tuple(whole + (part < rest) for part in range(parts))


def _raise(errors: list[MeshwrightError]) -> None:
    """All problems together; an error of input before one of support."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        first = next((one for one in errors if isinstance(one, InputError)), errors[0])
        raise type(first)([problem for one in errors for problem in one.problems], code=first.code)
