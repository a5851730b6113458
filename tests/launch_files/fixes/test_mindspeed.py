"""Plans that are written into scripts of MindSpeed-LLM: only by options that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright import check
from meshwright.app.check import CheckReport

SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 40 --hidden-size 5120 --ffn-hidden-size 17408 \\
  --num-attention-heads 40 --group-query-attention --num-query-groups 8 --kv-channels 128 --swiglu \\
  --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 151936 \\
  --untie-embeddings-and-output-weights --hidden-dropout 0.0 --attention-dropout 0.0 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 4 --global-batch-size 128 --bf16 --use-distributed-optimizer \\
  --use-fused-rmsnorm --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 1 {more}
"""
NOT_THERE = re.compile(
    r"layout|comm-overlap|flex|deepep|delay-wgrad|overlap-moe|precision-aware|cpu-offload|fsdp|recompute-modules|comm-type"
)


def fixed(folder: Path, more: str) -> CheckReport:
    (folder / "train.sh").write_text(SCRIPT.replace("{more}", more))
    return check(folder / "train.sh", cluster="16xH100", fix=True, output=folder / "better.sh")


@pytest.mark.parametrize("more", ["", "--context-parallel-algo ulysses_cp_algo --context-parallel-size 1"])
def test_a_better_plan_is_written_by_its_own_options(more: str, tmp_path: Path) -> None:
    report = fixed(tmp_path, more)
    assert report.better is not None
    assert report.fix is not None
    assert not report.fix.why_not
    assert not [change.option for change in report.fix.changes if NOT_THERE.search(change.option)]
    again = check(tmp_path / "better.sh", cluster="16xH100", search=False)
    assert again.name == report.fix.plan == report.better.name


def test_stages_that_are_laid_by_hand_stay(tmp_path: Path) -> None:
    report = fixed(tmp_path, "--noop-layers 38,39")
    assert report.better is None or ".pp" not in f".{report.better.name}"


def test_empty_layers_go_with_the_stages_that_they_make_even(tmp_path: Path) -> None:
    script, better = tmp_path / "run.sh", tmp_path / "better.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel \\\n"
        "  --pipeline-model-parallel-size 4 --num-layers 32 --noop-layers 0,31 --hidden-size 4096 --bf16 \\\n"
        "  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu \\\n"
        "  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \\\n"
        "  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --use-fused-rmsnorm \\\n"
        "  --vocab-size 128256 --position-embedding-type rope --use-distributed-optimizer --reuse-fp32-param\n"
    )
    report = check(source=script, gpus="16xH100", fix=True, output=better)
    assert report.launch is not None
    assert report.fix is not None
    assert {one.option: one.value for one in report.launch.said}["--num-layers"] == "32"
    assert "--noop-layers" not in better.read_text()
    assert "--num-layers 30" in better.read_text()
    again = check(source=better, gpus="16xH100", search=False)
    assert (again.name, again.violations) == (report.fix.plan, ())
