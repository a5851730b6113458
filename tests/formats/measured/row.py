"""A measured row that says everything, and what it is read as."""

from __future__ import annotations

from meshwright.formats.measured import MeasuredRun, model_or_none, read_run
from meshwright.library.devices import device
from meshwright.library.models import resolve
from meshwright.specs.model import ModelSpec

LLAMA = {
    "id": "run",
    "year": "2024",
    "model_name": "my model",
    "n_layers": "32",
    "hidden": "4096",
    "ffn_hidden": "14336",
    "n_heads": "32",
    "n_kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "gated_mlp": "True",
    "gpu": "H100-SXM",
    "gpu_mem_gb": "80",
    "n_gpus": "16",
    "nodes_gpus": "8",
    "seq_len": "8192",
    "tp": "2",
    "pp": "2",
    "vpp": "1",
    "dp": "4",
    "global_batch_seqs": "128",
    "micro_batch": "1",
    "dtype": "bf16",
    "recompute": "none",
    "attention": "flash",
    "zero_stage": "1",
    "framework": "Megatron-Core",
}


def find(name: str) -> ModelSpec | None:
    return model_or_none(resolve, name)


def read(**changes: str) -> MeasuredRun | str:
    return read_run(LLAMA | changes, device, find)


def run_of(**changes: str) -> MeasuredRun:
    found = read(**changes)
    assert isinstance(found, MeasuredRun), found
    return found


def assumed(run: MeasuredRun) -> dict[str, str]:
    return {assumption.name: assumption.value for assumption in run.assumptions}
