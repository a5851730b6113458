"""OLMo-core: the Python script that makes its configuration, by FSDP2 of PyTorch.

Classes and their defaults are those of olmo_core/nn/transformer/config.py and olmo_core/train/train_module of OLMo-core
2.x (commit fa6c5014c, 2026-06), https://github.com/allenai/OLMo-core. Batches count tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.specs.row import PlanRow
from meshwright.targets import overrides, pytorch_pipeline
from meshwright.targets.contract import Files, ReadTarget, file_of, marked
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared
from meshwright.targets.trainers.olmo_core_models import olmo_layers, olmo_model
from meshwright.targets.trainers.olmo_core_module import CLASS, FACTORY, LENGTH, LOADS, MODEL, TRAINS, script_keys

TITLE = "OLMo-core"
_recognised = marked((".py",), ("olmo_core",), ("TransformerConfig.",), ("TrainModuleConfig(",))
_T = f"{TRAINS}."
_MICRO, _BATCH = f"{_T}rank_microbatch_size", f"{LOADS}.global_batch_size"
_DP, _TP, _CP, _AC = f"{_T}dp_config", f"{_T}tp_config", f"{_T}cp_config", f"{_T}ac_config"
_PP, _EP, _FP8 = f"{_T}pp_config", f"{_T}ep_config", f"{_T}float8_config"
_NODE = 8
"""Devices of a node, where copies are one a node."""


_OPTIMIZERS = {
    "AdamWConfig": "adamw",
    "SkipStepAdamWConfig": "adamw",
    "AdamConfig": "adam",
    "LionConfig": "lion",
    "SkipStepLionConfig": "lion",
}
_CONTEXT = {"llama3": "ag", "zig_zag": "p2p", "ulysses": "a2a"}
_NOT_READ = {
    "autocast_precision": "weights that are cast at each product are not read",
}


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The script as a plan.

    Args:
        files: the script.
        devices: the number of devices of the job; one node where nobody says it.

    Raises:
        InputError: the text is no Python.
    """
    name, text = file_of(files, "olmo_core.py", _recognised)
    module = script_keys(name, text, devices)
    keys, over = overrides.laid_over(module.keys, files)
    reader = KeyReader(keys=keys, file=(name, text), over=over, problems=module.problems)
    counted = "get_world_size" if devices is None else "\n"  # the question for devices stands before
    asked = tuple(_asked({path: text for path, text in module.open.items() if counted not in text}, over))
    config = olmo_model(reader) if MODEL not in module.open else None
    row, notes = (None, ()) if asked else _row(reader, devices)
    launched = shared.launched(
        reader,
        row,
        precision=_precision(reader),
        config=config,
        notes=notes,
        questions=asked,
        optimizer=_optimizer(reader),
        seq_len=reader.get(LENGTH),
        software="pytorch-compiled" if reader.switch(f"{_T}compile_model") else "pytorch-eager",
    )
    if row is None or row.pp == 1 or launched.row is None:
        return launched
    return replace(launched, layout=_stages(reader, row))


def _asked(open_: Mapping[str, str], over: frozenset[str]) -> list[Problem]:
    """Questions for values that a plan needs and that do not stand in the file."""
    needed = (MODEL, TRAINS, LOADS, _MICRO, LENGTH, _BATCH, f"{_T}optim", _FP8)
    plan = (_DP, _TP, _CP, _AC, _PP, _EP)
    return [
        Problem(
            what=f"{path} is not known",
            why=f"the script makes it of {text}",
            fix=f"give --set {path}=VALUE",
            field=path,
        )
        for path, text in open_.items()
        if path not in over and (path in needed or path.startswith(plan))
    ]


def _row(reader: KeyReader, devices: int | None) -> tuple[PlanRow | None, tuple[str, ...]]:
    length = reader.degree(LENGTH, 4096)
    for name, why in _NOT_READ.items():
        if reader.get(f"{_T}{name}") is not None:
            reader.refuse(f"{_T}{name}", "given", why, "price its plan: check MODEL --plan PLAN")
    tp, pp, (kind, cp) = reader.degree(f"{_TP}.degree"), reader.degree(f"{_PP}.degree"), _context(reader)
    left = None if devices is None else devices // pp
    if devices is not None and devices % pp:
        reader.refuse(f"{_PP}.degree", pp, f"{devices} devices must be a multiple of it")
        return None, ()
    dp = shared.data_ranks(reader, left, tp=(f"{_TP}.degree", tp), cp=(f"{_CP}.degree", cp))
    reader.multiple *= pp
    if dp is None:
        return None, ()
    mbs = _sequences(reader, _MICRO, length)
    gbs = shared.steps_of(reader, _BATCH, _sequences(reader, _BATCH, length), mbs, dp)
    held, notes = _held(reader, dp, cp, pp)
    split: dict[str, Any] = {
        "tp": tp,
        "dp": dp,
        "cp": ((kind, cp),) if cp > 1 else (),
        "ep": _experts(reader, held, dp, tp),
    }
    return PlanRow(**split, mbs=mbs, gbs=gbs, **held, **_pipeline(reader, pp), **_recompute(reader)), notes


_SINGLE = ("1f1b", "gpipe")


def _pipeline(reader: KeyReader, pp: int) -> dict[str, Any]:
    """Degree, chunks of a rank and schedule of the pipeline."""
    if pp == 1:
        return {}
    said = str(reader.get(f"{_PP}.schedule", "interleaved_1F1B"))
    schedule = pytorch_pipeline.schedule_name(_SCHEDULES.get(said, said))
    if schedule is None:
        reader.refuse(f"{_PP}.schedule", said, "plans do not have it", "use single_1F1B or interleaved_1F1B")
        schedule = "interleaved"
    points = reader.get(f"{_PP}.split_points")
    stages = len(points) + 1 if isinstance(points, list) else pp if schedule in _SINGLE else 2 * pp
    if stages % pp or (schedule in _SINGLE and stages != pp):
        reader.refuse(f"{_PP}.split_points", points, f"it makes {stages} stages for {pp} ranks", "leave it out")
        stages = pp if schedule in _SINGLE else 2 * pp
    return {"pp": pp, "vpp": stages // pp, "schedule": schedule}


_SCHEDULES = {
    "single_1F1B": "1F1B",
    "interleaved_1F1B": "Interleaved1F1B",
    "gpipe": "GPipe",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv_zero_bubble": "ZBVZeroBubble",
}
"""PyTorch's name of a schedule by that of OLMo-core."""


def _stages(reader: KeyReader, row: PlanRow) -> tuple[int, ...] | None:
    """Layers of each virtual stage: as many each, the rest one each to those in the middle, then to the last."""
    layers, count = olmo_layers(reader), row.pp * row.vpp
    points = reader.get(f"{_PP}.split_points")
    if not isinstance(points, list) or len(points) != count - 1:
        each, more = divmod(layers, count)
        counts = [each + (0 < stage <= more) for stage in range(count - 1)]
        points = [sum(counts[: stage + 1]) for stage in range(count - 1)]
    found = tuple(end - start for start, end in pairwise([0, *points, layers]))
    if min(found) < 0 or min(found[1:-1], default=1) < 1:
        reader.refuse(f"{_PP}.split_points", points, f"it cuts {layers} layers into {list(found)}", "leave it out")
        return None
    return found


def _experts(reader: KeyReader, held: Mapping[str, Any], dp: int, tp: int) -> int:
    """Ranks over which experts are spread: those of one copy of the weights."""
    if reader.get(_EP) is None:
        return 1
    said, group = reader.get(f"{_EP}.degree"), held["shard_group"] or dp
    if reader.word(f"{_DP}.name") != "hsdp" or tp > 1:
        why = "experts are spread over the ranks of a copy in hsdp without tensor ranks alone"
        reader.refuse(_EP, "given", why, "use hsdp with num_replicas")
    elif said not in (group, -1):
        reader.refuse(f"{_EP}.degree", said, f"a copy of the weights has {group} ranks, which it must be", "use -1")
    return int(group)


def _sequences(reader: KeyReader, key: str, length: int) -> int:
    """Sequences of a number of tokens."""
    tokens = reader.degree(key, length)
    if tokens % length:
        reader.refuse(
            key, tokens, f"it counts tokens: a plan has whole sequences of {length}", "use a multiple of them"
        )
    return max(1, tokens // length)


def _context(reader: KeyReader) -> tuple[str, int]:
    if reader.get(_CP) is None:
        return "ag", 1
    made = reader.word(f"{_CP}.{FACTORY}")
    if made not in _CONTEXT:
        reader.refuse(_CP, made or "given", f"{', '.join(_CONTEXT)} are read", "make it by one of these")
    return _CONTEXT.get(made, "ag"), reader.degree(f"{_CP}.degree")


def _held(reader: KeyReader, dp: int, cp: int, pp: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What data ranks hold, and what was taken of nodes."""
    ranks = dp * cp
    name = reader.word(f"{_DP}.name", "single" if ranks == 1 else "ddp")
    if name not in ("fsdp", "hsdp", "single"):
        reader.refuse(f"{_DP}.name", name, "how replicas keep their weights is not read", "use fsdp or hsdp")
    copies, group = reader.get(f"{_DP}.num_replicas"), reader.get(f"{_DP}.shard_degree")
    notes: tuple[str, ...] = ()
    if name != "hsdp":
        copies = 1
    elif copies is None:
        of_node = not isinstance(group, int)
        copies = max(1, ranks // (_NODE if of_node else max(1, int(group or 1))))
        notes = (f"weights are whole on each node, taken as {_NODE} devices",) if of_node and copies > 1 else ()
    if not isinstance(copies, int) or copies < 1 or ranks % copies:
        reader.refuse(f"{_DP}.num_replicas", copies, f"must divide {ranks} data ranks", "use a divisor")
        copies = 1
    # A pipeline keeps what it gathered.
    row = shared.sharded_row(
        dp, mbs=1, gbs=dp, sharded=ranks > 1, replicate=copies, context=("ag", cp), reshard=pp == 1
    )
    if pp > 1 and row.sharding == "hsdp":
        why = "copies that keep gathered weights for all micro-batches are in no plan"
        reader.refuse(f"{_DP}.name", name, why, "use fsdp with pp_config")
    return {"sharding": row.sharding, "shard_group": row.shard_group}, notes


def _recompute(reader: KeyReader) -> dict[str, Any]:
    if reader.get(_AC) is None:
        return {}
    mode = reader.word(f"{_AC}.mode", "full")
    if mode == "full":
        return {"recompute": "full"}
    modules = reader.get(f"{_AC}.modules")
    if mode == "selected_modules" and modules in (["blocks.*.feed_forward"], _every_feed_forward(reader)):
        return {"recompute": "sel", "recompute_modules": ("mlp",)}
    why = "full recompute, and that of blocks.*.feed_forward, are read"
    reader.refuse(_AC, f"{mode} {modules or ''}".strip(), why, "use full")
    return {}


def _every_feed_forward(reader: KeyReader) -> list[str]:
    """The feed-forward part of each layer by its own name."""
    return [f"blocks.{at}.feed_forward" for at in range(olmo_layers(reader))]


def _optimizer(reader: KeyReader) -> str:
    said = str(reader.get(f"{_T}optim.{CLASS}", "AdamWConfig"))
    if said not in _OPTIMIZERS:
        reader.refuse(f"{_T}optim", said, f"{', '.join(_OPTIMIZERS)} can be planned", "use AdamWConfig")
    if reader.get(f"{_T}optim.dtype") not in (None, "float32"):
        reader.refuse(f"{_T}optim.dtype", reader.get(f"{_T}optim.dtype"), "moments are read in fp32", "leave it out")
    return _OPTIMIZERS.get(said, "adamw")


def _precision(reader: KeyReader) -> Precision:
    """Formats: weights and their gradients in fp32, gathered and computed with in `param_dtype`, or in 8 bits."""
    said = reader.word(f"{_DP}.param_dtype", "float32")
    if said not in ("float32", "bfloat16"):
        reader.refuse(f"{_DP}.param_dtype", said, "must be float32 or bfloat16", "use bfloat16")
    if said != "bfloat16":
        return PRECISIONS["fp32"]
    reduced = "bf16" if reader.word(f"{_DP}.reduce_dtype", "float32") == "bfloat16" else "fp32"
    low, gathered = _low(reader)
    sent = {"gather_dtype": gathered} if gathered else {}
    return stated(PRECISIONS[low or "bf16"], {"grad_dtype": "fp32", "reduce_dtype": reduced, **sent})


def _low(reader: KeyReader) -> tuple[str, str]:
    """The 8-bit format of products, but for the head's, and that in which weights are gathered; empty in 16 bits."""
    if reader.get(_FP8) is None or not reader.switch(f"{_FP8}.enabled", default=True):
        return "", ""
    if reader.word(f"{MODEL}.{FACTORY}") in ("olmoe_1b_7b", "llama_like_moe"):
        why = "products of experts stay in 16 bits beside those of attention in 8, which no recipe here has"
        reader.refuse(_FP8, "enabled", why, "use enabled=False to check the rest")
        return "", ""
    if reader.get(f"{_FP8}.modules_to_ignore"):
        reader.refuse(
            f"{_FP8}.modules_to_ignore", "given", "which products stay in 16 bits is not read", "leave it out"
        )
    if reader.get(f"{_FP8}.ao_mx") is not None:
        return "mxfp8", ""
    every = reader.switch(f"{_FP8}.ao.enable_fsdp_float8_all_gather")
    return "fp8", "fp8" if every or reader.word(f"{_FP8}.ao.{FACTORY}") == "recommended" else ""


TARGET = ReadTarget(
    name="olmo-core",
    title=TITLE,
    version="2.x (2026-06)",
    like="torchtitan",
    says=None,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_options(launch.words),
    software="pytorch-compiled",
)
