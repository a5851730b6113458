"""Starts exported runs of the transformers trainer up to their first step, in a process of its own.

Each argument is the target's name, the folder of its files, the model's folder and the number of devices, with colons.
The exported program runs as its launcher starts it, on the first rank of a group whose ranks pass nothing on, in the
memory of the host. Prints a line of JSON for each: what the run holds after a step, or how it was refused.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "LOCAL_RANK": "0", "RANK": "0"}

from stand_ins import adam_on_host, each_alone, fake_group

TOKENS = 16
"""Of a sequence here: what a step holds does not depend on it."""
trainers: list[Any] = []


class Stepped(BaseException):
    """A step is done."""


def launched(target: str, folder: Path) -> dict[str, str]:
    """Variables that the launcher of a target sets."""
    if target != "accelerate":
        return {}
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    given = launch_command_parser().parse_args(["--config_file", str(folder / "accelerate.yaml"), "train.py"])
    before = dict(os.environ)
    passed = prepare_multi_gpu_env(_validate_launch_command(given)[0])
    os.environ.clear()
    os.environ.update(before)
    return {name: value for name, value in passed.items() if before.get(name) != value}


def started(target: str, where: str, model: str, devices: str) -> dict[str, Any]:
    """The run after its first step."""
    from accelerate.state import AcceleratorState, GradientState

    folder = Path(where)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    trainers.clear()
    before = dict(os.environ)
    os.environ |= launched(target, folder)
    os.environ |= {"MODEL": model, "WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": "8", "RANK": "0", "LOCAL_RANK": "0"}
    os.chdir(folder)
    program = re.sub(r"^SEQ_LEN = \d+$", f"SEQ_LEN = {TOKENS}", (folder / "train.py").read_text(), flags=re.MULTILINE)
    (folder / "train.py").write_text(program)
    sys.argv = ["train.py", "training_args.json"]
    with fake_group(int(devices)):
        try:
            runpy.run_path("train.py", run_name="__main__")
        except Stepped:
            return held(trainers[0])
        finally:
            os.environ.clear()
            os.environ.update(before)
    raise RuntimeError("no step was made")


def held(trainer: Any) -> dict[str, Any]:
    """What a trainer holds."""
    accelerator, model = trainer.accelerator, trainer.model_wrapped
    modules = list(model.modules())
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    weight = next(one for name, one in model.named_parameters() if "q_proj" in name and one.ndim == 2)
    sampler = trainer.get_train_dataloader().batch_sampler
    return {
        "engine": type(model).__name__,
        "sharded": any(type(one).__name__.startswith("FSDP") for one in modules),
        "zero": model.zero_optimization_stage() if hasattr(model, "zero_optimization_stage") else 0,
        "rows": getattr(weight, "_local_tensor", weight).shape[0] / weight.shape[0],
        "held": (weight.ds_shape[0] if hasattr(weight, "ds_shape") else weight.shape[0]) / 256,
        "tp": trainer.get_tp_size(),
        "cp": trainer.get_cp_size(),
        "sp": trainer.get_sp_size(),
        "ep": max((one.ep_size for one in modules if hasattr(one, "ep_size")), default=1),
        "kept_in": sorted({str(one.dtype) for one in trained}),
        "frozen_in": sorted({str(one.dtype) for one in model.parameters() if not one.requires_grad}),
        "recomputes": any("CheckpointWrapper" in type(one).__name__ for one in modules)
        + any(getattr(one, "gradient_checkpointing", False) is True for one in modules),
        "micro_batch": trainer.args.train_batch_size,
        "accumulates": trainer.args.gradient_accumulation_steps,
        "batch": trainer.get_total_train_batch_size(trainer.args),
        "engine_batch": model.train_batch_size() if hasattr(model, "train_batch_size") else None,
        "dealt": sampler.num_processes,
        "optimizer": type(optimizer).__name__,
        "mixed": accelerator.mixed_precision,
        "attention": trainer.model.config._attn_implementation,
    }


def unsent(state, bucket):  # annotations would be read as types
    """A bucket of gradients as it is, which goes nowhere."""
    import torch

    made: Any = torch.futures.Future()
    made.set_result(bucket.buffer())
    return made


def without_devices() -> None:
    """Take the host's memory for a GPU's, and stop after a step."""
    import accelerate.state
    import deepspeed.ops.adam
    import torch
    import transformers
    from accelerate.utils.dataclasses import DistributedType

    deepspeed.ops.adam.DeepSpeedCPUAdam = adam_on_host(torch)
    from deepspeed.runtime.engine import DeepSpeedEngine
    from transformers.utils.output_capturing import _CanRecordRegistry

    # AutoEP of deepspeed 0.19.8 asks as transformers before 5.23 answered.
    _CanRecordRegistry.get = lambda table, model, *rest: (
        dict.get(table, model if isinstance(model, str) else str(model.__class__), *rest) or {}
    )
    divided = DeepSpeedEngine._configure_tensor_parallel_states

    def unchecked(engine: Any, model: Any) -> None:
        divided(engine, model)
        engine.first_dataloader_check.remove()  # compares with what other ranks would send

    DeepSpeedEngine._configure_tensor_parallel_states = unchecked
    torch.Tensor.cpu = lambda tensor, *rest: tensor.contiguous()  # as a copy from a device is
    torch.Tensor.pin_memory = lambda tensor, *rest: tensor
    torch.nn.functional.scaled_dot_product_attention = lambda query, key, value, **options: (
        query + (key + value).mean(1, True)
    )
    ddp = torch.nn.parallel.DistributedDataParallel
    start = ddp.__init__

    def alone(copies: Any, *rest: Any, **options: Any) -> None:
        start(copies, *rest, **options | {"device_ids": None, "output_device": None})
        copies.register_comm_hook(None, unsent)

    ddp.__init__ = alone
    accelerate.state.PartialState._prepare_backend = lambda *rest: ("nccl", DistributedType.MULTI_GPU)
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    torch.cuda.device_count = lambda: 8
    made = transformers.Trainer.__init__

    def remembered(trainer: Any, *rest: Any, **options: Any) -> None:
        made(trainer, *rest, **options)
        trainers.append(trainer)

    class Stops(transformers.TrainerCallback):
        def on_step_end(self, *rest: Any, **options: Any) -> None:
            raise Stepped

    transformers.Trainer.__init__ = remembered
    transformers.trainer.DEFAULT_CALLBACKS.append(Stops)


if __name__ == "__main__":
    without_devices()
    each_alone(started, sys.argv[1:])
