"""The measuring tool that runs scripts with recorders: what it records, what it keeps out, and what it compares."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.facts_of_keys import of_module
from benchmarks.facts_of_run import of_command
from benchmarks.options_of_run import lost, unlike
from benchmarks.read_as_run import measured
from benchmarks.recording import record, recorders, slurm
from meshwright.formats.megatron.read import read_flags

_SEALS = (
    shutil.which("unshare")
    and not subprocess.run(["unshare", "-Urnmpf", "true"], capture_output=True, check=False).returncode
)
pytestmark = pytest.mark.skipif(not _SEALS, reason="this machine makes no user namespaces")

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
set -euo pipefail
source /opt/conda/activate
TP=${TP:-2}
GPUS=$(nvidia-smi -L | wc -l)
RUN="torchrun --nproc_per_node $GPUS --nnodes $SLURM_NNODES pretrain_gpt.py --tensor-model-parallel-size $TP"
srun --nodes 2 bash -c "$RUN --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 \\
  --max-position-embeddings 1024 --micro-batch-size $((TP * 2)) --global-batch-size 64 --bf16 --vocab-size 32000"
"""


def test_the_words_behind_every_launcher_are_recorded(tmp_path: Path) -> None:
    tree = tmp_path / "trees" / "one"
    tree.mkdir(parents=True)
    (tree / "train.sbatch").write_text(SCRIPT)
    run = record(tree, "train.sbatch", environment={"TP": "4"}, programs=recorders(tmp_path))
    assert [one.argv[0] for one in run.commands] == ["nvidia-smi", "srun", "torchrun"]
    kind, facts = of_command(run.commands[-1].argv, lambda path: None)
    assert (kind, facts["tp"], facts["mbs"], facts["devices"], facts["dp"]) == ("megatron", 4, 8, 16, 4)
    assert run.commands[-1].environment["SLURM_NNODES"] == slurm(SCRIPT)["SLURM_NNODES"] == "2"


def test_a_script_reaches_nothing_outside_its_root(tmp_path: Path) -> None:
    tree = tmp_path / "trees" / "one"
    tree.mkdir(parents=True)
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    (tree / "bad.sh").write_text(f"rm -rf {kept} *.sh; ls {tmp_path} >out.txt\ntorchrun train.py $(wc -c <out.txt)\n")
    run = record(tree, "bad.sh", programs=recorders(tmp_path))
    assert run.commands[-1].argv == ("torchrun", "train.py", "0")
    assert kept.read_text() == "kept"
    assert [path.name for path in tree.iterdir()] == ["bad.sh"]


def test_what_check_reads_is_held_against_what_was_recorded(tmp_path: Path) -> None:
    tree = tmp_path / "trees" / "one"
    tree.mkdir(parents=True)
    (tree / "train.sbatch").write_text(SCRIPT)
    found = measured(tmp_path / "trees", "one/train.sbatch", recorders(tmp_path))
    assert (found.verdict, found.differs) == ("exact", {})
    assert {"tp": 2, "mbs": 4, "gbs": 64, "seq": 1024}.items() <= found.compared.items()


def test_an_option_that_is_read_otherwise_or_lost_is_told() -> None:
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --micro-batch-size 2 --data-path $HERE/a --bf16\n"
    )
    read = read_flags(text)
    words = ["--num-layers", "4", "--micro-batch-size", "2", "--data-path", "/a", "--bf16"]
    assert (unlike(read, words), lost(read, words)) == ({}, [])
    words[3:] = ["1", "--clip-grad", "1.0"]
    assert unlike(read, words) == {"micro-batch-size": ["1", "2"], "bf16": ["not stated", ""]}
    assert lost(read, words) == ["clip-grad"]


def test_keys_of_a_command_and_of_a_module_are_read(tmp_path: Path) -> None:
    words = ["python3", "-m", "MaxText.train", "base.yml", "ici_tensor_parallelism=4", "dcn_pipeline_parallelism=2"]
    kind, facts = of_command([*words, "max_target_length=2048"], lambda path: None)
    assert (kind, facts["tp"], facts["pp"], facts["seq"]) == ("maxtext", 4, 2, 2048)
    recipe = ["run_recipe.py", "model.tensor_model_parallel_size=2", "train.micro_batch_size=1"]
    assert of_command(["torchrun", "--nproc_per_node=8", *recipe], lambda path: None) == (
        "bridge",
        {"tp": 2, "mbs": 1, "devices": 8},
    )
    module = tmp_path / "train.py"
    module.write_text("config = Trainer.Config(parallelism=ParallelismConfig(tensor_parallel_degree=8))\n")
    assert of_module(module) == ("torchtitan", {"tp": 8})
