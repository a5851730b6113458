"""OLMo-core: the Python script that makes its configuration, by FSDP2 of PyTorch.

Classes and their defaults are those of olmo_core/nn/transformer/config.py and olmo_core/train/train_module of OLMo-core
2.x (commit fa6c5014c, 2026-06), https://github.com/allenai/OLMo-core. Batches count tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.specs.row import PlanRow
from meshwright.targets import overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared
from meshwright.targets.trainers.olmo_core_module import (
    CLASS,
    FACTORY,
    LOADS,
    MODEL,
    SAME,
    TRAINS,
    WINDOW,
    script_keys,
)

TITLE = "OLMo-core"
_recognised = marked((".py",), ("olmo_core",), ("TransformerConfig.",), ("TrainModuleConfig(",))
_T = f"{TRAINS}."
_MICRO, _LENGTH, _BATCH = f"{_T}rank_microbatch_size", f"{_T}max_sequence_length", f"{LOADS}.global_batch_size"
_DP, _TP, _CP, _AC = f"{_T}dp_config", f"{_T}tp_config", f"{_T}cp_config", f"{_T}ac_config"
_NODE = 8
"""Devices of a node, where copies are one a node."""


class _Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
    width: int
    kv_heads: int = 0


_OLMO = {
    "14M": _Shape(128, 4, 8, 512),
    "30M": _Shape(256, 4, 8, 768),
    "60M": _Shape(384, 8, 8, 1536),
    "100M": _Shape(512, 12, 8, 2048),
    "190M": _Shape(768, 12, 12, 3072),
    "370M": _Shape(1024, 16, 16, 4096),
    "760M": _Shape(1536, 16, 16, 6144),
    "3B": _Shape(3328, 16, 16, 13_312),
    "7B": _Shape(4096, 32, 32, 11_008),
    "13B": _Shape(5120, 40, 40, 13_824),
    "32B": _Shape(5120, 64, 40, 27_648, 8),
}
_SHAPES: dict[str, tuple[str, _Shape]] = {
    **{f"olmo2_{size}": ("olmo2", shape) for size, shape in _OLMO.items()},
    **{f"olmo3_{size}": ("olmo3", shape) for size, shape in _OLMO.items()},
    "olmo2_1B": ("olmo2", _Shape(2048, 18, 16, 8192)),
    "olmo2_1B_v2": ("olmo2", _Shape(2048, 16, 16, 8192)),
    "olmo3_1B": ("olmo3", _Shape(2048, 16, 16, 8192)),
    "olmo2_600M": ("olmo2", _Shape(1344, 16, 16, 5376)),
    "olmo3_600M": ("olmo3", _Shape(1280, 16, 16, 5120)),
    "llama2_271M": ("llama", _Shape(1024, 16, 8, 2816)),
    "llama2_1B": ("llama", _Shape(2048, 18, 16, 5632)),
    "llama2_7B": ("llama", _OLMO["7B"]),
    "llama2_13B": ("llama", _OLMO["13B"]),
    "llama2_26B": ("llama", _Shape(5120, 80, 40, 13_824)),
    "llama2_70B": ("llama", _Shape(8192, 80, 64, 28_672, 8)),
    "llama3_1B": ("llama", _Shape(2048, 16, 32, 8192, 8)),
    "llama3_8B": ("llama", _Shape(4096, 32, 32, 14_336, 8)),
    "llama3_405B": ("llama", _Shape(16_384, 126, 128, 53_248, 8)),
}
"""Family of the transformers library and sizes by the name of the function that makes the model."""
_PLAIN = ("vocab_size", "n_layers", "n_heads", "n_kv_heads", FACTORY, WINDOW)
_OPTIMIZERS = {
    "AdamWConfig": "adamw",
    "SkipStepAdamWConfig": "adamw",
    "AdamConfig": "adam",
    "LionConfig": "lion",
    "SkipStepLionConfig": "lion",
}
_CONTEXT = {"llama3": "ag", "zig_zag": "p2p", "ulysses": "a2a"}
_NOT_READ = {
    "pp_config": "its stages are not read",
    "ep_config": "how it deals experts is not read",
    "autocast_precision": "weights that are cast at each product are not read",
}


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The script as a plan.

    Args:
        files: the script.
        devices: of the job; one node where nobody says it.

    Raises:
        InputError: the text is no Python.
    """
    name, text = file_of(files, "olmo_core.py", _recognised)
    module = script_keys(name, text, devices)
    keys, over = overrides.laid_over(module.keys, files)
    reader = KeyReader(keys=keys, file=(name, text), over=over, problems=module.problems)
    counted = "get_world_size" if devices is None else "\n"  # the question for devices stands before
    asked = tuple(_asked({path: text for path, text in module.open.items() if counted not in text}, over))
    config = _model(reader) if MODEL not in module.open else None
    row, notes = (None, ()) if asked else _row(reader, devices)
    return shared.launched(
        reader,
        row,
        precision=_precision(reader),
        config=config,
        notes=notes,
        questions=asked,
        optimizer=_optimizer(reader),
        seq_len=reader.get(_LENGTH),
        software="pytorch-compiled" if reader.switch(f"{_T}compile_model") else "pytorch-eager",
    )


def _asked(open_: Mapping[str, str], over: frozenset[str]) -> list[Problem]:
    """Questions for values that a plan needs and that do not stand in the file."""
    needed = (MODEL, TRAINS, LOADS, _MICRO, _LENGTH, _BATCH, *(f"{_T}{one}" for one in ("optim", "float8_config")))
    plan = tuple(f"{one}" for one in (_DP, _TP, _CP, _AC, *(f"{_T}{name}" for name in ("pp_config", "ep_config"))))
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


def _model(reader: KeyReader) -> Mapping[str, Any] | None:
    """The model in the words of the transformers library; None of those that are not known."""
    made = reader.word(f"{MODEL}.{FACTORY}")
    known = {name.lower(): shape for name, shape in _SHAPES.items()}
    if made not in known:
        reader.refuse(MODEL, reader.get(f"{MODEL}.{FACTORY}"), f"{', '.join(_SHAPES)} are read", "name the model")
        return None
    family, shape = known[made]
    for name in reader.get(MODEL):
        if name not in (*_PLAIN, *SAME):
            reader.refuse(f"{MODEL}.{name}", "given", "what it changes of the model is not read", "name the model")
    heads = reader.degree(f"{MODEL}.n_heads", shape.heads)
    layers = reader.degree(f"{MODEL}.n_layers", shape.layers)
    windows = _windows(reader, family, layers)
    return {
        **windows,
        "model_type": "olmo3" if windows else family,
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": reader.degree(f"{MODEL}.n_kv_heads", shape.kv_heads or heads),
        "intermediate_size": shape.width,
        "vocab_size": reader.degree(f"{MODEL}.vocab_size", 100_352),
        "max_position_embeddings": reader.degree(_LENGTH, 4096),
        "tie_word_embeddings": False,
        "rope_theta": 500_000,
    }


def _windows(reader: KeyReader, family: str, layers: int) -> dict[str, int]:
    """The width of windows that are those of Olmo 3: three layers with one, then one without."""
    key = f"{MODEL}.{WINDOW}"
    if reader.get(key) is None:
        return {}
    pattern, first = reader.get(f"{key}.pattern"), reader.get(f"{key}.force_full_attention_on_first_layer")
    three_and_one = isinstance(pattern, list) and len(pattern) == 4 and len({*pattern[:3]}) == 1 and pattern[3] == -1
    if (
        family in ("olmo2", "olmo3")
        and three_and_one
        and first is False  # it is forced by default
        and layers % 4 == 0
        and isinstance(pattern[0], int)
        and pattern[0] > 0
    ):
        return {"sliding_window": pattern[0]}
    why = "windows on three layers of four, the first among them, are read"
    reader.refuse(key, pattern or "given", why, "name the model")
    return {}


def _row(reader: KeyReader, devices: int | None) -> tuple[PlanRow | None, tuple[str, ...]]:
    length = reader.degree(_LENGTH, 4096)
    for name, why in _NOT_READ.items():
        if reader.get(f"{_T}{name}") is not None:
            reader.refuse(f"{_T}{name}", "given", why, "price its plan: check MODEL --plan PLAN")
    tp, (kind, cp) = reader.degree(f"{_TP}.degree"), _context(reader)
    dp = shared.data_ranks(reader, devices, tp=(f"{_TP}.degree", tp), cp=(f"{_CP}.degree", cp))
    if dp is None:
        return None, ()
    mbs = _sequences(reader, _MICRO, length)
    gbs = shared.steps_of(reader, _BATCH, _sequences(reader, _BATCH, length), mbs, dp)
    held, notes = _held(reader, dp, cp)
    again = _recompute(reader)
    return PlanRow(tp=tp, dp=dp, cp=((kind, cp),) if cp > 1 else (), mbs=mbs, gbs=gbs, **held, **again), notes


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


def _held(reader: KeyReader, dp: int, cp: int) -> tuple[dict[str, Any], tuple[str, ...]]:
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
    row = shared.sharded_row(dp, mbs=1, gbs=dp, sharded=ranks > 1, replicate=copies, context=("ag", cp))
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
    shapes = {name.lower(): shape for name, (_, shape) in _SHAPES.items()}
    shape = shapes.get(reader.word(f"{MODEL}.{FACTORY}"))
    count = reader.degree(f"{MODEL}.n_layers", shape.layers if shape is not None else 1)
    return [f"blocks.{at}.feed_forward" for at in range(count)]


def _optimizer(reader: KeyReader) -> str:
    said = str(reader.get(f"{_T}optim.{CLASS}", "AdamWConfig"))
    if said not in _OPTIMIZERS:
        reader.refuse(f"{_T}optim", said, f"{', '.join(_OPTIMIZERS)} can be planned", "use AdamWConfig")
    if reader.get(f"{_T}optim.dtype") not in (None, "float32"):
        reader.refuse(f"{_T}optim.dtype", reader.get(f"{_T}optim.dtype"), "moments are read in fp32", "leave it out")
    return _OPTIMIZERS.get(said, "adamw")


def _precision(reader: KeyReader) -> Precision:
    """Formats: weights and their gradients in fp32, gathered and computed with in `param_dtype`."""
    if reader.switch(f"{_T}float8_config.enabled", default=False):
        reader.refuse(f"{_T}float8_config", "enabled", "which products are in fp8 is not read", "use enabled=False")
    said = reader.word(f"{_DP}.param_dtype", "float32")
    if said not in ("float32", "bfloat16"):
        reader.refuse(f"{_DP}.param_dtype", said, "must be float32 or bfloat16", "use bfloat16")
    if said != "bfloat16":
        return PRECISIONS["fp32"]
    reduced = "bf16" if reader.word(f"{_DP}.reduce_dtype", "float32") == "bfloat16" else "fp32"
    return stated(PRECISIONS["bf16"], {"grad_dtype": "fp32", "reduce_dtype": reduced})


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
