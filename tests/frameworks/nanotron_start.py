"""Builds the trainer of nanotron from configurations, each in a process of its own.

The first argument is the `src` folder of a checkout: what is published as a package is older and stops as it is
imported. Each of the others is the folder with `nanotron.yaml`, the number of devices and the rank that is built, with
colons. nanotron reads the file, makes its groups, the part of the model that this rank has, the gradients' accumulator
and the optimizer, in the memory of the host. Prints a line of JSON for each: what the trainer holds, or how it was
refused.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # the latter as its users start it

from stand_ins import Finder, each_alone, fake_group, host_for_gpu, on_host

ABSENT = (
    *("flash_attn", "flash_attn_2_cuda", "transformer_engine", "transformer_engine_extensions", "grouped_gemm"),
    *("datatrove", "numba", "lighteval", "functorch", "s3fs", "wandb"),
)
"""What is not installed: kernels of GPUs, data, tracking; and a module of PyTorch that is no more."""


def started(folder: str, devices: str, rank: str) -> dict[str, Any]:
    """The trainer as it stands before training."""
    import torch
    from nanotron.trainer import DistributedTrainer

    os.chdir(folder)
    os.environ |= {"WORLD_SIZE": devices, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": devices}
    with fake_group(int(devices), int(rank)), on_host(torch):
        return held(DistributedTrainer("nanotron.yaml"))


def held(trainer: Any) -> dict[str, Any]:
    """What a plan says, as the trainer's objects have it."""
    from nanotron.optim.inherit_from_other_optimizer import InheritFromOtherOptimizer
    from nanotron.parallel.pipeline_parallel.block import PipelineBlock

    groups, model, optimizer = trainer.parallel_context, trainer.unwrapped_model, trainer.optimizer
    weights = list(model.parameters())
    cut = next((one for one in model.modules() if type(one).__name__ == "TensorParallelColumnLinear"), None)
    blocks = [one for one in model.modules() if isinstance(one, PipelineBlock)]
    layers = [one for one in blocks if "layer_idx" in one.module_kwargs]
    mine = [one.pp_block for one in layers if hasattr(one, "pp_block")]
    kinds, inner = [type(optimizer).__name__], optimizer
    while isinstance(inner, InheritFromOtherOptimizer):
        inner = inner.optimizer
        kinds.append(type(inner).__name__)
    copies = getattr(trainer.grad_accumulator, "parameters", {})
    return {
        "degrees": {
            "tp": groups.tp_pg.size(),
            "pp": groups.pp_pg.size(),
            "dp": groups.dp_pg.size(),
            "cp": groups.cp_pg.size(),
        },
        "context": str(trainer.model_config._attn_implementation),
        "engine": type(trainer.config.parallelism.pp_engine).__name__,
        "scatters": cut is not None and cut.mode.name == "REDUCE_SCATTER",
        "beside": cut is not None and cut.async_communication,
        "dealt": [sum(one.rank == stage for one in layers) for stage in range(groups.pp_pg.size())],
        "recomputes": sum(getattr(one, "recompute_layer", False) for one in mine),
        "layers": len(mine),
        "zero": "ZeroDistributedOptimizer" in kinds,
        "shards": getattr(optimizer, "dp_pg", groups.dp_pg).size(),
        "accumulates_wide": trainer.grad_accumulator is not None,
        "main_copies": sorted({str(one["fp32"].dtype) for one in copies.values()}),
        "copies_all": bool(trainer.model is not trainer.unwrapped_model),
        "optimizer": next((one for one in ("AdamW", "SGD") if one in repr(inner)), repr(inner)[:80]),
        "kept_in": sorted({str(one.dtype) for one in weights}),
        "parameters": trainer.num_params["local"],
        "micro_batch": trainer.micro_batch_size,
        "micro_batches": trainer.n_micro_batches_per_batch,
        "batch": trainer.global_batch_size,
    }


def without_devices() -> None:
    """Take the host for a GPU."""
    import flash_attn
    import torch

    flash_attn.__version__ = "2.6.3"
    host_for_gpu(torch)


def undrawn() -> None:
    """Load nanotron once for all runs, and leave out how weights are drawn: Llama's stops there at this commit."""
    from nanotron.models import llama, qwen, starcoder2

    for kind in (llama.LlamaForTraining, qwen.Qwen2ForTraining, starcoder2.Starcoder2ForTraining):
        kind.init_model_randomly = lambda *rest, **options: None
    for one in (llama.RotaryEmbedding, llama.LlamaRotaryEmbedding):
        one.init_rotary_embeddings = lambda *rest: None


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.append(Finder(*ABSENT))
    without_devices()
    undrawn()

    each_alone(started, sys.argv[2:])
