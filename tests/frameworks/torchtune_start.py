"""Starts configurations of torchtune, up to the first batch, each in a process of its own.

Each argument is the recipe's name, the folder with `torchtune.yaml` and the number of devices, with colons. The recipe
that comes with torchtune reads the file, builds the model without weights, cuts and shards it on the first rank of a
group that passes nothing on, and makes the optimizer. Prints a line of JSON for each: what the recipe holds then, or
how it was refused.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from stand_ins import Finder, each_alone, fake_group

ABSENT = ("torchao", "kagglehub", "blobfile")
"""What is not installed, or is newer here than torchtune knows."""
recipes: dict[str, ModuleType] = {}


def recipe(name: str) -> ModuleType:
    """The module of a recipe, which torchtune keeps outside of packages."""
    import torchtune

    path = Path(torchtune.__file__).parents[1] / "recipes" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def started(name: str, folder: str, devices: str) -> dict[str, Any]:
    """The recipe as the run holds it."""
    import torch
    from omegaconf import OmegaConf

    module = recipes[name]
    os.environ |= {"WORLD_SIZE": devices, "RANK": "0", "LOCAL_RANK": "0"}
    os.chdir(folder)
    cfg = OmegaConf.load("torchtune.yaml")
    cfg.output_dir = folder
    kind = next(one for key, one in vars(module).items() if "Recipe" in key and one.__module__ == name)
    with fake_group(int(devices)):
        made = kind(cfg)
        made.setup(cfg=cfg)
        return held(made, torch)


def held(made: Any, torch: Any) -> dict[str, Any]:
    """What a plan says, as the recipe has it."""
    model = made._model
    weights = list(model.parameters())
    states = [one._get_fsdp_state() for one in model.modules() if hasattr(one, "_get_fsdp_state")]
    groups = [group for state in states for group in state._fsdp_param_groups]
    layers = [one for one in model.modules() if type(one).__name__.endswith("TransformerSelfAttentionLayer")]
    again = [one for one in model.modules() if "CheckpointWrapper" in type(one).__name__]
    return {
        "tp": getattr(made, "tensor_parallel_dim", 1),
        "dealt": made.seen_ranks,
        "shards": sorted({one.mesh_info.shard_mesh_size for one in groups}),
        "copies": sorted({getattr(one.mesh_info, "replicate_mesh_size", 1) for one in groups}),
        "reshards": sorted({one.post_forward_mesh_info is not None for one in groups[1:]}),
        "offloads": sorted({type(one.offload_policy).__name__ for one in groups}),
        "trained_in": sorted({str(one.dtype) for one in weights if one.requires_grad}),
        "trained": sum(one.numel() for one in weights if one.requires_grad),
        "parameters": sum(one.numel() for one in weights),
        "held": sum(getattr(one, "_local_tensor", one).numel() for one in weights),
        "layers": len(layers),
        "recomputes": len(again),
        "offloads_activations": made.activations_handling_ctx,
        "micro_batch": made.seen_batch,
        "accumulates": made._gradient_accumulation_steps,
        "optimizer": type(made._optimizer).__name__,
    }


def without_devices() -> None:
    """Leave out what needs a GPU, weights, a tokenizer or data."""
    import torch
    from torchtune import config, training, utils
    from torchtune.training.checkpointing import _checkpoint_client as client

    utils.get_device = lambda device="cpu": torch.device("cpu")
    torch.distributed.barrier = lambda *rest, **options: None
    training.verify_bf16_support = lambda: True
    training.load_from_full_model_state_dict = lambda *rest, **options: ((), ())
    training.get_act_offloading_ctx_manager = lambda model, offloads: offloads
    training.get_memory_stats = training.log_memory_stats = lambda *rest, **options: None
    training.validate_no_params_on_meta_device = lambda *rest: None
    client.CheckpointClient.load_base_checkpoint = lambda own: {training.MODEL_KEY: {}}
    made = config.instantiate
    config.instantiate = lambda given, *rest, **options: (
        None if "tokenizer" in str((given or {}).get("_component_", "")) else made(given, *rest, **options)
    )
    for name in ("full_finetune_distributed", "lora_finetune_distributed"):
        module = recipes[name] = recipe(name)
        module.init_process_group = lambda *rest, **options: None
        kind = next(one for key, one in vars(module).items() if "Recipe" in key and one.__module__ == name)
        kind._setup_data = dealt
        if hasattr(kind, "load_checkpoint"):
            kind.load_checkpoint = lambda own, *rest, **given: {training.MODEL_KEY: {}}


def dealt(made: Any, *rest: Any, **given: Any) -> list[None]:
    """Data that is not there: how much of it a step takes, and how many ranks share it."""
    made.seen_batch = given["batch_size"]
    made.seen_ranks = getattr(made, "dp_size", made.world_size)
    return [None] * 4096


def main() -> None:
    """Start every run."""
    sys.meta_path.insert(0, Finder(*ABSENT))
    without_devices()
    each_alone(started, sys.argv[1:])


if __name__ == "__main__":
    main()
