"""Builds the models of Megatron-DeepSpeed from exported scripts, each in a process of its own.

The first argument is a checkout. Each of the others is the folder of a run, its number of devices and the rank that is
built, with colons. bash runs `train.sh` with a launcher that only says its words; the program they start parses and
checks them, makes its groups and the part of the model that this rank has, and DeepSpeed's engine with its optimizer,
in the memory of the host. Prints a line of JSON for each: what the run holds, or how it was refused.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}

from stand_ins import Finder, adam_on_host, each_alone, fake_group, host_for_gpu, on_host

ABSENT = (
    *("apex", "amp_C", "flash_attn", "transformer_engine", "pkg_resources", "torchvision"),
    "deepspeed.compression.compress",
)
"""What is not installed: kernels of GPUs, images, and a part of DeepSpeed that 0.19.8 left out."""


class Built(BaseException):
    """The model is there, data is asked for."""


def started(folder: str, devices: str, rank: str) -> dict[str, Any]:
    """The run as it stands before its data."""
    import torch

    sys.argv = words(Path(folder))
    os.chdir(folder)
    os.environ |= {"WORLD_SIZE": devices, "RANK": rank, "LOCAL_RANK": str(int(rank) % 8)}
    with fake_group(int(devices), int(rank)), on_host(torch):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Built as done:
            return held(*done.args)
    raise RuntimeError("no data was asked for")


def words(folder: Path) -> list[str]:
    """What the launcher of a script is given, from its program on."""
    launcher = folder / "torchrun"
    launcher.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@"\n')
    launcher.chmod(0o755)
    around = {"MEGATRON_DEEPSPEED": sys.argv[1], "PATH": f"{folder}:{os.environ['PATH']}", "MASTER_ADDR": "host"}
    done = subprocess.run(["bash", "train.sh"], cwd=folder, env=os.environ | around, capture_output=True, check=True)
    said = done.stdout.decode().split("\0")[:-1]
    return said[next(at for at, word in enumerate(said) if word.endswith(".py")) :]


def held(args: Any, engine: Any, optimizer: Any) -> dict[str, Any]:
    """What a plan says, as the engine and the program's groups have it."""
    from megatron.core import mpu

    modules = list(engine.module.modules())
    layers = [one for one in modules if type(one).__name__.startswith("ParallelTransformerLayer")]
    rotary = [one.theta for one in modules if type(one).__name__ == "RotaryEmbedding"]
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    return {
        "tp": mpu.get_tensor_model_parallel_world_size(),
        "pp": mpu.get_pipeline_model_parallel_world_size(),
        "ulysses": mpu.get_sequence_parallel_world_size(),
        "dp": mpu.get_data_parallel_world_size(),
        "engine": type(engine).__name__,
        "zero": engine.zero_optimization_stage(),
        "offloads": type(inner).__name__ == "DeepSpeedCPUAdam",
        "overlaps": engine.zero_overlap_comm() if engine.zero_optimization_stage() else None,
        "batch": engine.train_batch_size(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "micro_batches": engine.gradient_accumulation_steps(),
        "program": [args.global_batch_size, args.micro_batch_size, args.zero_stage],
        "format": "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32",
        "layers": [sum(getattr(one, "ds_numel", one.numel()) for one in layer.parameters()) for layer in layers],
        "scatters": layers[0].self_attention.sequence_parallel,
        "fused": layers[0].self_attention.use_flash_attn,
        "recomputes": args.recompute_num_layers if again(args) else 0,
        "zero_bubble": args.enable_zbh1_pipeline,
        "sizes": [args.num_layers, args.hidden_size, args.num_attention_heads, args.ffn_hidden_size],
        "key_value_heads": args.num_key_value_heads,
        "seq_len": args.seq_length,
        "epsilon": args.layernorm_epsilon,
        "rope": rotary[:1],
        "tied": not args.untie_embeddings_and_output_weights,
    }


def again(args: Any) -> bool:
    """Whether layers are recomputed."""
    return args.recompute_granularity == "full" and args.deepspeed_activation_checkpointing


def loaded() -> None:
    """Load the program's parts once for all runs, and stop before it asks for data."""
    import apex.optimizers
    import deepspeed.accelerator
    import deepspeed.ops.adam
    import deepspeed.runtime.zero.utils
    import flash_attn
    import torch

    flash_attn.__version__ = "2.6.3"
    apex.optimizers.FusedAdam, apex.optimizers.FusedSGD = torch.optim.AdamW, torch.optim.SGD
    deepspeed.ops.adam.DeepSpeedCPUAdam = adam_on_host(torch)
    deepspeed.runtime.zero.utils.ZERO_SUPPORTED_OPTIMIZERS.append(deepspeed.ops.adam.DeepSpeedCPUAdam)
    import megatron.initialize
    import megatron.model.transformer
    import megatron.training

    megatron.initialize._compile_dependencies = lambda: None
    megatron.model.transformer.FlashAttentionBuilder = None  # as on a GPU, whose kernels flash_attn has
    made = megatron.training.setup_model_and_optimizer

    def stops(*rest: Any, **options: Any) -> None:
        (engine,), optimizer, _ = made(*rest, **options)
        raise Built(megatron.get_args(), engine, optimizer)

    megatron.training.setup_model_and_optimizer = stops
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    host_for_gpu(torch, devices=8)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.append(Finder(*ABSENT))
    loaded()
    each_alone(started, sys.argv[2:])
