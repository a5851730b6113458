"""Reads exported files of LLaMA-Factory as its trainer does before it loads a model, in a process of its own.

Each argument is the folder of a run, the model and the number of devices, with colons. Its own parser reads and checks
the file, which starts DeepSpeed's configuration, on the first rank of a group that passes nothing on. Prints a
line of JSON for each: what the arguments hold then, or how they were refused.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "DISABLE_VERSION_CHECK": "1"}
os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "LOCAL_WORLD_SIZE": "8"}

from stand_ins import each_alone, fake_group, without_init
from trainer_start import without_devices


def started(folder: str, model: str, devices: str) -> dict[str, Any]:
    """The arguments as a run holds them."""
    from llamafactory.hparams.parser import get_train_args
    from omegaconf import OmegaConf

    os.environ["WORLD_SIZE"] = devices
    os.chdir(folder)
    said = {"model_name_or_path": model, "dataset": "alpaca_en_demo", "template": "llama3"}
    keys = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load("train.yaml"), said))
    with fake_group(int(devices)):
        named, data, trainer, tuning, _ = get_train_args(keys)
    engine = trainer.hf_deepspeed_config.config
    zero = engine["zero_optimization"]
    return {
        "ranks": trainer.world_size,
        "micro_batch": trainer.per_device_train_batch_size,
        "accumulates": trainer.gradient_accumulation_steps,
        "batch": engine["train_batch_size"],
        "zero": zero["stage"],
        "on_host": [bool(zero.get(f"offload_{part}")) for part in ("optimizer", "param")],
        "format": "bf16" if trainer.bf16 else "fp16" if trainer.fp16 else "fp32",
        "tokens": data.cutoff_len + 1 if data.packing else 0,  # a pack has one token more than it counts
        "recomputes": not named.disable_gradient_checkpointing,
        "tuned": [tuning.finetuning_type, tuning.lora_rank, tuning.lora_target, tuning.use_dora],
        "beside": tuning.additional_target,
        "stored": [named.quantization_bit, named.quantization_type, named.double_quantization],
        "optimizer": getattr(trainer.optim, "value", trainer.optim),
        "attention": getattr(named.flash_attn, "value", named.flash_attn),
    }


if __name__ == "__main__":
    without_devices()
    without_init("llamafactory", "llamafactory.hparams")
    each_alone(started, sys.argv[1:])
