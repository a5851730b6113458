"""Starts exported recipes of NeMo Automodel, up to the first step, in a process of its own.

Each argument is a folder with `automodel.yaml`, then the model's folder and the number of devices, with colons. Its own
recipe loads the file, makes the mesh of a group of ranks that pass nothing on, builds the model of the first rank, and
shards it. Prints a line of JSON for each: what the run holds then, or how it was refused.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from typing import Any

from stand_ins import fake_group


class Built(BaseException):
    """The model is there; what follows is the tokenizer and the data."""


def built(*rest: Any, **options: Any) -> None:
    """Stop the recipe."""
    raise Built


def started(folder: str, model: str, devices: str) -> dict[str, Any]:
    """The recipe as the run holds it."""
    from nemo_automodel.components.config.loader import load_yaml_config
    from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction

    os.environ |= {"MODEL": model, "WORLD_SIZE": devices, "RANK": "0", "LOCAL_RANK": "0"}
    os.chdir(folder)
    with fake_group(int(devices)):
        recipe = TrainFinetuneRecipeForNextTokenPrediction(load_yaml_config("automodel.yaml"))
        with suppress(Built):
            recipe.setup()
        local = recipe.cfg.get("step_scheduler.local_batch_size")
        scheduler = recipe.cfg.step_scheduler.build([], recipe._get_dp_group_size(), local)
        mesh, parts, pipeline = recipe.mesh_context, recipe.model_parts, recipe.pp
        kept = {str(one.dtype) for part in parts for one in part.parameters() if one.ndim > 1}
        layers = {name for part in parts for name, _ in part.named_modules() if re.search(r"\.layers\.\d+$", name)}
        modules = [one for part in parts for one in part.modules()]
        return {
            "degrees": [mesh.tp_size, mesh.cp_size, mesh.pp_size, mesh.ep_size],
            "ranks": recipe._get_dp_group_size(),
            "copies": mesh.dp_replicate_size,
            "parts": len(parts),
            "layers": len(layers),
            "kept_in": sorted(kept),
            "recomputes": any("CheckpointWrapper" in type(one).__name__ for one in modules),
            "sharded": any(type(one).__name__.startswith("FSDP") for one in modules),
            "fp8": sorted(name for name, one in parts[0].named_modules() if "Float8" in type(one).__name__),
            "accumulates": scheduler.grad_acc_steps,
            "schedule": None if pipeline is None else type(pipeline.info.schedule).__name__,
            "micro_batches": None if pipeline is None else pipeline.pp_batch_size // pipeline.pp_microbatch_size,
        }


def without_devices() -> None:
    """Leave out what needs a GPU or weights, and stop at the tokenizer."""
    import torch
    import triton

    triton.autotune = lambda *rest, **options: lambda kernel: kernel  # no kernel runs here
    torch.cuda.reset_peak_memory_stats = lambda *rest: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = lambda *rest: None
    torch.nn.Module.to = lambda module, *rest, **options: module
    from nemo_automodel._transformers import auto_model, infrastructure
    from nemo_automodel.components.checkpoint.checkpointing import Checkpointer
    from nemo_automodel.components.quantization import fp8
    from nemo_automodel.recipes.llm import train_ft

    fp8._has_cuda_capability = lambda *version: True
    Checkpointer.initialize_model_weights = lambda *rest, **options: None
    infrastructure.print_trainable_parameters = lambda *rest, **options: None
    made = auto_model.instantiate_infrastructure
    auto_model.instantiate_infrastructure = lambda **options: made(**options | {"device": torch.device("cpu")})
    train_ft._build_tokenizer = built


def main() -> None:
    """Start every run."""
    without_devices()
    for text in sys.argv[1:]:
        try:
            print(json.dumps(started(*text.split(":"))))
        except Exception as error:
            print(json.dumps({"refused": f"{type(error).__name__}: {error}"}))


if __name__ == "__main__":
    main()
