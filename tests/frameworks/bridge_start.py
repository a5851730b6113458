"""Starts exported runs of Megatron-Bridge, up to the point where a GPU is needed, in a process of its own.

Each argument is a folder with `pretrain.py` and its overrides, then the model's folder, the number of devices and their
name, with colons. The program's own `plan()` makes the configuration; Megatron-Bridge completes and validates it, as it
does at the start of a run. Prints a line of JSON for each: what it holds then, or how it was refused.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any

from stand_ins import stand_in


def started(folder: str, model: str, devices: str, device: str) -> dict[str, Any]:
    """The configuration as the run holds it."""
    import torch
    from megatron.bridge.training.config import runtime_config_update

    major = 10 if "B200" in device or "B300" in device else 9
    torch.cuda.get_device_properties = lambda number=0: SimpleNamespace(name=f"NVIDIA {device}", major=major, minor=0)

    os.environ |= {"MODEL": model, "WORLD_SIZE": devices, "RANK": "0"}
    cfg = runpy.run_path(f"{folder}/pretrain.py", run_name="started")["plan"]()
    runtime_config_update(cfg)
    cfg.validate()
    provider, ddp = cfg.model, cfg.ddp
    return {
        "tp": provider.tensor_model_parallel_size,
        "sp": provider.sequence_parallel,
        "pp": provider.pipeline_model_parallel_size,
        "vpp": provider.virtual_pipeline_model_parallel_size,
        "cp": provider.context_parallel_size,
        "ep": provider.expert_model_parallel_size,
        "etp": provider.expert_tensor_parallel_size,
        "dp": cfg.data_parallel_size,
        "recompute": provider.recompute_granularity,
        "modules": provider.recompute_modules,
        "layers": provider.num_layers,
        "micro_batch": cfg.train.micro_batch_size,
        "batch": cfg.train.global_batch_size,
        "sequence": cfg.dataset.seq_length if hasattr(cfg.dataset, "seq_length") else cfg.dataset.sequence_length,
        "sharded": ddp.use_distributed_optimizer,
        "fsdp": ddp.use_megatron_fsdp,
        "overlaps_gradients": ddp.overlap_grad_reduce,
        "overlaps_tensors": provider.tp_comm_overlap,
        "overlaps_experts": provider.overlap_moe_expert_parallel_comm,
        "delays_weights": provider.delay_wgrad_compute,
        "ring": provider.cp_comm_type,
        "offloads": bool(cfg.optimizer.optimizer_cpu_offload),
        "fp32_gradients": ddp.grad_reduce_in_fp32,
        "dispatcher": (provider.moe_token_dispatcher_type, provider.moe_flex_dispatcher_backend),
        "fp8": provider.fp8,
        "fp8_recipe": provider.fp8_recipe if provider.fp8 else None,
        "fp8_weights": ddp.fp8_param_gather,
    }


def main() -> None:
    """Start every run."""
    stand_in("transformer_engine", "megatron.energon", "nvidia_resiliency_ext", "modelopt")
    asked, sys.argv = sys.argv[1:], ["pretrain.py"]
    for text in asked:
        try:
            print(json.dumps(started(*text.split(":"))))
        except Exception as error:
            print(json.dumps({"refused": f"{type(error).__name__}: {error}"}))


if __name__ == "__main__":
    main()
