"""The measuring tool that runs scripts with recorders: what it records, what it keeps out, and what it compares."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.facts_of_run import of_command
from benchmarks.read_as_run import measured
from benchmarks.recording import record, recorders, slurm

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
