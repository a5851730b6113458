"""Starts exported files of Axolotl up to a step of its own trainer, in a process of its own.

Each argument is the folder of a run, the model's folder and the number of devices, with colons. Axolotl reads and
checks the file, sets the environment of its engine, loads the model, builds its trainer and makes a step, on the first
rank of a group that passes nothing on, in the memory of the host. Prints a line of JSON for each: what the run holds
then, or how it was refused.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ |= {
    "AXOLOTL_DO_NOT_TRACK": "1",
    "WANDB_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "AXOLOTL_LOG_LEVEL": "ERROR",
}

from stand_ins import Finder, each_alone, fake_group
from trainer_start import Stepped, held, trainers, without_devices

ABSENT = (
    *("posthog", "wandb", "evaluate", "fastcore", "s3fs", "gcsfs", "ocifs", "mistral_common", "numba"),
    *("bitsandbytes", "ring_flash_attn"),
)
"""What is not installed: of GPUs, or of tracking and storage."""


def started(folder: str, model: str, devices: str) -> dict[str, Any]:
    """The run after its first step."""
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import TrainDatasetMeta
    from axolotl.train import execute_training, setup_model_and_trainer
    from datasets import Dataset

    os.environ |= {"WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": "8", "RANK": "0", "LOCAL_RANK": "0"}
    os.chdir(folder)
    with fake_group(int(devices)):
        cfg = load_cfg("axolotl.yaml", base_model=model)
        attention, cfg.attn_implementation = cfg.attn_implementation, "sdpa"  # kernels of GPUs are not installed
        cfg.device_map = {"": "cpu"}
        cfg.dataloader_num_workers, cfg.dataloader_prefetch_factor = 0, None
        cfg |= dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"))
        tokens = [[1 + one % 9] * 128 for one in range(4096)]
        data = Dataset.from_dict(
            {"input_ids": tokens, "labels": tokens, "attention_mask": [[1] * 128] * 4096, "length": [128] * 4096}
        )
        meta = TrainDatasetMeta(train_dataset=data, eval_dataset=None, total_num_steps=20)
        trainer, *_ = setup_model_and_trainer(cfg, meta)
        try:
            execute_training(cfg, trainer, None)
        except Stepped:
            return held(trainers[0]) | {"attention": attention} | sharded(trainers[0].model_wrapped)
    raise RuntimeError("no step was made")


def sharded(model: Any) -> dict[str, Any]:
    """How weights are gathered and gradients reduced where FSDP2 shards them."""
    states = [one._get_fsdp_state() for one in model.modules() if hasattr(one, "_get_fsdp_state")]
    groups = [group for state in states for group in state._fsdp_param_groups]
    return {
        "reshards": sorted({one.post_forward_mesh_info is not None for one in groups[1:]}),
        "offloads": sorted({type(one.offload_policy).__name__ for one in groups}),
        "copies": sorted({getattr(one.mesh_info, "replicate_mesh_size", 1) for one in groups}),
        "shards": sorted({one.mesh_info.shard_mesh_size for one in groups}),
        "reduced_in": sorted({str(one.mp_policy.reduce_dtype) for one in groups}),
    }


def main() -> None:
    """Start every run."""
    sys.meta_path.insert(0, Finder(*ABSENT))
    without_devices()
    import axolotl.cli.config
    import axolotl.core.builders
    import axolotl.train  # noqa: F401, once for all runs

    each_alone(started, sys.argv[1:])


if __name__ == "__main__":
    main()
