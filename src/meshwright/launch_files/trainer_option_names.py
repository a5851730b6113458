"""What options of training programs are called."""

from __future__ import annotations

BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
ARGUMENTS = (*BATCH, "gradient_checkpointing", "optim", "optim_args", "bf16", "fp16", "torch_dtype", "dtype")
"""Arguments of the trainer itself, by the names of its file."""
MODELS = ("model_name_or_path", "pretrained_model_name_or_path", "model_id", "base_model")
LENGTHS = ("max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "block_size", "seq_length", "max_length")
"""What programs call the length of a sequence."""
ADAPTERS = (
    *("use_peft", "use_lora", "use_dora", "lora_r", "lora_target_modules", "lora_dropout", "modules_to_save"),
    *("load_in_4bit", "load_in_8bit"),
)
ATTENTION = ("attn_implementation", "attn_impl")
PIECES = ("use_liger_kernel", "use_liger", "enable_liger_kernel")
"""Switches of the transformers trainer, TRL 0.12 to 0.15 and LLaMA-Factory that have logits made in pieces."""
MAKES_ENGINE = ("zero_stage",)
"""What programs call the stage of an engine that they make themselves, as DeepSpeed-Chat does."""
FILES = ("deepspeed", "deepspeed_config", "config", "config_file", "job.config_file", "fsdp", "fsdp_config")
LISTS = ("lora_target_modules", "modules_to_save")
BITS = ("load_in_kbits", "bits", "quantization_bit")
"""Bits that frozen weights are stored in: 16 and 32 are no quantisation."""
KINDS = ("finetuning_type", "train_mode", "tuner_type", "train_type", "sft_type", "tuning_method")
OPTIMIZERS = ("optimizer", "optimizer_name", "optimizer_type", "opt")
"""What programs call the optimizer that they make themselves."""
ADAPTED: dict[str, dict[str, object]] = {
    "full": {"use_lora": False},
    "none": {"use_lora": False},
    "lora": {"use_lora": True},
    "qlora": {"use_lora": True, "load_in_4bit": True},
}
"""What is trained, as programs say it in one word."""
