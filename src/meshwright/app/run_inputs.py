"""What `run` and `verify` take: a model made to fit this machine, a plan, and the training they say together."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshwright.app.plan_source import is_file, job_of
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, unknown_name
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.legality import row_problems
from meshwright.schedules import ALIASES, SCHEDULES
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, parse_row
from meshwright.specs.row_of import row_of

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

    def training(self, *, seed: int = 0, backend: str = "local", ray: str | None = None, timeout_s: float) -> Training:
        """The training itself; loads JAX.

        Args:
            seed: of weights, data and dropout.
            backend: where it runs.
            ray: address of a cluster.
            timeout_s: in which a worker goes on.
        """
        from meshwright.runtime.training_run import Training

        return Training(
            spec=self.spec,
            row=self.row,
            stage_layers=self.stage_layers,
            seq_len=self.seq_len,
            hidden=self.hidden,
            compute="bfloat16" if self.dtype == "bf16" else None,
            seed=seed,
            backend=backend,
            ray=ray,
            timeout_s=timeout_s,
        )


def run_inputs(
    model: str | os.PathLike[str] | ModelSpec | None,
    plan: str,
    *,
    devices: int | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    dtype: str = "fp32",
) -> RunInputs:
    """Bring model and plan together.

    Args:
        model: a tiny model's name, or as `plan` takes it; None takes that of a plan file.
        plan: the one-line form, or a plan file.
        devices: of this machine; as many as the plan has, or 8.
        layers: of the model that runs, where they are fewer than the model's.
        hidden: width of the model that runs.
        vocab: tokens of the model that runs.
        seq_len: tokens of a sample.
        global_batch: samples of a step.
        dtype: one of `DTYPES`.

    Raises:
        InputError: anything is malformed or does not go together; with every reason.
        UnsupportedError: an unknown name, or what does not run here.
    """
    from meshwright.runtime.plan_method import check_runs
    from meshwright.zoo.catalogue import PERCEPTRON, spec_named

    notes: list[str] = []
    errors: list[MeshwrightError] = []
    if dtype not in DTYPES:
        errors.append(UnsupportedError(unknown_name("dtype", dtype, DTYPES), code="MW403"))
    carried: PlanRow | None = None
    if is_file(plan):
        job, _ = job_of(plan)
        carried = row_of(job.plan, job.model)
        if carried is None:
            raise UnsupportedError(
                Problem(what=f"the plan in {plan} has no one-line form", why="plans of equal stages run here",
                        fix="another plan of the set", field="plan"), code="MW411")  # fmt: skip
        model = model if model is not None else job.model
        if seq_len is None:
            seq_len = job.workload.seq_len
            notes.append(f"{seq_len:,} tokens a sample, from the plan file")
    if model is None:
        raise InputError(Problem(what="no model is given", why="only a plan file carries its model",
                                 fix="name one, such as gpt-tiny", field="model"), code="MW203")  # fmt: skip
    spec: ModelSpec | None = None
    try:
        spec = spec_named(model, layers=layers, hidden=hidden, vocab=vocab)
    except MeshwrightError as error:
        errors.append(error)
    try:
        row = carried or _parsed(plan, devices, global_batch, notes)
    except MeshwrightError as error:
        _raise([*errors, error])
    if carried is not None and global_batch is not None:
        row = replace(row, gbs=global_batch)
    if seq_len is None:
        seq_len = SEQ_LEN if spec is None else min(SEQ_LEN, spec.max_seq_len)
        if spec is not None:
            notes.append(f"{seq_len} tokens a sample (--seq)")
    if spec is not None or model == PERCEPTRON:
        problems = _problems(row, spec, layers or PERCEPTRON_LAYERS, seq_len)
        errors += [InputError(problems, code="MW231")] if problems else []
    try:
        check_runs(row)
    except MeshwrightError as error:
        errors.append(error)
    _raise(errors)
    parts = row.pp * row.vpp
    split = _even(layers or PERCEPTRON_LAYERS, parts) if spec is None else ModelLayout.of(spec, seq_len).split(parts)
    return RunInputs(
        name=str(model) if spec is None else spec.name,
        spec=spec,
        row=row,
        stage_layers=tuple(split),
        seq_len=seq_len,
        devices=max(devices or 0, row.devices),
        dtype=dtype,
        hidden=hidden,
        assumptions=tuple(notes),
    )


def _parsed(plan: str, devices: int | None, global_batch: int | None, notes: list[str]) -> PlanRow:
    """The one-line form; a batch that nobody gave keeps every stage at work."""
    row = parse_row(plan, devices=devices or DEVICES, global_batch=global_batch or 0, schedules=(*SCHEDULES, *ALIASES))
    row = replace(row, schedule=ALIASES.get(row.schedule, row.schedule))
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
    """What is wrong with a plan for a model; of the perceptron only its layers and batch count."""
    if spec is not None:
        return row_problems(row, spec, seq_len, row.devices)
    problems = []
    if row.pp * row.vpp > layers:
        problems.append(Problem(what=f"pp {row.pp} x vpp {row.vpp} stages for {layers} layers",
                                why="every stage has a layer", fix=f"pp of at most {layers}", field="pp"))  # fmt: skip
    if row.micro_batches * row.dp * row.mbs != row.gbs:
        problems.append(Problem(what=f"gbs is {row.gbs}", fix="another --gbs", field="gbs",
                                why=f"it is a multiple of dp {row.dp} x mbs {row.mbs}"))  # fmt: skip
    return tuple(problems)


def _even(layers: int, parts: int) -> list[int]:
    whole, rest = divmod(layers, parts)
    return [whole + (part < rest) for part in range(parts)]


def _raise(errors: list[MeshwrightError]) -> None:
    """All problems together; an error of input before one of support."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        first = next((one for one in errors if isinstance(one, InputError)), errors[0])
        raise type(first)([problem for one in errors for problem in one.problems], code=first.code)
