"""Megatron-DeepSpeed: a launch script of its command-line options, and the JSON configuration of DeepSpeed.

Options are those of deepspeedai/Megatron-DeepSpeed, megatron/arguments.py of commit 4efb479d (2025-07).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.files import parsed
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.model import model_flags
from meshwright.formats.megatron.options import Flags
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import Script, launches, read_script, word
from meshwright.formats.shell.values import known_text
from meshwright.targets import fsdp
from meshwright.targets.contract import Files, Note, OneStrategyTarget, marked, one_line, text_beside, text_of
from meshwright.targets.deepspeed import SHARDS_AND_OFFLOAD, configuration
from meshwright.targets.deepspeed.beyond import curricula, refuse_beyond
from meshwright.targets.key_texts import json_text, nested_tables
from meshwright.targets.keys import KeyReader, value_of
from meshwright.targets.megatron import marked_script
from meshwright.targets.megatron_deepspeed.agreement import CONFIG, disagreements
from meshwright.targets.sayable import ANY, Plan, Rule, only, whole_key_value_heads

TITLE = "Megatron-DeepSpeed"
COMMIT = "4efb479d"
SCRIPT = "train.sh"
SAYS = {
    "tp": ANY,
    "cp": ANY,
    "pp": ANY,
    "dp": ANY,
    "tensor.sequence_parallel": only(False, True),
    "context.kinds": only(("a2a",), (), why="sequences are cut by heads (Ulysses) only", fix="use cp with a2a"),
    "data.zero": ANY,
    "data.overlap": ANY,
    "offload.optimizer": only(0.0, 1.0, why="the optimizer is on the host or on the device"),
    "offload.gradients": only(0.0, 1.0),
    "recompute.kind": only(
        "none", "full", "grouped", why="layers are recomputed whole, or in runs of equal length", fix="use rc-full"
    ),
    "recompute.group": ANY,
    "schedule": only("1f1b", "zb-h1", why="DeepSpeed's pipeline runs 1F1B or ZB-H1"),
    "optimizer": only("adam", "adamw", "sgd", why="its parser has adam and sgd", fix="use adam"),
    "attention_kernel": ANY,
    "precision": only("bf16", "fp16", "fp32"),
}
_ENGINE = "deepspeed/runtime/pipe/engine.py of deepspeed 0.19.8"
_GROUPS = f"megatron/core/parallel_state.py of commit {COMMIT}"
RULES = (
    Rule(
        field="data.zero",
        holds=lambda plan: plan.found.pp == 1 or plan.strategy.data.zero <= 1,
        why="DeepSpeed's pipeline goes with ZeRO 0 and 1",
        fix="use z1",
        source=_ENGINE,
    ),
    Rule(
        field="data.zero",
        holds=lambda plan: plan.found.pp == 1 or plan.strategy.data.zero > 0 or plan.precision.activations != "bf16",
        why="DeepSpeed's pipeline shards optimizer states under bf16, ZeRO or not",
        fix="use z1",
        source="deepspeed/runtime/bf16_optimizer.py of deepspeed 0.19.8",
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.tp == plan.found.pp == 1,
        why="DeepSpeed's sequence parallelism goes with neither tensor ranks nor a pipeline",
        fix="use tp1 and pp1, or cp1",
        source=_GROUPS,
    ),
    Rule(
        field="tensor.sequence_parallel",
        holds=lambda plan: (
            plan.settings["schedule"] != "zb-h1"
            or plan.strategy.tp == 1
            or not plan.settings["tensor.sequence_parallel"]
        ),
        why="its zero-bubble schedule does not start with --sequence-parallel",
        fix="add nosp, or use 1f1b",
        source=f"megatron/arguments.py of commit {COMMIT}, validate_args",
    ),
    Rule(
        field="pp",
        holds=lambda plan: plan.found.pp == 1 or plan.model.learned_positions > 0,
        why="its pipeline stops at rotary positions, which its layers have as a list since 2024-12",
        fix="use pp1, or --target megatron",
        source=f"megatron/utils.py of commit {COMMIT}, update_rotary_pos_emb",
    ),
    whole_key_value_heads(f"megatron/model/transformer.py of commit {COMMIT}"),
    fsdp.one_group(_ENGINE, why="ZeRO shards over all data ranks", fix="use z1, or z3"),
    *SHARDS_AND_OFFLOAD,
)

# Options of Megatron-LM under the fork's names; its values of choices are in lower case.
_RENAMED = {
    "--num-query-groups": "--num-key-value-heads",
    "--norm-epsilon": "--layernorm-epsilon",
    "--rotary-base": "--rotary-position-embeddings-theta",
}
_IMPLIED = ("--group-query-attention", "--position-embedding-type")
"""What the renamed options say by themselves."""
_CARRIED = ("tensor_parallel", "sequence_parallel_size", "expert_parallel")
"""Parts of DeepSpeed's configuration that the options of Megatron say here."""


@cache
def known() -> frozenset[str]:
    """Every flag of its parser."""
    lines = Path(__file__).with_name("options.tsv").read_text(encoding="utf-8").splitlines()
    return frozenset(flag for line in lines if not line.startswith("#") for flag in line.partition("\t")[0].split(","))


def shape(plan: Plan) -> tuple[Flags, list[Problem]]:
    """The model in its options, and what none of them says."""
    said, _, problems = model_flags(plan.model)
    if plan.model.is_moe:
        why = "its experts are DeepSpeed's layers with capacities and one expert in every second layer"
        fix = "plan a dense model, or use --target megatron"
        return [], [Problem(what="the model has experts", why=why, fix=fix, field="model.moe")]
    flags: Flags = []
    for flag, value in said:
        if flag == "--position-embedding-type" and value == "rope":
            flags.append(("--use-rotary-position-embeddings", ""))
        if flag in _IMPLIED:
            continue
        name, lower = _RENAMED.get(flag, flag), value.lower() if flag == "--normalization" else value
        if name not in known():
            what = f"the model needs {flag} {value}".rstrip()
            why, fix = f"{TITLE} has no such option", "use --target megatron"
            problems.append(Problem(what=what, why=why, fix=fix, field=flag))
        flags.append((name, lower))
    flags.append(("--no-query-key-layer-scaling", ""))
    return flags, problems


def _beyond(plan: Plan) -> Iterator[Problem]:
    yield from shape(plan)[1]
    learned = plan.model.learned_positions
    if learned and plan.workload.seq_len > learned:
        what, why = f"workload: seq_len is {plan.workload.seq_len}", f"the model has {learned} learned positions"
        yield Problem(what=what, why=why, fix=f"use at most {learned}", field="workload.seq_len")


def parallel(plan: Plan) -> Flags:
    """The plan in its options."""
    strategy, recompute = plan.strategy, plan.strategy.recompute
    flags: Flags = [("--deepspeed", ""), ("--deepspeed_config", CONFIG), ("--zero-stage", str(strategy.data.zero))]
    flags.append(("--tensor-model-parallel-size", str(strategy.tp)))
    if plan.found.pp > 1:
        flags.append(("--pipeline-model-parallel-size", str(plan.found.pp)))
    else:
        flags.append(("--no-pipeline-parallel", ""))
    if plan.settings["schedule"] == "zb-h1":
        flags.append(("--enable-zbh1-pipeline", ""))
    if strategy.tp > 1 and plan.settings["tensor.sequence_parallel"]:
        flags.append(("--sequence-parallel", ""))
    if strategy.cp > 1:
        flags.append(("--ds-sequence-parallel-size", str(strategy.cp)))
    if recompute.kind != "none":
        flags += [("--deepspeed-activation-checkpointing", ""), ("--recompute-granularity", "full")]
        flags += [("--recompute-method", "uniform"), ("--recompute-num-layers", str(max(1, recompute.group)))]
    if strategy.offload.optimizer:
        flags.append(("--cpu-optimizer", ""))
    return flags


_ADAM = (("--optimizer", "adam"),)


def numbers(plan: Plan) -> Flags:
    """Batch, lengths and formats in its options."""
    workload, activations = plan.workload, plan.precision.activations
    positions = max(workload.seq_len, plan.model.learned_positions or plan.model.max_seq_len)
    flags: Flags = [
        ("--seq-length", str(workload.seq_len)),
        ("--max-position-embeddings", str(positions)),
        ("--micro-batch-size", str(plan.found.pipeline.micro_batch)),
        ("--global-batch-size", str(workload.global_batch)),
        ("--no-gradient-accumulation-fusion", ""),  # it is not fused either way, and asks for APEX's kernels with it
        *((("--optimizer", "sgd"), ("--sgd-momentum", "0.0")) if workload.optimizer == "sgd" else _ADAM),
    ]
    if activations in ("bf16", "fp16"):
        flags.append((f"--{activations}", ""))
    if workload.attention_kernel == "flash":
        flags.append(("--use-flash-attn-v2", ""))
    return flags


def deepspeed_keys(plan: Plan) -> dict[str, Any]:
    """DeepSpeed's configuration beside the options."""
    return {name: value for name, value in configuration(plan).items() if name not in _CARRIED}


def _write(plan: Plan) -> tuple[tuple[str, str], ...]:
    groups = {"MODEL": shape(plan)[0], "PARALLEL": parallel(plan), "WORKLOAD": numbers(plan)}
    steps = "--train-iters 20"
    if plan.workload.tokens is not None:
        steps = f"--train-samples {math.ceil(plan.workload.tokens / plan.workload.seq_len)}"
    vocab = f"--tokenizer-type NullTokenizer --vocab-size {plan.model.vocab}"
    arrays = [line for name, flags in groups.items() for line in _array(name, flags)]
    every = " ".join(f'"${{{name}[@]}}"' for name in (*groups, "TRAIN", "DATA"))
    text = [
        "#!/usr/bin/env bash",
        f"# Written by meshwright for {TITLE}, options of commit {COMMIT}.",
        f"# model: {one_line(plan.model.name)}, {plan.model.parameters:,} parameters",
        f"# plan: {one_line(plan.job.name or 'a plan')}",
        "#",
        f"# Needs MEGATRON_DEEPSPEED, the path of a checkout, and {CONFIG} beside this script. DATA_ARGS names your",
        "# data and its tokenizer; on several nodes set NODE_RANK, MASTER_ADDR and MASTER_PORT on each.",
        "set -euo pipefail",
        "",
        *(["export CUDA_DEVICE_MAX_CONNECTIONS=1  # --sequence-parallel asks for it", ""] if _ordered(plan) else []),
        "LAUNCH=(",
        f"  torchrun --nproc_per_node {plan.per_node} --nnodes {plan.nodes}",
        '  --node_rank "${NODE_RANK:-0}" --master_addr "${MASTER_ADDR:-localhost}"',
        '  --master_port "${MASTER_PORT:-6000}"',
        ")",
        *arrays,
        f"TRAIN=(${{TRAIN_ARGS:-{steps} --lr 1e-4 --min-lr 1e-5 --eval-iters 0 --log-interval 1}})",
        f"DATA=(${{DATA_ARGS:---data-path data/text_document {vocab}}})",
        "",
        f'"${{LAUNCH[@]}}" "${{MEGATRON_DEEPSPEED:?path of a checkout}}/pretrain_gpt.py" {every} "$@"',
        "",
    ]
    return (SCRIPT, "\n".join(text)), (CONFIG, json_text(nested_tables(deepspeed_keys(plan))))


def _ordered(plan: Plan) -> bool:
    return plan.strategy.tp > 1 and bool(plan.settings["tensor.sequence_parallel"])


def _array(name: str, flags: Flags) -> list[str]:
    lines = [f"  {flag} {_quoted(value)}".rstrip() if value else f"  {flag}" for flag, value in flags]
    return [f"{name}=(", *lines, ")"]


def _quoted(word: str) -> str:
    """A word of the script; what is asked for when it starts stays a variable."""
    return f'"{word}"' if word.startswith("${") else shlex.quote(word)


def _start(plan: Plan) -> str:
    return "MEGATRON_DEEPSPEED=path/to/Megatron-DeepSpeed bash train.sh"


NOTES = (
    Note(text="it imports a part of DeepSpeed that 0.19.8 left out: start it with 0.19.6"),
    Note(text="DATA_ARGS names the data: its loader has no mock data"),
    Note(
        text="its pipeline sums gradients after the last micro-batch, beside nothing: nodpov prices that",
        when=lambda plan: plan.found.pp > 1 and plan.strategy.dp > 1 and plan.strategy.data.overlap,
    ),
    Note(
        text="offload is said twice, as --cpu-optimizer and in ds_config.json: both are written",
        when=lambda plan: plan.strategy.offload.optimizer > 0,
    ),
)
_script = marked((".sh", ".slurm", ".sbatch"), ("--deepspeed",))


def _recognised(name: str, text: str) -> bool:
    return _script(name, text) and marked_script(text) and re.search(r"--deepspeed(?![\w-])", text) is not None


def read(files_: Files, devices: int | None = None) -> LaunchFile:
    """A launch script as a plan, with what DeepSpeed's file beside it says of ZeRO.

    Args:
        files_: the script, and DeepSpeed's configuration where it is there.
        devices: the number of devices of the job; by default those that the script starts.
    """
    return _read(read_script(text_of(files_, SCRIPT, _recognised)), devices, text_beside(files_, CONFIG))


def read_launch(script: Script, devices: int | None) -> LaunchFile:
    """A script that was read as bash means it; the configuration that it names says the stage of ZeRO."""
    words = [word.text for command in script.commands for word in command.words]
    named = [after for word, after in pairwise([*words, ""]) if word == "--deepspeed_config"]
    named += [word.partition("=")[2] for word in words if word.startswith("--deepspeed_config=")]
    found = [script.files[name] for path in named if (name := path.rpartition("/")[2]) in script.files]
    return _read(script, devices, known_text(found[-1]) if found else None)


def _read(script: Script, devices: int | None, config: str | None) -> LaunchFile:
    try:
        keys = parsed(config or "{}", "HJSON", "configuration of DeepSpeed")
    except InputError:
        keys = {}
    keys = keys if isinstance(keys, dict) else {}
    launch = read_flags(script, devices=devices, beside=_zero_of(keys))
    if launch.said and not any(one.option == _SWITCH for one in launch.said):
        whole = read_flags(_switched_on(script), devices=devices, beside=_zero_of(keys))
        said = tuple(one for one in whole.said if one.option != _SWITCH)
        launch = replace(whole, said=said, problems=(*whole.problems, _NOT_STARTED))
    problems = [
        one for one in launch.problems if not (one.field in _OWN and any(name in one.what for name in _OWN[one.field]))
    ]
    engine = KeyReader(keys=keys, file=(CONFIG, config or ""))
    refuse_beyond(engine)
    notes = (*launch.notes, *curricula(engine))
    return replace(launch, problems=(*problems, *disagreements(keys, launch), *engine.problems), notes=notes)


def _switched_on(script: Script) -> Script:
    """A script whose programs all start DeepSpeed."""
    on = word(_SWITCH)
    commands = (replace(one, words=(*one.words, on)) if launches((one,)) else one for one in script.commands)
    return replace(script, commands=tuple(commands))


_SWITCH = "--deepspeed"
_NOT_STARTED = Problem(
    what="--deepspeed is not given",
    why="without it the program trains without DeepSpeed: ZeRO and its own options do nothing",
    fix="give it, or check the script with --from megatron",
    field=_SWITCH,
)
_OWN = {"--tokenizer-type": ("HFTokenizer", "PretrainedFromHF"), "--position-embedding-type": ("alibi",)}
"""Values that its parser has, or that of BigScience's fork, and Megatron-LM's has not: positions by ALiBi have no
weights, and the scores that they are added to are those of attention that is not fused.
"""


def _zero_of(keys: Mapping[str, Any]) -> Flags:
    """The options that DeepSpeed's configuration stands for, where the script leaves them out."""
    if not keys:
        return []
    stage = value_of(keys, "zero_optimization.stage", 0)
    flags: Flags = [("--zero-stage", str(stage))] if stage in (0, 1, 2, 3) else []
    if value_of(keys, "zero_optimization.overlap_comm", stage == 3) is True:
        flags.append(("--overlap-grad-reduce", ""))
    if value_of(keys, "zero_optimization.offload_optimizer.device", "none") != "none":
        flags.append(("--optimizer-cpu-offload", ""))
    return flags


def _named(text: str) -> tuple[str, ...]:
    """Files of DeepSpeed that a script gives to its trainer."""
    return tuple(re.findall(r"--deepspeed[_-]config[ =]+[\"']?(?:[^\s\"'/]*/)*([^\s\"'/]+\.json)", text))


TARGET = OneStrategyTarget(
    name="megatron-deepspeed",
    title=TITLE,
    version=f"commit {COMMIT} (2025-07)",
    says=SAYS,
    rules=RULES,
    beyond=_beyond,
    write=_write,
    start=_start,
    notes=NOTES,
    read=read,
    script=read_launch,
    recognised=_recognised,
    beside=(CONFIG,),
    named=_named,
    elsewhere={
        "--overlap-grad-reduce": "zero_optimization.overlap_comm of DeepSpeed's configuration",
        "--optimizer-cpu-offload": "--cpu-optimizer and zero_optimization.offload_optimizer",
    },
    suggested=False,
    software="megatron-deepspeed",
)
