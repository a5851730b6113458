"""Starts configurations of LitGPT up to an update of its own program, each in a process of its own.

Each argument is the program, `pretrain`, `finetune_full` or `finetune_lora`, the folder with `litgpt.yaml` and the
number of devices, with colons. LitGPT's command line reads the file, Lightning's Fabric divides the model on the first
rank of a group that passes nothing on, in the memory of the host, and the program works through the micro-batches of a
step. Prints a line of JSON for each: what the run holds then, or how it was refused.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from stand_ins import Finder, each_alone, fake_group, shards_on_host

ABSENT = ("litdata", "lightning_cloud", "lightning_sdk", "litlogger", "litserve")
"""What is not installed: of data and of services."""
TOKENS = 16
"""Of a sequence here: what a step holds does not depend on it."""
PROGRAMS = {
    "pretrain": "litgpt.pretrain",
    "finetune_full": "litgpt.finetune.full",
    "finetune_lora": "litgpt.finetune.lora",
}
fabrics: list[Any] = []
passes: list[dict[str, int]] = []
taken: list[int] = []


class Stepped(BaseException):
    """The gradients of a step are there."""


def started(program: str, folder: str, devices: str) -> dict[str, Any]:
    """The run before its first update."""
    import litgpt.__main__ as command
    import torch

    os.chdir(folder)
    checkpoint()
    sys.argv = ["litgpt", program, "--config", "litgpt.yaml"]
    with fake_group(int(devices)):
        try:
            command.main()
        except Stepped:
            return held(torch)
    raise RuntimeError("no step was made")


def checkpoint() -> None:
    """The folder that the file names, with a model's configuration alone: weights and words are not read."""
    import yaml
    from litgpt import Config
    from litgpt.utils import save_config

    named = yaml.safe_load(Path("litgpt.yaml").read_text()).get("checkpoint_dir")
    if named:
        folder = Path(named)
        folder.mkdir(parents=True, exist_ok=True)
        save_config(Config.from_name(folder.name), folder)
        for name in ("lit_model.pth", "tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_text("{}")


def held(torch: Any) -> dict[str, Any]:
    """What a plan says, as the program's objects have it."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model, optimizer, fabric = fabrics[0].seen_model, fabrics[0].seen_optimizer, fabrics[0]
    modules = list(model.modules())
    flat = [one._handle for one in modules if isinstance(one, FullyShardedDataParallel) and one._handle is not None]
    # Fabric's own module answers for the one inside.
    states = list(dict.fromkeys(one._get_fsdp_state() for one in modules if hasattr(one, "_get_fsdp_state")))
    groups = [group for state in states for group in state._fsdp_param_groups]
    inner = [group for state in states[1:] for group in state._fsdp_param_groups]
    whole = ("FULL_SHARD", "HYBRID_SHARD")
    weights = [one for group in optimizer.param_groups for one in group["params"]]
    trained = [one for one in weights if one.requires_grad]
    mixed = [handle._fwd_bwd_param_dtype for handle in flat] + [one.mp_policy.param_dtype for one in groups]
    reduced = [handle._reduce_dtype for handle in flat] + [one.mp_policy.reduce_dtype for one in groups]
    layers = [one for one in modules if type(one).__name__ in ("Block", "FSDPBlock")]
    return {
        "kind": "fsdp1" if flat else "fsdp2" if groups else "alone",
        "shards": sorted({one.world_size for one in flat} | {one.mesh_info.shard_mesh_size for one in groups}),
        "reshards": sorted(
            {one._sharding_strategy.name in whole for one in flat}
            | {one.post_forward_mesh_info is not None for one in inner}
        ),
        "offloads": sorted(
            {one._offload_params for one in flat} | {"CPU" in type(one.offload_policy).__name__ for one in groups}
        ),
        "kept_in": sorted({str(one.dtype) for one in trained}),
        "frozen_in": sorted({str(one.dtype) for one in weights if not one.requires_grad}),
        "computes_in": sorted({str(one) for one in mixed}),
        "reduced_in": sorted({str(one) for one in reduced}),
        "gradients_in": sorted({str(one.grad.dtype) for one in trained if one.grad is not None}),
        "precision": fabric.strategy.precision.precision,
        "trained": sum(getattr(one, "_local_tensor", one).numel() for one in trained),
        "layers": len(layers),
        "recomputes": sum("CheckpointWrapper" in type(one).__name__ for one in modules),
        "micro_batches": passes,
        "world": fabric.world_size,
        "optimizer": type(getattr(optimizer, "optimizer", optimizer)).__name__,
    }


def gradient_bytes(model: Any) -> int:
    """Bytes of the gradients that are held, those that FSDP keeps aside among them."""
    modules = list(model.modules())
    states = dict.fromkeys(one._get_fsdp_state() for one in modules if hasattr(one, "_get_fsdp_state"))
    groups = [group for state in states for group in state._fsdp_param_groups]
    aside = [one.unsharded_accumulated_grad for group in groups for one in group.fsdp_params]
    held = [*(one.grad for one in model.parameters()), *aside]
    return sum(one.numel() * one.itemsize for one in held if one is not None)


def without_devices() -> None:
    """Take the host's memory for a GPU's, and stop before the first update."""
    import importlib

    import lightning
    import torch
    from lightning.fabric.accelerators import CUDAAccelerator
    from lightning.fabric.plugins.environments import LightningEnvironment
    from litgpt.config import name_to_config
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    class Ranks(LightningEnvironment):
        """The first of all ranks, which a launcher started."""

        creates_processes_externally = True

        def local_rank(self) -> int:
            return 0

    host = {
        "setup_device": lambda made, device: None,
        "teardown": lambda made: None,
        "parse_devices": staticmethod(lambda devices: list(range(devices))),
        "get_parallel_devices": staticmethod(lambda devices: [torch.device("cpu")] * len(devices)),
        "is_available": staticmethod(lambda: True),
    }
    for name, does in host.items():
        setattr(CUDAAccelerator, name, does)
    start = lightning.Fabric.__init__

    def on_host(fabric: Any, *rest: Any, plugins: Any = None, loggers: Any = None, **options: Any) -> None:
        start(fabric, *rest, plugins=[*([plugins] if plugins else []), Ranks()], **options)
        fabrics.append(fabric)

    lightning.Fabric.__init__ = on_host
    backward = lightning.Fabric.backward

    def counted(fabric: Any, loss: Any, *rest: Any, **options: Any) -> None:
        backward(fabric, loss, *rest, **options)
        passes.append({"sequences": taken[-1], "gradient_bytes": gradient_bytes(fabric.seen_model)})

    lightning.Fabric.backward = counted
    for name in ("setup", "setup_module"):
        made = getattr(lightning.Fabric, name)

        def remembered(fabric: Any, module: Any, *rest: Any, made: Any = made, **options: Any) -> Any:
            fabric.seen_model = made(fabric, module, *rest, **options)
            return fabric.seen_model

        setattr(lightning.Fabric, name, remembered)
    optimizers = lightning.Fabric.setup_optimizers

    def kept(fabric: Any, *given: Any) -> Any:
        fabric.seen_optimizer = given[0]
        return optimizers(fabric, *given)

    lightning.Fabric.setup_optimizers = kept
    lightning.Fabric.setup_dataloaders = lambda fabric, *loaders, **options: loaders

    def stops(*rest: Any) -> None:
        raise Stepped

    register_optimizer_step_pre_hook(stops)
    torch.compile = lambda model, *rest, **options: model
    name_to_config["pythia-14m"] |= {"n_layer": 3, "vocab_size": 500, "padded_vocab_size": 512}

    shards_on_host(torch)
    torch.cpu.device_count = lambda: len(fabrics[0].strategy.parallel_devices)  # HYBRID_SHARD asks for those of a node
    lightning.Fabric.logger = SimpleNamespace(log_hyperparams=lambda given: None)
    for path in PROGRAMS.values():
        module = importlib.import_module(path)
        module.choose_logger = lambda *rest, **options: None
        module.parse_devices = lambda devices: 16 if devices in ("auto", -1) else int(devices)
        module.Tokenizer = lambda *rest, **options: None
        module.get_dataloaders = dealt
        module.validate = lambda *rest, **options: torch.tensor(1.0)
        module.check_valid_checkpoint_dir = lambda *rest, **options: None
        module.load_checkpoint = lambda *rest, **options: None


class Batches:
    """Sequences without words, as a program's loader hands them out."""

    dataset = ({"input_ids": [1] * TOKENS},)

    def __init__(self, sequences: int, tokens: int | None) -> None:
        """So many at a time: of this length and one more, or pairs of questions and answers."""
        self.sequences, self.tokens = sequences, tokens

    def __len__(self) -> int:
        """Enough for many steps."""
        return 4096

    def __iter__(self) -> Any:
        """Without end."""
        import torch

        words = torch.ones(self.sequences, self.tokens + 1 if self.tokens else TOKENS, dtype=torch.long)
        counts = dict.fromkeys(("raw", "raw_plus_prompt_template"), words[:, 0])
        pairs = {"input_ids": words, "labels": words, "token_counts": counts}
        while True:
            taken.append(self.sequences)
            yield words if self.tokens else pairs


def dealt(fabric: Any, data: Any, tokenizer: Any, train: Any, *length: int) -> tuple[Batches, Batches]:
    """Data that is not there, with as many sequences as the program asks a loader for."""
    return (Batches(train.micro_batch_size, *(length or (None,))),) * 2


def main() -> None:
    """Start every run."""
    sys.meta_path.append(Finder(*ABSENT))
    without_devices()
    each_alone(started, sys.argv[1:])


if __name__ == "__main__":
    main()
