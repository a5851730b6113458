"""A job as a Megatron-LM launch script. What no option says is refused, never left out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.errors import Problem, UnsupportedError
from meshwright.formats.megatron.model import VOCAB_MULTIPLE, model_flags
from meshwright.formats.megatron.optimizers import OPTIMIZERS, optimizer_flags
from meshwright.formats.megatron.precision import precision_flags
from meshwright.formats.megatron.settings import ASKED
from meshwright.formats.megatron.strategy import flex_backend, strategy_flags, strategy_refusal
from meshwright.formats.processes import processes_of_node, unequal_nodes
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import Homogeneous, homogeneous, row_from

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Flags

COMMIT = "d98e8a64"


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronExport:
    """A job in Megatron-LM's options."""

    arguments: tuple[tuple[str, str], ...]
    """Options in order with their value: empty for switches, parted by spaces where there are several."""
    text: str
    """The launch script; empty where none was asked for."""
    notes: tuple[str, ...] = ()
    refused: tuple[Problem, ...] = ()
    """What the options cannot say, each with its value, the rule and the nearest that they can."""


def megatron_script(
    job: Job, row: PlanRow | None = None, *, predicted: str = "", devices_per_node: int | None = None
) -> MegatronExport:
    """The launch script of a job.

    Args:
        job: what to run.
        row: the plan as a row, if known.
        predicted: predicted numbers to put in the script's head, one line.
        devices_per_node: processes on each node; the cluster's by default.

    Raises:
        UnsupportedError: listing all that Megatron-LM cannot do of the job.
    """
    said = _options(job, devices_per_node)
    if said.refused or said.found is None:
        raise UnsupportedError(said.refused, code="MW420")
    head = _head(job, row or row_from(said.found, gbs=job.plan.global_batch), predicted, said.notes)
    settings = _environment(said.found, said.found.strategy.data.zero >= 2)
    launch = _launch(job, devices_per_node or job.cluster.groups[0].devices_per_node)
    lines = [*head, *settings, *launch, *_arrays(said.groups, job), *_command(said.groups), ""]
    return MegatronExport(arguments=said.arguments, text="\n".join(lines), notes=tuple(said.notes))


def translate(job: Job, *, devices_per_node: int | None = None, shape_said: bool = False) -> MegatronExport:
    """The options of a job without a script; what is refused comes back beside those that can be written.

    Args:
        job: what to run.
        devices_per_node: processes on each node; the cluster's by default.
        shape_said: the model is said otherwise, so that no option is of its shape.
    """
    said = _options(job, devices_per_node, shape_said=shape_said)
    return MegatronExport(arguments=said.arguments, text="", notes=tuple(said.notes), refused=tuple(said.refused))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Options:
    """What options say of a job, and what they cannot."""

    found: Homogeneous | None
    """The plan as one strategy; None where it has several."""
    groups: dict[str, Flags]
    """Options by the array of the script that holds them."""
    notes: list[str]
    refused: list[Problem]

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """All options in order."""
        return tuple(flag for flags in self.groups.values() for flag in flags)


def _options(job: Job, devices_per_node: int | None, *, shape_said: bool = False) -> _Options:
    """Arguments as `translate`."""
    found, unlike = homogeneous(job.plan)
    problems = [*unlike]
    shape, notes, shape_problems = ([], [], []) if shape_said else model_flags(job.model)
    problems += shape_problems
    problems += _launch_problems(job, devices_per_node or job.cluster.groups[0].devices_per_node)
    parallel: Flags = []
    numbers, number_problems = _workload_flags(job, found)
    problems += number_problems
    if found is not None:
        parallel, more, strategy_problems = strategy_flags(found, job.model, flex_backend(job.cluster))
        notes += more
        problems += strategy_problems
        notes += _vocabulary_note(job, found.strategy.tp)
    groups = {"MODEL": shape, "PARALLEL": parallel, "WORKLOAD": numbers}
    seen: set[tuple[str, str]] = set()
    for name, flags in groups.items():
        groups[name] = [flag for flag in flags if flag not in seen and not seen.add(flag)]  # type: ignore[func-returns-value]
    return _Options(found=found, groups=groups, notes=notes, refused=problems)


def _launch_problems(job: Job, per_node: int) -> Iterator[Problem]:
    devices = job.plan.devices
    if devices > per_node and devices % per_node:
        why = f"every node runs equally many processes, here {per_node}"
        yield strategy_refusal("devices", devices, why, f"use a multiple of {per_node}")
    sizes = {group.devices_per_node for group in job.cluster.groups}
    if len(sizes) > 1:
        shown = " and ".join(map(str, sorted(sizes)))
        yield strategy_refusal(
            "devices", devices, f"every node runs equally many processes, here {shown}", "use equal nodes"
        )


def _workload_flags(job: Job, found: Homogeneous | None) -> tuple[Flags, list[Problem]]:
    workload = job.workload
    problems: list[Problem] = []

    def refuse(name: str, value: object, why: str, fix: str = "") -> None:
        problems.append(Problem(what=f"workload: {name} is {value!r}", why=why, fix=fix, field=f"workload.{name}"))

    if not workload.training:
        refuse("training", False, "the launch script trains", "plan a training step")
    if workload.sequence_lengths:
        why = "the script trains rows of one length, and its data set says what is packed into them (--sft does)"
        longest = workload.sequence_lengths[-1][0]
        refuse("sequence_lengths", f"up to {longest:,}", why, f"plan with --seq {workload.seq_len} alone")
    for name in ("loss_tiles", "mlp_tiles"):
        if getattr(workload, name) > 1:
            refuse(name, getattr(workload, name), "the script computes them at once", "plan with 1")
    if job.model.tuning is not None:
        what, why = "not all weights are trained", "its pretraining script has neither adapters nor frozen parts"
        fix = "leave out --lora and --freeze, or start it by hand"
        problems.append(Problem(what=what, why=why, fix=fix, field="model.tuning"))
    positions = max(workload.seq_len, job.model.learned_positions or job.model.max_seq_len)
    if job.model.learned_positions and workload.seq_len > job.model.learned_positions:
        why = f"the model has {job.model.learned_positions} learned positions"
        refuse("seq_len", workload.seq_len, why, f"use at most {job.model.learned_positions}")
    flags: Flags = [("--seq-length", str(workload.seq_len)), ("--max-position-embeddings", str(positions))]
    pipeline = job.plan.pipelines[0]
    flags += [("--micro-batch-size", str(pipeline.micro_batch)), ("--global-batch-size", str(workload.global_batch))]
    strategy = found.strategy if found else None
    zero = strategy.data.zero if strategy else 1
    precision = (strategy.precision if strategy else None) or workload.precision
    formats, format_problems = precision_flags(precision, sharded=zero > 0)
    problems += format_problems
    if workload.update.name not in ("adam", "adamw", "sgd", "sgd-momentum") and zero >= 2:
        refuse("optimizer", workload.optimizer, "sharding gradients or weights knows adam and sgd only", "use z1")
    if strategy and precision.activations == "fp16" and zero == 3 and not strategy.data.reshard:
        refuse("precision", precision.name, "torch FSDP does not run in fp16 there", "use bf16")
    chosen = optimizer_flags(workload.update)
    if chosen is None:
        known = ", ".join(OPTIMIZERS)
        refuse("optimizer", workload.optimizer, f"it has {known}, with their usual settings", "use one of these")
    flags += [*formats, *(chosen or [])]
    if workload.attention_kernel == "materialised":
        flags.append(("--attention-backend", "unfused"))
    return flags, problems


def _vocabulary_note(job: Job, tp: int) -> list[str]:
    multiple = VOCAB_MULTIPLE * tp
    padded = math.ceil(job.model.vocab / multiple) * multiple
    if padded == job.model.vocab:
        return []
    return [f"the vocabulary of {job.model.vocab} is padded to {padded}, a multiple of {VOCAB_MULTIPLE} x tp {tp}"]


def _version() -> str:
    """Version of the installed package; empty where it runs without being installed."""
    from importlib import metadata

    try:
        return metadata.version("meshwright")
    except metadata.PackageNotFoundError:
        return ""


def _comment(text: str) -> str:
    """One line of a comment, whatever the text holds."""
    return "# " + " ".join(text.split())


def _head(job: Job, row: PlanRow | None, predicted: str, notes: list[str]) -> list[str]:
    from meshwright.formats.plan_json import content_hash  # only the text of a script names its plan file

    line = row.format() if row else job.name or "a plan of more than one line"
    lines = [
        "#!/usr/bin/env bash",
        _comment(f"Written by meshwright {_version()} for Megatron-LM, options of commit {COMMIT}."),
        _comment(f"model: {job.model.name}, {job.model.parameters:,} parameters"),
        _comment(f"cluster: {job.cluster.name}, {job.plan.devices} of {job.cluster.devices} devices"),
        _comment(f"plan: {line}"),
        _comment(f"plan hash: {content_hash(job)}"),
    ]
    if predicted:
        lines.append(_comment(f"predicted: {predicted}"))
    lines += [_comment(f"note: {note}") for note in notes]
    lines += [
        "#",
        "# Needs MEGATRON, the path of a Megatron-LM checkout. On several nodes set NODE_RANK, MASTER_ADDR and",
        "# MASTER_PORT on each. DATA_ARGS and TRAIN_ARGS replace the mock data and the short run set below.",
        "set -euo pipefail",
        "",
    ]
    return lines


def _environment(found: Homogeneous, fsdp: bool) -> list[str]:
    lines = []
    strategy = found.strategy
    if fsdp:
        lines.append("unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP does not start where it is 1")
    elif strategy.tp > 1 or strategy.cp > 1:
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1  # collectives start in the order they are issued")
    if strategy.offload.activations:
        lines.append("export NVTE_CPU_OFFLOAD_V1=1  # activations are offloaded, weights stay")
    return [*lines, ""] if lines else []


def _launch(job: Job, per_node: int) -> list[str]:
    local = min(per_node, job.plan.devices)
    each, nodes, rank = str(local), job.plan.devices // local, "${NODE_RANK:-0}"
    if unequal_nodes(job):
        # Without its number no node knows how many processes it starts.
        (each, nodes), rank = processes_of_node(job), "$NODE_RANK"
    return [
        "LAUNCH=(",
        f"  torchrun --nproc_per_node {each} --nnodes {nodes}",
        f'  --node_rank "{rank}" --master_addr "${{MASTER_ADDR:-localhost}}"',
        '  --master_port "${MASTER_PORT:-6000}"',
        ")",
    ]


def _arrays(groups: dict[str, Flags], job: Job) -> list[str]:
    lines: list[str] = []
    from meshwright.formats.megatron.options import known_options  # who only asks what is refused writes nothing

    options = known_options()
    for name, flags in groups.items():
        lines.append(f"{name}=(")
        for flag, value in flags:
            several = options[flag].takes not in ("0", "1")
            words = value.split() if several else [value] if value else []
            lines.append("  " + " ".join([flag, *map(_quoted, words)]))
        lines.append(")")
    steps = "--train-iters 20"
    if job.workload.tokens is not None:
        steps = f"--train-samples {math.ceil(job.workload.tokens / job.workload.seq_len)}"
    lines += [
        f"TRAIN=(${{TRAIN_ARGS:-{steps} --lr 1e-4 --min-lr 1e-5 --eval-iters 0 --log-interval 1 --log-throughput}})",
        f"DATA=(${{DATA_ARGS:---mock-data --tokenizer-type NullTokenizer --vocab-size {job.model.vocab}}})",
    ]
    return lines


def _quoted(word: str) -> str:
    """A word of the script; what is asked for when it starts stays a variable."""
    return f'"{word}"' if word.startswith(ASKED) else shlex.quote(word)


def _command(groups: dict[str, Flags]) -> list[str]:
    arrays = " ".join(f'"${{{name}[@]}}"' for name in (*groups, "TRAIN", "DATA"))
    return ["", f'"${{LAUNCH[@]}}" "${{MEGATRON:?path of a Megatron-LM checkout}}/pretrain_gpt.py" {arrays} "$@"']
