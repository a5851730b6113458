"""Builds the models of Galvatron's trainer from exported runs, each in a process of its own.

Each argument is the folder of a run, its number of devices and the rank that is built, with colons. Galvatron reads the
words of `train.sh`, Megatron's own check of them and the groups of its own are made, and its trainer's first step
builds the part of the model that this rank has, in the memory of the host. Prints a line of JSON for each: what the
model holds, or how it was refused.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1"}

from stand_ins import Finder, each_alone, fake_group, host_for_gpu, on_host, shards_on_host

ABSENT = ("flash_attn", "apex", "amp_C", "transformer_engine", "pkg_resources")
"""What is not installed: kernels of GPUs, and a part of setuptools that is no more."""


class Built(BaseException):
    """The model is there, data is asked for."""


def started(folder: str, devices: str, rank: str) -> dict[str, Any]:
    """The model as it stands before its data."""
    import torch

    os.chdir(folder)
    os.environ |= {"WORLD_SIZE": devices, "RANK": rank, "LOCAL_RANK": str(int(rank) % 8), "NORM_EPSILON": "1e-5"}
    sys.argv = command(Path("train.sh").read_text())
    with fake_group(int(devices), int(rank)), on_host(torch):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Built as done:
            return held(*done.args)
    raise RuntimeError("no data was asked for")


def held(args: Any, model: Any) -> dict[str, Any]:
    """What a plan says, as the model's objects have it."""
    import torch

    pipeline = model.model
    blocks = [one for one in pipeline.model_cur_stage.module.children() if layers_of(one)]
    outer = [one for one in pipeline.model_cur_stage.module.children() if not layers_of(one)]
    return {
        "stages": pipeline.group_size,
        "stage": pipeline.group_rank,
        "ends": len(outer),
        "layers": [layer(torch, one) for one in blocks],
        "batch": args.global_train_batch_size,
        "micro_batches": pipeline.chunks,
        "gpipe": args.pipeline_type == "gpipe",
        "reduces_wide": args.reduce_in_fp32,
        "reduces_at_the_end": args.async_grad_reduce,
        "scatters": args.sequence_parallel,
        "ends_tp": args.vocab_tp,
        "sizes": [args.num_layers, args.hidden_size, args.num_attention_heads, args.ffn_hidden_size],
        "key_value_heads": args.num_query_groups if args.group_query_attention else args.num_attention_heads,
        "vocab": args.padded_vocab_size,
        "seq_len": args.seq_length,
        "epsilon": sorted({one.eps for one in model.modules() if type(one).__name__ in ("RMSNorm", "LayerNorm")}),
        "slowest": [float(one.inv_freq[-1]) for one in model.modules() if type(one).__name__ == "RotaryEmbedding"][:1],
    }


def layers_of(block: Any) -> list[Any]:
    """The transformer layers inside."""
    return [one for one in block.modules() if type(one).__name__ in ("LlamaLayer_tp", "GPTLayer_tp")]


def layer(torch: Any, block: Any) -> dict[str, Any]:
    """How one layer is divided."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    (inner,), size = layers_of(block), torch.distributed.get_world_size
    (handle,) = [one._handle for one in block.modules() if isinstance(one, FullyShardedDataParallel)]
    flat = handle.flat_param
    return {
        "tp": size(inner.attention.attention.query_key_value.tp_group),
        "ulysses": size(inner.attention.sp_group),
        "recomputes": any("CheckpointWrapper" in type(one).__name__ for one in block.modules()),
        "sharding": handle._sharding_strategy.name,
        "ranks": size(handle.process_group),
        "parameters": sum(flat._numels),
        "computes_in": str(handle._fwd_bwd_param_dtype),
        "kept_in": str(flat.dtype),
        "reduced_in": str(handle._reduce_dtype),
        "moves": any(one is not None for one in (block.allgather_group, block.split_group)),
    }


def loaded() -> None:
    """Load Galvatron once for all runs, and stop where the trainer asks for data."""
    import flash_attn.ops.rms_norm
    import torch

    flash_attn.ops.rms_norm.RMSNorm = torch.nn.RMSNorm
    import galvatron.core
    import galvatron.models.gpt_hf.GPTModel_hybrid_parallel
    import galvatron.models.llama_hf.LlamaModel_hybrid_parallel

    def stops(args: Any, model: Any, *groups: Any) -> None:
        raise Built(args, model)

    galvatron.core.set_megatron_args_for_dataset = stops
    galvatron.core.runtime.utils.set_megatron_args_for_dataset = stops  # where GPT's program has it from
    torch.cuda.is_available = lambda: True
    host_for_gpu(torch, devices=8)
    shards_on_host(torch)


def command(text: str) -> list[str]:
    """Words of the program that a script starts."""
    joined = text.replace("\\\n", " ")
    line = next(one for one in joined.splitlines() if one.startswith("torchrun"))
    words = shlex.split(line)
    return [one for one in words[words.index("start.py") :] if one != "$@"]


if __name__ == "__main__":
    sys.meta_path.append(Finder(*ABSENT))
    loaded()
    each_alone(started, sys.argv[1:])
