"""What other programs call the same things, so that an unknown option is answered with the right one."""

from __future__ import annotations

from collections.abc import Collection

OTHER_NAMES = {
    "--gbs": ("batch", "batch_size", "global_batch", "global_batch_size", "train_batch_size", "effective_batch_size"),
    "--seq": (
        "seq_len",
        "seq_length",
        "seqlen",
        "sequence_length",
        "max_seq_len",
        "max_seq_length",
        "max_length",
        "cutoff_len",
        "block_size",
        "context",
        "context_length",
    ),
    "--dtype": ("precision", "mixed_precision", "compute_dtype", "bf16", "fp16", "fp8"),
    "--gpus": (
        "nodes",
        "accelerator",
        "accelerators",
        "num_nodes",
        "nnodes",
        "gpu",
        "num_gpus",
        "ngpus",
        "devices",
        "world_size",
        "hardware",
    ),
    "--device": ("gpus", "gpu", "gpu_type", "accelerator", "hardware"),
    "--days": ("deadline", "max_days", "duration", "time"),
    "--max-price": ("budget", "max_cost", "cost"),
    "--price": ("cost", "gpu_price", "price_per_hour"),
    "--optimizer": ("optim",),
    "--lora": ("peft", "adapter", "rank", "r", "lora_rank", "lora_r"),
    "--output": ("out", "output_dir", "output_file", "save"),
    "--json": ("format", "output_format"),
    "--report": ("format", "output_format", "sarif", "junit"),
    "--steps": ("num_steps", "max_steps", "max_train_steps", "iters", "train_iters"),
    "--tokens": ("num_tokens", "train_tokens", "total_tokens", "max_tokens"),
    "--with": ("tuner", "method", "algorithm", "sampler", "search_alg"),
    "--trials": ("budget", "n_trials", "num_trials", "max_trials", "num_samples"),
    "--storage": ("db", "study", "study_name"),
    "--figure": ("plot", "svg"),
    "--top": ("top_k", "limit"),
    "--time-limit": ("timeout",),
    "--to": ("target", "framework"),
    "--target": ("to", "framework"),
}
"""Options by what other programs call the same, in lower case with `_`."""

WITH_VALUES = {
    **dict.fromkeys(("qlora", "load_in_4bit", "use_4bit", "base", "quantize", "bits"), "--lora r=16,base=nf4"),
    **dict.fromkeys(("rank", "lora_rank", "lora_r"), "--lora r=N"),
    **dict.fromkeys(("targets", "target_modules", "lora_target", "lora_target_modules"), "--lora r=16,targets=q_proj"),
    "lora_dropout": "--lora r=16,dropout=0.05",
    **dict.fromkeys(("dora", "use_dora"), "--lora r=16,dora"),
    **dict.fromkeys(("sample_packing", "pack"), "--packing pack"),
    "load_in_8bit": "--lora r=16,base=int8",
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing", "checkpointing"), "--pin recompute=full"),
    **dict.fromkeys(("mbs", "micro_batch", "micro_batch_size", "per_device_train_batch_size"), "--pin mbs=1"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), "--tokens N, of all epochs together"),
    **dict.fromkeys(("ram", "host_memory", "cpu_memory", "cpu_ram"), "--host-ram 64GB"),
    **dict.fromkeys(("cpu_offload", "offload_optimizer", "zero_offload"), "--offload optimizer"),
    **dict.fromkeys(("liger", "use_liger_kernel", "enable_liger_kernel"), "--loss-tiles N"),
}
"""What other programs say with a switch of its own, and how it is said here."""

_MODEL_NAMES = ("model", "model_name", "model_name_or_path", "config", "hf_config")
"""What other programs call the model that stands here without an option."""


def _plain(name: str) -> str:
    """A name without dashes in front, in lower case with `_` between its words."""
    return name.strip("-").replace("-", "_").lower()


def meant_options(name: str, known: Collection[str]) -> list[str]:
    """Options that another program calls by a name.

    Args:
        name: the name as typed, such as `--global-batch-size`.
        known: options that there are.
    """
    said = WITH_VALUES.get(_plain(name), "")
    if said.partition(" ")[0] in known:
        return [said]
    return [option for option, others in OTHER_NAMES.items() if _plain(name) in others and option in known]


def names_the_model(name: str) -> bool:
    """Whether another program calls its model by a name."""
    return _plain(name) in _MODEL_NAMES
