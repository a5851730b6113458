"""Devices for which `check` reads a file that does not say how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright
from meshwright.formats.megatron.read import read_flags

MEGATRON = "python pretrain_gpt.py --num-layers 30 --hidden-size 1920 --num-attention-heads 15 --seq-length 2048"
MEGATRON += " --max-position-embeddings 2048 --micro-batch-size 1 --vocab-size 50304 --bf16"
NEOX = """{{
  "pipe-parallel-size": {pp},
  "model-parallel-size": {tp},
  "num-layers": 33,
  "hidden-size": 1056,
  "num-attention-heads": 11,
  "seq-length": 2048,
  "max-position-embeddings": 2048,
  "train_micro_batch_size_per_gpu": 4,
  "vocab-file": "20B_tokenizer.json",
  "tokenizer-type": "HFTokenizer",
  "zero_optimization": {{"stage": 1}},
  "fp16": {{"enabled": true}}
}}
"""


def test_the_reader_says_what_divides_the_devices() -> None:
    words = f"{MEGATRON} --tensor-model-parallel-size 3 --pipeline-model-parallel-size 5"
    assert read_flags(words).multiple == 15
    assert read_flags(MEGATRON).multiple == 1


@pytest.mark.parametrize(("tp", "pp", "devices"), [(5, 2, 40), (3, 5, 15), (3, 2, 24), (1, 2, 8), (15, 3, 45)])
def test_the_first_usual_count_that_goes_with_the_degrees_is_offered(
    tmp_path: Path, tp: int, pp: int, devices: int
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"{MEGATRON} --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp}\n")
    assert f"--gpus {devices}xH100" in which(path)


@pytest.mark.parametrize(("tp", "pp"), [(11, 3), (1, 11)])
def test_the_product_of_the_degrees_is_no_count_that_the_file_starts(tmp_path: Path, tp: int, pp: int) -> None:
    path = tmp_path / "neox.yml"
    path.write_text(NEOX.format(tp=tp, pp=pp))
    asked = which(path)
    assert "the file does not say how many devices run it" in asked
    assert f"--gpus {tp * pp}xH100" in asked


def which(path: Path) -> str:
    """The question for the cluster."""
    report = meshwright.check(source=path)
    assert [one.what for one in report.violations if "multiple of" in one.why] == []
    (question,) = [one for one in report.violations if one.what == "no cluster is given"]
    return f"{question.why}: {question.fix}"
