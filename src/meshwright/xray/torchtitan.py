"""One rank of torchtitan: its own model and parallelisms, under a module that we export."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from meshwright.xray import collectives, substitutes
from meshwright.xray.module import adam_states
from meshwright.xray.tape import Missing, Tape

MODULE, FUNCTION = "meshwright_plan", "plan"


def trace_torchtitan(tape: Tape, files: dict[str, str], micro_batches: int | None) -> dict[str, Any]:
    """Run one step of this rank.

    Args:
        tape: what counts.
        files: the module and what lies beside it, by name.
        micro_batches: the number of micro-batches to run; one by default.

    Returns:
        Fields of `Traced` that only this framework knows.
    """
    folder = Path(tempfile.mkdtemp(prefix="xray-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    os.environ.setdefault("LOCAL_RANK", "0")
    _on_cpu()
    _without_propagation(tape)
    _with_shards(tape)
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as dist_utils

    # Meshes are read as numbers, and the model has no storage yet: neither is of the tape.
    with _disable_current_modes():
        config = ConfigManager().parse_args(["--module", MODULE, "--config", FUNCTION])
        # FSDP of PyTorch 2.13 takes no parameters that are annotated rather than DTensors, which torchtitan's own
        # default makes since 0.3.
        config.parallelism.spmd_backend = "partial_dtensor"
        dims = ParallelDims.from_config(config.parallelism, torch.distributed.get_world_size())
        dims.build_mesh()
        _name_groups(dims)
        dist_utils.set_spmd_backend(config.parallelism.spmd_backend)
        config.compile.enable = False
        spec = config.model_spec
        spec.model.update_from_config(config=config)
        _flash_attention(tape)
        if dims.pp > 1:
            raise Missing("stages of torchtitan exchange shapes as they run, which one rank alone cannot: use pp1")
        of_step, run = _micro_batches(config, dims, micro_batches)
        loss = config.loss.build(compile_config=config.compile)
        with torch.device("meta"):
            model = spec.model.build()
        model = _parallel(config, dims, model)
    model.to_empty(device="cpu")
    model.train()
    parameters = list(model.parameters())
    tape.rename((_local(one) for one in parameters), "weights")
    with tape.during("optimizer is made", "optimizer"):
        states = adam_states([_local(one) for one in parameters])
    with tape.during("forward and backward", "activations"):
        tape.operators.clear()
        tape.flop.clear()
        tape.collectives.clear()
        _step(config, dims, model, loss, run)
    del states
    return {
        "parameters": sum(_local(one).numel() for one in parameters),
        "micro_batches": run,
        "of_micro_batches": of_step,
        "substitutes": ["attention that keeps no scores (CUDA kernels of PyTorch)"],
        "notes": [
            "run with --parallelism.spmd_backend partial_dtensor, the one that PyTorch 2.13 takes",
            "run without torch.compile: operators between products run unfused, and keep their own outputs",
        ],
    }


def _on_cpu() -> None:
    """torchtitan asks once which kind of device there is."""
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.set_device = lambda *_: None


def _with_shards(tape: Tape) -> None:
    """Whole weights of FSDP go and come in the storages that they have: no operator tells the tape of it."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    for name in ("alloc_storage", "free_storage"):
        usual = getattr(_fsdp_param, name)

        def resized(tensor: torch.Tensor, usual: Any = usual) -> None:
            usual(tensor)
            tape.hold(tensor.untyped_storage())
            tape.rename([tensor], "backward")  # they are there in passing

        for module in (_fsdp_param, _fsdp_param_group):
            if hasattr(module, name):
                setattr(module, name, resized)


def _without_propagation(tape: Tape) -> None:
    """What DTensor runs on whole tensors, to learn their sizes, is of no rank."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    usual = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagated(*args: Any, **kwargs: Any) -> Any:
        tape.muted += 1
        try:
            return usual(*args, **kwargs)
        finally:
            tape.muted -= 1

    ShardingPropagator._propagate_tensor_meta_non_cached = propagated


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """What part of a parameter lies on this rank."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _name_groups(dims: Any) -> None:
    """The short name of the group of each axis."""
    for axis, short in (
        *(("tp", "tp"), ("cp", "cp"), ("pp", "pp"), ("ep", "ep"), ("efsdp", "edp")),
        *(("dp_replicate", "dp_replicate"), ("fsdp", "dp"), ("dp_shard", "dp"), ("dp", "dp"), ("batch", "dp")),
    ):
        try:
            mesh = dims.get_optional_mesh(axis)
        except ValueError:  # an axis that this version does not have
            continue
        if mesh is not None:
            collectives.GROUPS.setdefault(str(mesh.get_group().group_name), short)


def _flash_attention(tape: Tape) -> None:
    """Core attention of every kind as kernels on GPUs have it."""
    from torchtitan.models.common import attention

    def forward(self: Any, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, **_: Any) -> torch.Tensor:  # torchtitan's names
        return substitutes.fused_attention(tape, q_BLNH, k_BLNH, v_BLNH)

    for name in ("VarlenAttention", "FlexAttention", "ScaledDotProductAttention"):
        getattr(attention, name).forward = forward


def _micro_batches(config: Any, dims: Any, asked: int | None) -> tuple[int, int]:
    """Micro-batches of a step, and those to run."""
    replicas = dims.dp_replicate * dims.dp_shard
    each, batch = config.training.local_batch_size, config.training.global_batch_size
    of_step = max(1, (batch if batch > 0 else each * replicas) // (each * replicas))
    return of_step, min(of_step, asked or 1)


def _parallel(config: Any, dims: Any, model: Any) -> Any:
    """The model as this rank has it."""
    return config.model_spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=config.activation_checkpoint,
        dump_folder=tempfile.gettempdir(),
    )


def _step(config: Any, dims: Any, model: Any, loss: Any, run: int) -> None:
    tokens = torch.zeros(config.training.local_batch_size, config.training.seq_len // dims.cp, dtype=torch.int64)
    valid = torch.ones((), dtype=torch.float32)
    if hasattr(loss, "set_lm_head"):
        loss.set_lm_head(model.lm_head)
        model._skip_lm_head = True
    for _ in range(run):
        made, _ = loss(model(tokens), tokens, valid)
        made.backward()
