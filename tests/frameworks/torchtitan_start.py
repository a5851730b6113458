"""Starts exported modules of torchtitan, up to the first step, each in a process of its own.

Each argument is a folder with `meshwright_plan.py`, the number of devices and the rank, with colons. torchtitan's own
trainer loads the module, makes the mesh of a group of ranks that pass nothing on, and builds, cuts, wraps and shards
the model of that rank, without weights. Prints a line of JSON for each: what the run holds then, or how it was refused.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

from stand_ins import each_alone, fake_group


def started(folder: str, devices: str, rank: str) -> dict[str, Any]:
    """The trainer as this rank holds it."""
    import torch
    from torchtitan.config import ConfigManager
    from torchtitan.trainer import Trainer

    os.environ |= {"WORLD_SIZE": devices, "RANK": rank, "LOCAL_RANK": "0"}
    os.chdir(folder)
    sys.path.insert(0, folder)
    with fake_group(int(devices), int(rank)):
        config = ConfigManager().parse_args(["--module", "meshwright_plan", "--config", "plan"])
        if torch.__version__ < "2.14":  # FSDP takes no annotated weights yet, which torchtitan makes by default
            config.parallelism.spmd_backend = "partial_dtensor"
        return held(Trainer(config))


def held(trainer: Any) -> dict[str, Any]:
    """What a plan says, as the trainer has it."""
    dims, parts, training = trainer.parallel_dims, trainer.model_parts, trainer.config.training
    modules = [(name, one) for part in parts for name, one in part.named_modules()]
    layers = [one for part in parts for one in part.layers.values()]
    states = [one._get_fsdp_state() for one in layers]
    groups = [state._fsdp_param_groups[0] for state in states]
    weights = [one for part in parts for one in part.parameters()]
    schedule = getattr(trainer, "pp_schedule", None)
    return {
        "degrees": [dims.tp, dims.cp, dims.pp, dims.ep],
        "ranks": dims.get_mesh("batch").size() if dims.dp_enabled else 1,
        "parts": [sorted(map(int, part.layers)) for part in parts],
        "ends": [[part.tok_embeddings is not None, part.lm_head is not None] for part in parts],
        "parameters": sum(one.numel() for one in weights),
        "trained_in": sorted({str(one.dtype) for one in weights if one.requires_grad}),
        "kept_in": sorted({str(one.dtype) for one in weights if not one.requires_grad}),
        "computed_in": sorted({str(state._mp_policy.param_dtype) for state in states}),
        "reduced_in": sorted({str(state._mp_policy.reduce_dtype) for state in states}),
        "reshards": sorted({one.post_forward_mesh_info is not None for one in groups}),
        "offloads": sorted({type(one.offload_policy).__name__ for one in groups}),
        "shards": sorted({one.mesh_info.shard_mesh_size for one in groups}),
        "copies": sorted({getattr(one.mesh_info, "replicate_mesh_size", 1) for one in groups}),
        "recomputes": sum("CheckpointWrapper" in type(one).__name__ for one in layers),
        "keeps": sum("context_fn" in getattr(getattr(one, "checkpoint_fn", None), "keywords", {}) for one in layers),
        "compiled": sorted({one._compiled_call_impl is not None for one in layers}),
        "sequence_parallel": trainer.config.parallelism.enable_sequence_parallel,
        "accumulates": trainer.gradient_accumulation_steps,
        "micro_batches": trainer.num_pipeline_parallel_microbatches,
        "micro_batch": training.local_batch_size // trainer.num_pipeline_parallel_microbatches,
        "sequence": training.seq_len,
        "schedule": None if schedule is None else type(schedule).__name__,
        "scheduled": None if schedule is None else schedule._n_microbatches,
        "optimizer": sorted({type(one).__name__ for one in trainer.optimizers}),
        "held": sum(getattr(one, "_local_tensor", one).numel() for one in weights),
        "graphs": trainer.graphs,
        "classes": Counter(re.sub("^FSDP", "", type(one).__name__) for _, one in modules),
    }


def tied(model: Any, **options: Any) -> None:
    """What making weights begins with: one table where the head is that of the embedding."""
    if getattr(model, "enable_weight_tying", False):
        model.tok_embeddings.weight = model.lm_head.weight


def without_devices() -> None:
    """Leave out what needs a GPU, weights, a tokenizer or data."""
    import torch

    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.set_device = lambda *rest: None
    torch.nn.Module.to_empty = lambda module, *rest, **options: module
    from torchtitan import trainer
    from torchtitan.components import metrics, tokenizer
    from torchtitan.components.quantization import float8, mx
    from torchtitan.hf_datasets import text_datasets
    from torchtitan.protocols import BaseModel

    for part in (float8, mx):
        part.has_cuda_capability = lambda *version: True
    BaseModel.init_weights = tied
    memory = SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0)
    monitor = SimpleNamespace(device_name="H100", get_peak_stats=lambda: memory, reset_peak_stats=lambda: None)
    metrics.build_device_memory_monitor = lambda: monitor
    trainer.utils.get_peak_flops = lambda name: 1e15
    trainer.Trainer.graphs = False

    def captured(run: Any) -> Any:
        run.__self__.graphs = True
        return run

    trainer.wrap_with_cuda_graph = captured
    for kind in (tokenizer.HuggingFaceTokenizer, text_datasets.HuggingFaceTextDataLoader):
        kind.Config.build = lambda *rest, **options: None


def main() -> None:
    """Start every run."""
    without_devices()
    each_alone(started, sys.argv[1:])


if __name__ == "__main__":
    main()
