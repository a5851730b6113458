"""What does not go together in what `run` and `verify` take: plan, model, devices, and how the plan is to run."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.app.requests.run import ExecutionFields
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, unknown_name
from meshwright.estimate.rules.legality import row_problems
from meshwright.schedules.plan_rows import stages_of
from meshwright.specs.job import Job
from meshwright.specs.layers.attention import Attention
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.strategies import TENSORS

DTYPES = ("fp32", "fp64", "bf16", "fp16")


def execution_problems(options: ExecutionFields, *, planned: bool) -> Iterator[MeshwrightError]:
    """What is wrong with how a plan is to run, whatever the plan.

    Args:
        options: what is asked.
        planned: whether a plan file is given, rather than one line.
    """
    if options.dtype not in DTYPES:
        yield UnsupportedError(unknown_name("dtype", options.dtype, DTYPES), code="MW403")
    if options.emulate is not None and not planned:
        yield InputError(
            Problem(
                what=f"--emulate {options.emulate:g} with a one-line plan",
                field="emulate",
                why="the planned times of tasks depend on the devices, which only a plan file names",
                fix="meshwright plan ... -o plan.json, then --plan plan.json",
            ),
            code="MW251",
        )
    if options.emulate is not None and options.hosts_per_mesh > 1:
        yield InputError(
            Problem(
                what=f"--emulate {options.emulate:g} with --hosts-per-mesh {options.hosts_per_mesh}",
                field="emulate",
                why="durations are emulated by one worker a mesh",
                fix="leave --hosts-per-mesh out",
            ),
            code="MW251",
        )


def planned_problems(job: Job) -> list[Problem]:
    """What a plan file is priced with that a run does otherwise.

    Args:
        job: the job of the plan.
    """
    workload, tuning = job.workload, job.model.tuning
    found = []
    if tuning is not None:
        what = "a plan with frozen parts" if tuning.lora is None else "LoRA"
        found.append((what, "a run trains all weights", "model"))
    if workload.sequence_lengths:
        found.append(("a plan for sequences of unequal lengths", "samples of a run are all as long", "seq_len"))
    if not workload.training:
        found.append(("a plan without training", "a run trains", "plan"))
    fix = "give the plan as one line, or plan without it"
    return [Problem(what=f"{what} does not run here", why=why, fix=fix, field=field) for what, why, field in found]


def mixed_problems(options: ExecutionFields, job: Job, spec: ModelSpec | None) -> Iterator[Problem]:
    """What does not go together with a plan that says the layers, devices and micro-batches of every stage."""
    if spec is None or spec.num_layers != job.model.num_layers:
        have = "the perceptron" if spec is None else f"{spec.name} has {spec.num_layers} layers"
        yield Problem(
            what=f"{have}, the plan places {job.model.num_layers}",
            field="layers",
            why="a plan of unlike stages says where each layer is",
            fix="leave --layers out; --hidden, --vocab and --seq make the model smaller",
        )
    elif spec.is_moe != job.model.is_moe:
        yield Problem(
            what=f"{spec.name} for a plan of {job.model.name}",
            field="model",
            why="one of them has experts",
            fix="leave MODEL out",
        )
    if options.global_batch not in (None, job.plan.global_batch):
        yield Problem(
            what=f"--gbs {options.global_batch} for a plan of {job.plan.global_batch} samples a step",
            why="its pipelines have their own micro-batches",
            fix="plan for that batch",
            field="global_batch",
        )
    if options.devices is not None and options.devices < job.plan.devices:
        yield Problem(
            what=f"the plan needs {job.plan.devices} devices, --devices says {options.devices}",
            why="every rank of a plan is a device",
            fix=f"--devices {job.plan.devices}",
            field="devices",
        )


def problems_of_row(row: PlanRow, spec: ModelSpec | None, layers: int, seq_len: int) -> tuple[Problem, ...]:
    """What is wrong with a plan for a model; a perceptron has layers and a batch only."""
    if spec is not None:
        return (*row_problems(row, spec, seq_len, row.devices), *_block_problems(row, spec))
    problems = [
        Problem(what=f"{name} {degree} for a perceptron", why=f"it has no {part}", fix=f"leave {name} out", field=name)
        for name, degree, part in (
            ("cp", row.cp_degree, "tokens"),
            ("ep", row.ep, "experts"),
            ("etp", row.etp, "experts"),
        )
        if degree > 1
    ]
    if row.tensor != "1d" and row.tp > 1:
        problems.append(
            Problem(
                what=f"tensor strategy {row.tensor} for a perceptron",
                why="it has no blocks to cut",
                fix=f"use tp{row.tp}, or llama-tiny",
                field="tensor",
            )
        )
    if stages_of(row) > layers:
        problems.append(
            Problem(
                what=f"pp {row.pp} x vpp {row.vpp} stages for {layers} layers",
                why="every stage has a layer",
                fix=f"pp of at most {layers}",
                field="pp",
            )
        )
    if row.micro_batches * row.dp * row.mbs != row.gbs:
        problems.append(
            Problem(
                what=f"gbs is {row.gbs}",
                fix="another --gbs",
                field="gbs",
                why=f"it is a multiple of dp {row.dp} x mbs {row.mbs}",
            )
        )
    return tuple(problems)


def _block_problems(row: PlanRow, spec: ModelSpec) -> list[Problem]:
    """Sizes that the blocks of a tensor grid do not divide; prices round them up, programs cannot."""
    blocks = TENSORS[row.tensor].blocks(row.tp) if row.tensor in TENSORS else None
    if blocks is None:
        return []
    columns = (*blocks.into.columns, *blocks.into.column_shards)
    shared = [("vocabulary", spec.vocab, blocks.size(blocks.table)), ("vocabulary", spec.vocab, blocks.size(columns))]
    for layer in spec.kinds():
        if isinstance(layer.attention, Attention):
            shared += [
                ("key-value heads", layer.attention.kv_heads, blocks.size(blocks.inner.width)),
                ("head width", layer.attention.head_dim, blocks.size(blocks.into.column_shards)),
            ]
    return [
        Problem(
            what=f"{name} {size} on {row.format().split('.', maxsplit=1)[0]}",
            why=f"{ranks} ranks share it evenly",
            fix=f"use {-(-size // ranks) * ranks}, or another grid",
            field="tp",
        )
        for name, size, ranks in dict.fromkeys(shared)
        if size % ranks
    ]
