"""A configuration of MaxText as a plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from meshwright.formats.launch_file import Dealt, LaunchFile
from meshwright.library.models import find_name, spec
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import fsdp
from meshwright.targets.contract import Files
from meshwright.targets.keys import KeyFile, KeyReader
from meshwright.targets.maxtext import remat
from meshwright.targets.maxtext.models import MODELS, READ_AS
from meshwright.targets.maxtext.pipeline import read_stages
from meshwright.targets.maxtext.shape import EARLIER, described

TITLE = "MaxText"
CONFIG = "maxtext.yml"
AXES = ("tensor", "context", "expert", "fsdp", "pipeline", "data")
"""Axes of the mesh, those that talk most first: they are put inside slices before the others."""
QUANTIZATIONS = {"fp8": "te_fp8_currentscaling", "mxfp8": "te_mxfp8", "nvfp4": "te_nvfp4", "int8": "int8"}
"""MaxText's `quantization` of each format of products; its own `fp8` accumulates no gradients."""
_PRODUCTS = {name: precision for precision, name in QUANTIZATIONS.items()} | dict.fromkeys(
    ("fp8", "fp8_gpu", "fp8_full", "nanoo_fp8", "fp8_nanoo", "te_fp8_delayedscaling"), "fp8"
)
"""Format of products by MaxText's `quantization`."""
CONTEXTS = {"ag": "all_gather", "p2p": "ring", "a2a": "ulysses"}
"""MaxText's `context_parallel_strategy` of each kind."""
FILE = KeyFile(title=TITLE, name=CONFIG, package="meshwright.targets.maxtext", marks=())
_MARK = re.compile(
    r"^[ \t]*(?:(?:ici|dcn)_\w+_parallelism|per_device_batch_size|base_emb_dim|use_sft)[ \t]*:", re.MULTILINE
)


def recognised(name: str, text: str) -> bool:
    """Whether a file is one of MaxText: YAML with a key that no other trainer has."""
    return FILE.recognised(name, text) and _MARK.search(text) is not None


_ATTENTION = (
    *("autoselected", "dot_product", "flash", "cudnn_flash_te", "cudnn_flash_jax", "paged", "vllm_rpa"),
    *("vllm_batched_rpa", "mha", "gpu_flash_xla", "gpu_flash_triton"),
)
"""Kernels of layers/attention_op.py, maxtext 0.2.5, and of its first releases."""


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A YAML configuration as a plan.

    Args:
        files: the configuration.
        devices: the number of devices of the job; by default what the degrees multiply to.

    Raises:
        InputError: the text is no YAML.
    """
    reader = FILE.read(files)
    from meshwright.targets.maxtext.lora import lora_said  # plans are written without these
    from meshwright.targets.maxtext.states import read_states

    notes = _of_the_base(reader)
    base = str(reader.get("base_config", "base.yml"))
    if base.rpartition("/")[2] != "base.yml":
        why = "keys that it sets are not in this file" if "inference" not in base else "it serves a model"
        reader.refuse("base_config", base, why, "check the file that a training is started with")
    described_too = bool({"base_emb_dim", "decoder_block"} & set(reader.keys))
    begins = tuple(one for one in _OF_A_TRAINING if not (described_too and one == "base_config"))
    if not any(name.startswith(begins) for name in reader.keys):
        why, fix = "the file describes a model, and no training of it", "check the file or script that trains it"
        reader.refuse("per_device_batch_size", None, why, fix)
        return reader.launch(None, model=_named(reader), notes=notes)
    sizes = _sizes(reader, devices)
    if sizes is None:
        return reader.launch(None)
    model = _named(reader)
    row, dealt = _row(reader, sizes, _layers(model))
    wide = reader.word("dtype", "bfloat16") == "float32"
    seq_len = reader.degree("max_target_length", 2048)
    stated = fsdp.workload(row, wide=wide, seq_len=seq_len)
    if reader.choice("attention", _ATTENTION) == "dot_product":
        stated["attention_kernel"] = "materialised"
    quantization = reader.word("quantization")
    if quantization in _PRODUCTS:
        stated["precision"] = PRECISIONS[_PRODUCTS[quantization]]
    elif quantization not in ("", "te_no_quant"):
        why = f"its products are not priced; {', '.join(_PRODUCTS)} are"
        reader.refuse("quantization", quantization, why, "leave it out, or use one of these")
    stated |= read_states(reader, stated["precision"])
    if (lora := lora_said(reader)) is not None:
        stated["lora"] = lora
    return reader.launch(row, dealt=dealt, workload=stated, model=model, notes=notes)


def _layers(model: Mapping[str, Any]) -> int | None:
    """Layers of a model that is described, or named as one of the library."""
    known = find_name(str(model.get("name", "")))
    return model.get("num_layers") or (None if known is None else spec(known).num_layers)


_OF_A_TRAINING = ("per_device_batch", "ici_", "dcn_", "remat_policy", "steps", "base_config", "model_name", "run_name")
"""How keys begin that a training has, one at least; models have lengths and formats of their own too."""
_OF_A_PLAN = re.compile(
    r"parallelism|batch|remat|dtype|quant|dim|num_|length|attention|expert|moe|shard|offload|pipeline|layer|fused|scale"
    r"|rope|vocab|optim|opt_|lora|accumulation|fp8|int8|checkpoint_name|sparse|norm|embed|model"
)
"""Words in keys that may be of a plan or of the model."""


def _of_the_base(reader: KeyReader) -> tuple[str, ...]:
    """Takes keys of another release: all that its own base.yml has, and those that name profiles, logs and data."""
    shipped = PurePath(reader.file[0]).name == "base.yml"
    reader.problems = [one for one in reader.problems if one.field not in EARLIER]
    later = [
        one.field
        for one in reader.problems
        if one.what.startswith("unknown key")
        and ((shipped and one.field not in reader.over) or not _OF_A_PLAN.search(one.field))
    ]
    reader.problems = [
        one for one in reader.problems if one.field not in later and not (shipped and one.field not in reader.over)
    ]
    return (f"keys of another MaxText, not read: {', '.join(later)}",) if later else ()


_OURS = {theirs: ours for ours, theirs in MODELS.items()} | READ_AS


def _named(reader: KeyReader) -> dict[str, Any]:
    """The model of a file by its name, or as its keys describe it."""
    name = reader.word("model_name", "default")
    if reader.switch("override_model_config"):
        why = "other keys change the shape of the model, and are not read"
        reader.refuse("override_model_config", True, why, "name the model before the file: check MODEL FILE")
    return described(reader) if name == "default" else {"name": _OURS.get(name, name)}


_OTHER_AXES = (
    "sequence",
    "tensor_sequence",
    "context_usp_ulysses",
    "context_autoregressive",
    "autoregressive",
    "diloco",
)
"""Axes of the mesh that plans do not have."""


def _sizes(reader: KeyReader, devices: int | None) -> dict[str, int] | None:
    """Degree of each axis, both levels multiplied; one of -1 is what is left of the devices."""
    found, free = {}, []
    for level in ("ici", "dcn"):
        for axis in _OTHER_AXES:
            path = f"{level}_{axis}_parallelism"
            if path in reader.keys and reader.get(path, 1) != 1:
                reader.refuse(path, reader.get(path), "plans do not have this axis", f"use {', '.join(AXES)}")
        if reader.get(f"{level}_parallelism"):
            path = f"{level}_parallelism"
            reader.refuse(path, reader.get(path), "degrees are read one by one", f"use {level}_NAME_parallelism")
    for axis in AXES:
        defaults = {"ici": -1 if axis == "fsdp" else 1, "dcn": -1 if axis == "data" else 1}
        parts = [reader.get(f"{level}_{axis}_parallelism", usual) for level, usual in defaults.items()]
        if any(not isinstance(part, int) or part == 0 or part < -1 for part in parts):
            reader.refuse(f"ici_{axis}_parallelism", parts, "must be a degree, or -1 for what is left")
            return None
        found[axis] = math.prod(part for part in parts if part > 0)
        free += [axis] * (-1 in parts)
    # Weights are cut along another dimension by these ranks, which hold sequences of their own as the others do.
    crosswise = [reader.get(f"{level}_fsdp_transpose_parallelism", 1) for level in ("ici", "dcn")]
    if any(type(part) is not int or part < 1 for part in crosswise):
        reader.refuse("ici_fsdp_transpose_parallelism", crosswise, "must be a degree")
        return None
    found["fsdp"] *= math.prod(crosswise)
    if free:
        known = reader.multiple = math.prod(found.values())
        if devices is None or devices % known:
            left = "the devices" if devices is None else f"{devices} devices, which {known} do not divide"
            fix = "say --gpus" if devices is None else f"say --gpus with a multiple of {known}"
            reader.refuse(f"ici_{free[0]}_parallelism", -1, f"one degree is what is left of {left}", fix)
            return None
        found["fsdp" if "fsdp" in free else free[0]] *= devices // known
    return found


def _row(reader: KeyReader, sizes: dict[str, int], layers: int | None) -> tuple[PlanRow, Dealt | None]:
    world, pp, ep = math.prod(sizes.values()), sizes["pipeline"], sizes["expert"]
    tp, cp = sizes["tensor"], sizes["context"]
    dp = sizes["data"] * sizes["fsdp"] * ep
    steps = reader.degree("gradient_accumulation_steps")
    size = reader.get("per_device_batch_size", 12)
    gbs = round(float(size) * world * steps) if isinstance(size, int | float) and size > 0 else dp
    m = reader.degree("num_pipeline_microbatches", pp) if pp > 1 else steps
    if gbs % (dp * m):
        why = f"{gbs} sequences a step must be a multiple of data ranks {dp} x micro-batches {m}"
        reader.refuse("per_device_batch_size", size, why)
    vpp, dealt = read_stages(reader, pp, layers) if pp > 1 else (1, None)
    kinds = {said: ours for ours, said in CONTEXTS.items()}
    around = kinds.get(reader.choice("context_parallel_strategy", (*kinds, "ulysses"), "all_gather"), "ag")
    kind, modules, offload = remat.remat_of(reader)
    row = PlanRow(
        tp=tp,
        cp=((around, cp),) if cp > 1 else (),
        pp=pp,
        vpp=vpp,
        ep=ep,
        dp=dp,
        **fsdp.sharding(sizes["fsdp"] * ep * cp > 1, dp=dp, replicate=sizes["data"], cp=cp),
        mbs=max(1, gbs // (dp * m)),
        gbs=gbs,
        schedule=("gpipe" if vpp == 1 else "breadth-first") if pp > 1 else "1f1b",
        recompute=kind,
        recompute_modules=modules or ("core_attn",),
        offload=offload,
    )
    return row, dealt
