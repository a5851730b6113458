"""A configuration of DeepSpeed as a plan, with what the trainer around it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.data_words import in_order
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import adapters, hugging_face, zero_offload
from meshwright.targets.contract import Files, marked_lines
from meshwright.targets.deepspeed import CONFIG, TITLE
from meshwright.targets.key_texts import Keys
from meshwright.targets.keys import KeyFile, KeyReader, value_of

_BOTH_NAMES = frozenset(
    (
        *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters"),
        *("max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold"),
        *("use_all_reduce_for_fetch_params", "allgather_sequential"),
    )
)
"""Keys of `zero_optimization` that DeepSpeed takes with `stage3_` before them and without."""


def _one_name(keys: Keys) -> Keys:
    """Keys by the name that the table of facts has, without comments, which DeepSpeed passes over."""
    found = {name: value for name, value in keys.items() if not name.startswith(("_", "//"))}
    if "bfloat16" in found:  # its earlier name, which DeepSpeed still takes
        found.setdefault("bf16", found.pop("bfloat16"))
    zero = found.get("zero_optimization")
    if isinstance(zero, bool):  # as its first files have it: on is stage 1
        found["zero_optimization"] = {"stage": 1 if zero else 0}
    elif isinstance(zero, dict):
        named = {f"stage3_{name}" if name in _BOTH_NAMES else name: value for name, value in zero.items()}
        found["zero_optimization"] = named
    return found


_NAMES = r"(?:zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)"
_BARE = marked_lines(rf"^[ \t{{,]*{_NAMES}[ \t]*:", suffixes=(".json", ".hjson"))
_AT_THE_TOP = marked_lines(rf"^[\"']?{_NAMES}[\"']?[ \t]*:", r"^[\"']?zero_optimization[\"']?[ \t]*:")
_OF_A_MODEL = re.compile(r"^[ \t{,]*[\"']?(?:num[_-]layers|hidden[_-]size|model)[\"']?[ \t]*:", re.MULTILINE)
"""What stands in files of programs that lay its keys beside their own, as GPT-NeoX does."""


def _written_otherwise(name: str, text: str) -> bool:
    """Whether it is a configuration in HJSON, which its loader takes, or in YAML, which programs make it of."""
    return (_BARE(name, text) or _AT_THE_TOP(name, text)) and _OF_A_MODEL.search(text) is None


FILE = KeyFile(
    title=TITLE,
    name=CONFIG,
    package="meshwright.targets.deepspeed",
    marks=(('"zero_optimization"', '"train_micro_batch_size'),),
    of_lines=_written_otherwise,
    also=(".hjson",),
    plain=_one_name,
)


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A JSON configuration as a plan, and what the trainer's arguments beside it say.

    Args:
        files: the configuration, and `training_args.json` where it is there.
        devices: the number of devices of the job; by default those that the batch sizes imply.

    Raises:
        InputError: the text is no JSON.
    """
    reader = FILE.read(files)
    return launch_of(
        reader, hugging_face.read_arguments(files, reader, devices), devices, adapters.read_adapters(files, reader)
    )


def launch_of(
    reader: KeyReader,
    trainer: hugging_face.Arguments,
    devices: int | None,
    tuning: Mapping[str, Any] = MappingProxyType({}),
) -> LaunchFile:
    """A configuration as a plan.

    Args:
        reader: its keys.
        trainer: what the program around it says.
        devices: the number of devices of the job.
        tuning: fields of a workload that say the adapters.
    """
    from meshwright.targets.deepspeed.beyond import curricula, refuse_beyond  # who plans reads no file

    tp, cp = max(1, reader.number("tensor_parallel.autotp_size")), reader.degree("sequence_parallel_size")
    refuse_beyond(reader)
    ep = reader.degree("expert_parallel.autoep_size") if reader.switch("expert_parallel.enabled") else 1
    etp = reader.degree("expert_parallel.expert_tensor_parallel_size")
    shards = _shards(reader)  # told also where the batch is left open
    if open_to_trainer := _left_to_trainer(reader, trainer):
        return reader.launch(None, questions=(open_to_trainer,), notes=trainer.notes)
    batch, mbs, steps = _batches(reader, devices or trainer.devices, tp * cp, trainer)
    if batch is None:
        return reader.launch(None)
    dp = batch // (mbs * steps)
    row = PlanRow(
        tp=tp,
        sp=tp == 1,
        cp=(("a2a", cp),) if cp > 1 else (),
        ep=ep,
        etp=etp,
        dp=dp,
        mbs=mbs,
        gbs=batch,
        recompute=trainer.recompute,
        **shards,
    )
    workload = {
        "global_batch": batch,
        "precision": PRECISIONS[_dtype(reader, trainer)],
        "optimizer": _optimizer(reader, trainer.optimizer),
        "seq_len": trainer.seq_len,
        "attention_kernel": trainer.attention,
        **trainer.software,
        **tuning,
    }
    return reader.launch(row, workload=workload, notes=(*trainer.notes, *curricula(reader)))


def _shards(reader: KeyReader) -> dict[str, Any]:
    """What ZeRO shards, moves and overlaps, as fields of a row."""
    zero = reader.get("zero_optimization.stage", 0)
    return {
        "sharding": f"z{zero}" if zero in (0, 1, 2, 3) else "z0",
        "offload": zero_offload.words(
            optimizer=_optimizer_offload(reader), weights=_weights_offload(reader), zero=zero
        ),
        "dp_overlap": reader.switch("zero_optimization.overlap_comm", default=zero == 3),
        "data_words": _exchanges(reader) if zero == 3 else (),
    }


def _exchanges(reader: KeyReader) -> tuple[str, ...]:
    """What part of ZeRO++ is used: weights in int8, gradients in int4, a second shard near by."""
    near = reader.number("zero_optimization.zero_hpz_partition_size", 1)
    words = [f"hpz{near}"] if near > 1 else []
    words += ["qw-int8"] if reader.switch("zero_optimization.zero_quantized_weights") else []
    words += ["qg-int4"] if reader.switch("zero_optimization.zero_quantized_gradients") else []
    return in_order(tuple(words))


def _dtype(reader: KeyReader, trainer: hugging_face.Arguments) -> str:
    """Format of the weights that are computed with; "auto" is what the trainer's own arguments say, and so is a format
    that the file leaves out.

    Source: accelerate 1.15.0, utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision.
    """
    names = [f"{name}.enabled" for name in ("bf16", "fp16")]
    told = [name for name in names if name[:4] not in reader.keys or reader.word(name) == "auto"]
    on = [name for name in names if (trainer.dtype == name[:4] if name in told else reader.switch(name))]
    if len(on) > 1:
        reader.refuse(on[1], True, "DeepSpeed starts with bf16 or with fp16, not with both", "leave one out")
    return on[0][:4] if on else "fp32"


def _left_to_trainer(reader: KeyReader, trainer: hugging_face.Arguments) -> Problem | None:
    """Asks for what is "auto" where no trainer's arguments are there; None where nothing is."""
    if trainer.given:
        return None
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16.enabled")
    ways = ("per_device_train_batch_size=N", "gradient_accumulation_steps=N", "bf16=true")
    every = (*names, "train_batch_size", "fp16.enabled")
    left = [path for path in every if str(value_of(reader.keys, path, "")).strip().lower() == "auto"]
    asked = [way for name, way in zip(names, ways, strict=True) if name in left]
    if not asked and "fp16.enabled" in left:
        asked = ["fp16=true"]
    if not asked and "train_batch_size" in left and names[0] not in reader.keys:
        asked = [ways[0]]
    if not asked:
        return None
    many = len(left) > 1
    what = f"{', '.join(left[:-1])} and {left[-1]} are 'auto'" if many else f"{left[0]} is 'auto'"
    why = f"the trainer's arguments say {'them' if many else 'it'}, and are not here"
    fix = f"give {' '.join(f'--set {way}' for way in asked)}, as the trainer has {'them' if len(asked) > 1 else 'it'}"
    return Problem(what=what, why=why, fix=fix, field=left[0])


def _batches(
    reader: KeyReader, devices: int | None, model_parallel: int, trainer: hugging_face.Arguments
) -> tuple[int | None, int, int]:
    """Batch of a step, micro-batch, and accumulation steps: any two and the devices say the third."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = {name: reader.get(name) for name in names}
    auto = [name for name, value in given.items() if value == "auto"]
    filled: dict[str, int | None] = {}
    if trainer.given:
        # "auto" is what the trainer's own arguments say.
        filled = dict(zip(names, (None, trainer.mbs, trainer.steps), strict=True))
        for name in trainer.stated:
            if given[name] not in (None, "auto", filled[name]):
                why = f"the trainer has {filled[name]}, and stops where they differ"
                reader.refuse(name, given[name], why, "write auto")
        # What the file leaves out the trainer does by itself.
        left = [name for name in trainer.stated if given[name] is None]
        filled, auto = {name: filled[name] for name in (*auto, *left)}, []
    batch, mbs, steps = (
        filled[name]
        if name in filled
        else reader.degree(name)
        if given[name] is not None and name not in auto
        else None
        for name in names
    )
    dp = None if devices is None else max(1, devices // model_parallel)
    steps = steps or (max(1, batch // (mbs * dp)) if batch and mbs and dp else 1)
    mbs = mbs or (batch // (steps * dp) if batch and dp else None)
    batch = batch or (mbs * steps * dp if mbs and dp else None)
    if not auto and (batch is None or not mbs):
        reader.refuse("train_batch_size", batch, "the batch is not given", "give two of the three batch keys")
    if batch and mbs and (batch % (mbs * steps) or (dp and batch != mbs * steps * dp)):
        why = f"must be micro-batch {mbs} x accumulation {steps} x data ranks {dp or 'of the job'}"
        reader.refuse("train_batch_size", batch, why)
        return None, 1, 1
    return (batch, mbs, steps) if batch and mbs and not auto else (None, 1, 1)


_OPTIMIZERS = ("adam", "adamw", "lion", "muon", "sgd")


def _optimizer(reader: KeyReader, trained: str) -> str:
    """The optimizer that the configuration names, else the trainer's."""
    kind = reader.word("optimizer.type")
    if kind == "sgd" and reader.get("optimizer.params.momentum"):
        return "sgd-momentum"
    if kind and kind not in _OPTIMIZERS:
        why = f"must be one of {', '.join(_OPTIMIZERS)}, whose memory is known"
        reader.refuse("optimizer.type", kind, why, "check with the nearest of them")
    return kind if kind in _OPTIMIZERS else trained


_TIERS = ("none", "cpu", "nvme")


def _optimizer_offload(reader: KeyReader) -> str:
    said = reader.choice("zero_optimization.offload_optimizer.device", _TIERS, "none")
    # An earlier name, which it still takes for host memory.
    return "cpu" if said == "none" and reader.switch("zero_optimization.cpu_offload") else said


def _weights_offload(reader: KeyReader) -> str:
    said = reader.choice("zero_optimization.offload_param.device", _TIERS, "none")
    return "cpu" if said == "none" and reader.switch("zero_optimization.cpu_offload_param") else said
