"""Options of programs around a trainer: what they call its own, and which of the others change a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.trainer_option_names import BATCH

_DEGREE = re.compile(
    r"(?:^|_)(?:(?:tensor|pipeline|sequence|context|expert|model)_(?:model_)?parallel|[tspce]p_size|ulysses)"
)
_CHANGES = re.compile(
    r"freeze|galore|badam|apollo|pissa|bits?$|[48]bit|fp8|int8|quantiz|offload|zero_stage|moe|expert|trainable|lora"
    r"|adapter|peft|prefix|p_?tuning|pre_seq_len|prompt_tuning|prun|distill|teacher|checkpointing|recompute|parallel"
    r"|pipeline|ulysses|ring_attn|medusa|eagle|mem_?cap|batch|bsz|accum"
)
_KINDS = ("finetuning_type", "train_mode", "tuner_type", "train_type", "sft_type", "tuning_method")
_NAMES = re.compile(
    r"checkpointing_steps|(?:fsdp|bnb|ddp|dataloader|tokenizers?|load|save|merge|resume|push|hub)_\w+"
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

OWN_MODELS = (
    *("model", "model_name", "model_path", "model_dir", "model_checkpoint", "model_id_or_path", "model_path_or_name"),
    *("base_model_name", "base_model_path", "base_model_name_or_path", "base_model_id", "pretrained_model"),
    *("pretrained_model_path", "pretrained_model_name", "pretrained_model_dir", "pretrained_path", "pretrain_path"),
    *("hf_model", "hf_model_name", "hf_model_path", "llm_path", "llm_name", "load_model_path"),
)
"""What programs of their own call the model: taken where no option of the trainer names it, and they name one."""
OWN_BATCH = (
    *("batch_size", "train_batch_size", "training_batch_size", "batchsize", "bsz", "bs", "train_bsz", "batch"),
    *("micro_batch_size", "mini_batch_size", "global_batch_size", "total_batch_size", "effective_batch_size"),
)
"""What programs of their own call a batch, of a device or of all of them."""
CALLED = {
    **dict.fromkeys(("use_gradient_checkpointing", "enable_gradient_checkpointing"), "gradient_checkpointing"),
    **dict.fromkeys(("lora_rank", "lora_dim"), "lora_r"),
    **dict.fromkeys(
        ("lora_target", "lora_targets", "target_modules", "lora_modules", "lora_trainable", "trainable"),
        "lora_target_modules",
    ),
    **dict.fromkeys(("use_peft_lora", "enable_lora", "lora_enable"), "use_lora"),
    "lora_modules_to_save": "modules_to_save",
    **dict.fromkeys(
        (
            *("per_device_batch_size", "per_gpu_train_batch_size", "per_gpu_batch_size", "train_batch_size_per_gpu"),
            *("batch_size_per_device", "batch_size_per_gpu", "train_micro_batch_size_per_gpu"),
            *("train_batch_size_per_device", "per_device_train_bs"),
        ),
        "per_device_train_batch_size",
    ),
    **dict.fromkeys(
        (
            *("accumulation_steps", "accumulate_steps", "accum_steps", "gradient_accumulation"),
            *("grad_accum_steps", "grad_accumulation_steps", "grad_acc_steps", "gradient_accumulate_steps"),
            *("gradient_accumulate_every", "grad_accum", "gradient_accumulation_step"),
        ),
        "gradient_accumulation_steps",
    ),
    "mark_only_lora_as_trainable": "only_optimize_lora",
    **dict.fromkeys(("q_lora", "use_qlora", "qlora", "use_4bit", "use_4bit_quantization"), "load_in_4bit"),
    **dict.fromkeys(("use_8bit", "use_8bit_quantization"), "load_in_8bit"),
}
"""What programs call options of TRL and of its trainer, whose names stand behind."""


def batch_asked(own: Mapping[str, str], values: Mapping[str, object], spelled: Mapping[str, str]) -> Iterator[Problem]:
    """Asks what a batch of the program itself counts, or which it has.

    Args:
        own: options of the program that are called a batch, with their values.
        values: options of the trainer.
        spelled: options that say the trainer's batch, by its names.
    """
    passes, steps = BATCH
    left = [name for name in BATCH if name not in values]
    if own and left:
        named = " and ".join(f"{flag} {said}" for flag, said in own.items())
        what = f"what {named} {'count' if len(own) > 1 else 'counts'} is not known"
        why = "it is of the program itself: sequences of one device or of all, of one pass or of a step"
        shown = {passes: f"{passes}={next(iter(own.values()))}", steps: f"{steps}=1"}
        fix = f"give {' '.join(f'--set {shown[name]}' for name in left)}, as the program has it"
        yield Problem(what=what, why=why, fix=fix, field=next(iter(own)))
    elif passes in left and (flag := spelled.get(steps, "")).lstrip("-").replace("-", "_") in CALLED:
        why = f"{flag} is of the program itself, and no option says its batch"
        fix = f"give --set {passes}=N, as the program has it"
        yield Problem(what="the sequences of one pass are not known", why=why, fix=fix, field=passes)


def spelled_otherwise(launched: LaunchFile, title: str) -> Iterator[Problem]:
    """Keys of a file that only other programs call so: what they set there is not read.

    Args:
        launched: the file as it is read.
        title: the title of the target.
    """
    for one in launched.unpriced:
        own = CALLED.get(one.option)
        if own in (*BATCH, "gradient_checkpointing") and not leaves_alone(one.option, str(one.value)):
            why = f"{title} has no such key, and its own, {own}, is read: the file may be another program's"
            fix = f"write {own}, or price the plan that the program runs: check MODEL --plan PLAN"
            yield Problem(what=f"{one.option} is {one.value}", why=why, fix=fix, field=one.option)


def is_degree(name: str) -> bool:
    """Whether an option is a degree of a program that splits a job itself.

    Args:
        name: the name of the option, with `_`.
    """
    return _DEGREE.search(name) is not None


def changes_plan(name: str) -> bool:
    """Whether an option may change what is trained, stored, recomputed or split, or the batch.

    Args:
        name: the name of the option, with `_`.
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
        name: the name of the option, with `_`.
        said: the value.
    """
    found = _CHANGES.search(name)
    if found is not None and found[0].startswith("mem"):
        return False  # a program that has it shards by itself
    counts = found is not None and found[0] in ("batch", "bsz", "accum")
    return said.lower() in (*_OFF, *_WHOLE) if not counts else not said.isdecimal() or said == "0"
