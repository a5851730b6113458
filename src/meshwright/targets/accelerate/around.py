"""A configuration of Accelerate around a trainer that has a file of its own: what it says, as keys of that file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.targets.key_texts import Keys, table_of

_WORDS = {"FULL_SHARD": "full_shard", "1": "full_shard", "SHARD_GRAD_OP": "shard_grad_op", "2": "shard_grad_op"}

REPLICATES = frozenset(f"MULTI_{kind}" for kind in ("GPU", "HPU", "MLU", "MUSA", "NPU", "SDAA", "XPU"))
"""Types that replicate the model over devices of each maker.

Source: accelerate 1.15.0, utils/dataclasses.py, DistributedType.
"""


def _of_llamafactory(*, reshard: bool, offload: bool) -> Keys:
    return {"fsdp": f"{'full_shard' if reshard else 'shard_grad_op'}{' offload' if offload else ''} auto_wrap"}


def _of_axolotl(*, reshard: bool, offload: bool) -> Keys:
    return {"fsdp_config.reshard_after_forward": reshard, "fsdp_config.offload_params": offload}


_FSDP: Mapping[str, Callable[..., Keys]] = {"llamafactory": _of_llamafactory, "axolotl": _of_axolotl}
"""Targets whose program `accelerate launch` starts, by what shards, as their own files say it."""


def engine_around(text: str, trainer: str) -> tuple[Keys, int | None]:
    """Keys of a trainer's own file that say what a configuration of Accelerate says, and the processes it starts.

    Args:
        text: the text of the configuration.
        trainer: the target whose file it is.

    Raises:
        InputError: it names an engine, or a way to shard, that the trainer's file has no key for.
    """
    keys = table_of(text, "YAML", "configuration of Accelerate")
    kind = str(keys.get("distributed_type") or "NO").upper()  # YAML takes a bare NO for false
    count = keys.get("num_processes")
    started = count if type(count) is int and count > 0 else None
    if kind == "FSDP":
        return _sharded(keys.get("fsdp_config") or {}, trainer), started
    if kind == "DEEPSPEED":
        return {"deepspeed": _deepspeed(keys.get("deepspeed_config") or {})}, started
    if kind in ("NO", *REPLICATES):
        return {}, started
    raise _refused("distributed_type", kind, "FSDP, DEEPSPEED, MULTI_GPU and NO are read around a trainer")


def _sharded(config: Mapping[str, Any], trainer: str) -> Keys:
    offload = config.get("fsdp_offload_params") is True
    if config.get("fsdp_version", 1) == 2:
        reshard = config.get("fsdp_reshard_after_forward", True) is not False
        return _FSDP[trainer](reshard=reshard, offload=offload)
    said = str(config.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
    if said in ("NO_SHARD", "3"):
        return {}
    if said not in _WORDS:
        raise _refused("fsdp_sharding_strategy", said, "which ranks hold one copy is not in the file")
    return _FSDP[trainer](reshard=_WORDS[said] == "full_shard", offload=offload)


def _deepspeed(config: Mapping[str, Any]) -> object:
    """The file of DeepSpeed that it names, or what its own keys say as one."""
    if config.get("deepspeed_config_file"):
        return str(config["deepspeed_config_file"])
    zero: dict[str, Any] = {"stage": config.get("zero_stage", 2)}
    for part in ("optimizer", "param"):
        device = str(config.get(f"offload_{part}_device") or "none")
        if device != "none":
            zero[f"offload_{part}"] = {"device": device}
    batches = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {**dict.fromkeys(batches, "auto"), "bf16": {"enabled": "auto"}, "zero_optimization": zero}


def _refused(key: str, value: str, why: str) -> InputError:
    fix = "check it with the trainer's own key for what shards: deepspeed, or fsdp"
    return InputError(Problem(what=f"{key} is {value[:40]!r}", why=why, fix=fix, field=key))
