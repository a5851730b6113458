"""Real inputs that bad ones are made of: files of the package and of other tests, and a few written here."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import meshwright

PACKAGE = Path(meshwright.__file__).parent
TESTS = Path(__file__).parent.parent

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt3-13b", "qwen3-8b", "deepseek-v3")
GPUS = ("8xH100", "16xH100", "4x8xA100-80", "64xH100", "8xH100,8xA100-80", "2x4xA100-40", "1xRTX4090", "2048xH800")
PLANS = (
    *("tp8.pp4.mbs1.z1.rc-full", "tp2", "tp4.pp2.vpp2.dp2.mbs1.z1", "pp4.mbs2.gbs64.1f1b", "tp8.pp1.dp1.cp2.z3"),
    *("tp2.pp4.vpp2.interleaved.rc-sel", "ep8.tp1.pp2.etp1", "tp2.pp2.zb-h2", "tp1.pp8.zbv.mbs1", "z3.mbs1.rc-full"),
)
CLUSTER = """name = "two"
[[group]]
name = "east"
device = "H100"
nodes = 2
devices_per_node = 8
zone = "us-east"
price_per_device_hour = 2.5
[[group]]
name = "west"
device = "A100-80"
nodes = 1
zone = "us-west"
[[link]]
between = ["us-east", "us-west"]
gb_s = 1.5
latency_us = 30000
price_per_gb = 0.02
"""
MEASURED_GROUPS = tuple(
    f'[[group]]\nname = "{name}"\ndevice = "{device}"\nnodes = {nodes}\ndevices_per_node = {inner}\n'
    f"memory_gib = {gib}\n{zone}"
    for name, device, nodes, inner, gib in (
        ("a", "Alpha-32", 2, 4, 32),
        ("b", "Beta-12", 1, 2, 12),
        ("c", "Alpha-32", 1, 1, 1),
    )
    for zone in ("", 'zone = "z1"\n', 'zone = "z9"\n')
)
MATRIX = """node,device,devices,n1,n2,n3,n4,n5
n1,H100,8,380,45,24,24,11
n2,H100,8,45,382,24,24,11
n3,H100,8,24,24,379,46,11
n4,H100,8,24,24,44,380,11
n5,A100-80,8,11,11,11,11,235
"""
STAGES = """worker,chunk,forward_s,input_s,weight_s,recompute_s,transfer_s,activation_bytes,capacity_bytes,weight_bytes
0,0,1.0,1.0,1.0,0,0.1,1e9,4e10,1e10
1,0,1.2,1.1,1.0,0,0.1,1e9,4e10,1e10
2,0,0.9,1.0,1.0,0,0.1,1e9,4e10,1e10
"""
SCRIPT = """#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
TP=${TP:-8}
PP=4
OPTS="--bf16 --use-distributed-optimizer --sequence-parallel"
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --tensor-model-parallel-size $TP \\
  --pipeline-model-parallel-size $PP --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 $OPTS
"""
LOGS = (
    "\n".join(
        ["  num_layers ........ 32", "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 20480.0 |"]
        + [
            f" iteration {n:8d}/  500 | consumed samples: {n * 256:8d} | elapsed time per iteration (ms): 5100.1 | "
            "learning rate: 1.5E-05 | global batch size:   256 | lm loss: 1.0E+01 |"
            for n in range(1, 9)
        ]
    ),
    "\n".join(
        f"[rank0]:[titan] 2026-03-01 10:00:{n:02d},000 - root - INFO - step: {n:2d}  loss:  6.1  "
        f"memory: 49.50GiB(52.28%)  tps: {5800 + n:,}  tflops: 339.16  mfu: 34.29%"
        for n in range(1, 8)
    ),
    "\n".join(
        ["[2026-01-01] [INFO] [config.py:957:print]   train_batch_size ............. 64"]
        + [
            f"[2026-01-01] [INFO] [timer.py:258:stop] epoch=0/micro_step={4 * n}/global_step={n}, "
            "RunningAvgSamplesPerSec=1.5, CurrSamplesPerSec=8.0, MemAllocated=5.02GB, MaxMemAllocated=60.5GB"
            for n in range(1, 7)
        ]
    ),
    "step,step_time_s,global_batch,seq_len,memory_gib,compute_s,tp_s\n"
    + "".join(f"{n},5.{n},256,4096,60.5,4.0,1.0\n" for n in range(1, 8)),
    '{"traceEvents": [{"name": "ProfilerStep#3", "ph": "X", "ts": 10, "dur": 5000000, "cat": "user_annotation", '
    '"pid": 1, "tid": 1}, {"name": "ncclKernel_AllReduce", "ph": "X", "ts": 20, "dur": 900, "cat": "kernel", "pid": 0,'
    ' "tid": 7, "args": {"stream": 7}}], "distributedInfo": {"rank": 0, "world_size": 8}}',
)
TARGETS = (
    *("megatron", "torchtitan", "deepspeed", "automodel", "bridge", "maxtext", "galvatron", "torch-csv"),
    "accelerate",
)
PRICES = '[[price]]\ndevice = "H100"\nusd_per_device_hour = 3.0\ndate = "2026-05"\nsource = "a contract"\n'
LENGTHS = (
    "512\n1024\n900\n77\n",
    *("lognormal:mean=1200,sigma=1.1,max=32768", "uniform:low=128,high=4096", "histogram:512=.4,2048=.6"),
)


@cache
def models() -> tuple[dict[str, Any], ...]:
    """Configurations of models of every family."""
    found = [json.loads(path.read_text()) for path in sorted((PACKAGE / "library/data/models").glob("*.json"))]
    return tuple(one.get("config", one) for one in found)


@cache
def devices() -> tuple[str, ...]:
    """Device files."""
    return tuple(path.read_text() for path in sorted((PACKAGE / "library/data/devices").glob("*.toml")))


@cache
def scripts() -> tuple[str, ...]:
    """Launch scripts of every construct."""
    return (SCRIPT, *(path.read_text() for path in sorted((TESTS / "formats/shell/scripts").glob("*.sh"))))


@cache
def clusters() -> tuple[str, ...]:
    """Descriptions of clusters in every format."""
    return (CLUSTER, MATRIX, *(path.read_text() for path in sorted((TESTS / "data/clusters").iterdir())))


@cache
def profiles() -> dict[str, str]:
    """A folder of measured profiles, by file."""
    return {path.name: path.read_text() for path in sorted((TESTS / "data/profiles").iterdir())}


@cache
def measured() -> str:
    """Rows of measured runs."""
    lines = (TESTS / "app/data/measured_sample.csv").read_text().splitlines(keepends=True)
    return "".join(lines[:5])


@cache
def calibration() -> dict[str, Any]:
    """A calibration file."""
    found: dict[str, Any] = json.loads((PACKAGE / "library/data/calibration.json").read_text())
    return found


@cache
def calculon() -> tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any]], ...]:
    """Applications, executions and systems of Calculon."""
    home = PACKAGE / "calculon/data"
    with gzip.open(TESTS / "calculon/data/golden_sample.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines][:300]
    found = []
    for row in rows:
        app, system = home / "models" / f"{row['app']}.json", home / "systems" / f"{row['system']}.json"
        if app.exists() and system.exists():
            found.append((json.loads(app.read_text()), row["execution"], json.loads(system.read_text())))
    return tuple(found)


@cache
def plan_sets() -> tuple[dict[str, Any], ...]:
    """Plan files as the command writes them: of one kind of device, of two, of experts."""
    asked = (("llama-3.1-8b", "16xH100"), ("llama-3.1-8b", "8xH100,8xA100-80"), ("mixtral-8x7b", "32xH100"))
    return tuple(json.loads(_written("plan", model, "--gpus", gpus, "--top", "2", "-o")) for model, gpus in asked)


@cache
def orders() -> tuple[str, ...]:
    """Pipeline orders as PyTorch loads them."""
    return tuple(
        _written("schedule", name, "--p", "2", "--m", "4", "--csv") for name in ("1f1b", "interleaved", "zb-h1")
    )


def _written(*words: str) -> str:
    """The file that a command writes."""
    from meshwright.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "written"
        with contextlib.redirect_stderr(io.StringIO()):
            main([*words, str(path)])
        return path.read_text()
