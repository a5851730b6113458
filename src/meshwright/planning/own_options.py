"""Options that programs add of their own: which of them change a plan, by the words in their names."""

from __future__ import annotations

import re

_DEGREE = re.compile(
    r"(?:^|_)(?:(?:tensor|pipeline|sequence|context|expert|model)_(?:model_)?parallel|[tspce]p_size|ulysses)"
)
_CHANGES = re.compile(
    r"freeze|galore|badam|apollo|pissa|bits?$|[48]bit|fp8|int8|quantiz|offload|zero_stage|moe|expert|trainable|lora"
    r"|adapter|peft|prefix|p_?tuning|pre_seq_len|prompt_tuning|prun|distill|teacher|checkpointing|recompute|parallel"
    r"|pipeline|ulysses|ring_attn|medusa|eagle|batch|bsz|accum"
)
_KINDS = ("finetuning_type", "train_mode", "tuner_type", "train_type", "sft_type", "tuning_method")
_NAMES = re.compile(
    r"(?:fsdp|bnb|ddp|dataloader|tokenizers?|load|save|merge|resume|push|hub)_\w+"
    r"|\w*(?:path|dir|name|alpha|bias|type|file|lr|learning_rate|seed|revision|weights?|ckpt|id|prompt|kwargs|reentrant)"
)
"""What names, scales, saves or loads."""
_NO_STEPS = re.compile(
    r"eval|valid|test|infer|generat|preproc|tokeni[sz]|map_|_map|sampler|group_by|split_batches|dispatch"
)
"""Words beside `batch` where no step of the training is meant."""
_OFF = ("", "false", "no", "none", "0", "0.0", "null", "off")
_WHOLE = ("1", "16", "32", "bf16", "fp16", "ddp", "data_parallel", "dp")
"""Values that split, or store, nothing otherwise."""


def is_degree(name: str) -> bool:
    """Whether an option is a degree of a program that splits a job itself.

    Args:
        name: of the option, with `_`.
    """
    return _DEGREE.search(name) is not None


def changes_plan(name: str) -> bool:
    """Whether an option may change what is trained, stored, recomputed or split, or the batch.

    Args:
        name: of the option, with `_`.
    """
    found = _CHANGES.search(name)
    if found is None or name in _KINDS:
        return name in _KINDS
    if found[0] in ("batch", "bsz", "accum"):
        return _NO_STEPS.search(name) is None
    return _NAMES.fullmatch(name) is None and "eval" not in name


def leaves_alone(name: str, said: str) -> bool:
    """Whether a value of such an option splits, stores and trains as without it.

    Args:
        name: of the option, with `_`.
        said: the value.
    """
    found = _CHANGES.search(name)
    counts = found is not None and found[0] in ("batch", "bsz", "accum")
    return said.lower() in (*_OFF, *_WHOLE) if not counts else not said.isdecimal() or said == "0"
