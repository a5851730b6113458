"""Scripts of Galvatron's releases whose trainer takes options: as a plan, with the model that they name by a size."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright
from meshwright.app.check import CheckReport

LAUNCHER = "python3 -m torch.distributed.launch --nproc_per_node 8"
MODEL = "--model_size llama-7b --set_model_config_manually 0 --num_hidden_layers 8 --seq_length 1024"
PLAN = "--pp_deg 2 --global_tp_deg 2 --vocab_tp 2 --sdp 0 --global_checkpoint 1 --chunks 4 --default_dp_type zero2"


def read(tmp_path: Path, words: str, program: str = "train_dist.py") -> CheckReport:
    """A script of this command, checked."""
    path = tmp_path / "train.sh"
    path.write_text(
        f"#!/bin/bash\n{LAUNCHER} {program} {words} --pipeline_type pipedream_flush --mixed_precision bf16 "
        "--global_train_batch_size 32 --use-flash-attn --sequence-parallel --vocab-file /data/gpt2-vocab.json\n"
    )
    return meshwright.check(source=path, gpus="8xH100")


def test_options_are_read_as_a_plan(tmp_path: Path) -> None:
    report = read(tmp_path, f"{MODEL} --set_layernum_manually 1 {PLAN}")
    assert report.name.startswith("tp2.pp2.dp2.z2.mbs4.gbs32.rc-full")
    assert report.inputs is not None
    assert report.inputs.model.num_layers == 8
    assert report.inputs.workload.seq_len == 2048  # its size says the length unless it is set


def test_layers_that_are_not_set_are_those_of_the_size(tmp_path: Path) -> None:
    report = read(tmp_path, f"{MODEL} --set_layernum_manually 0 --set_seqlen_manually 1 {PLAN}")
    assert report.inputs is not None
    assert (report.inputs.model.num_layers, report.inputs.workload.seq_len) == (32, 1024)
    assert 6e9 < report.inputs.model.parameters < 7e9


def test_a_degree_that_is_left_out_is_that_of_its_trainer(tmp_path: Path) -> None:
    report = read(tmp_path, f"{MODEL} {PLAN}".replace("--pp_deg 2 ", ""))
    assert ".pp2." in report.name


def test_a_tensor_degree_of_minus_one_is_none(tmp_path: Path) -> None:
    words = f"{MODEL} {PLAN}".replace("--global_tp_deg 2", "--global_tp_deg -1").replace("--vocab_tp 2", "")
    report = read(tmp_path, words)
    assert report.name.startswith("pp2.dp4.z2")
    assert not any(one.field.startswith("parallel") for one in report.violations)


def test_another_cut_of_the_vocabulary_and_other_models_are_refused(tmp_path: Path) -> None:
    report = read(tmp_path, f"{MODEL} {PLAN}".replace("vocab_tp 2", "vocab_tp 4").replace("llama-7b", "t5-large"))
    assert [one.what for one in report.violations][:2] == [
        "model.model_size is 't5-large'",
        "parallel.vocab_tp is 4",
    ]


def test_its_profiler_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(meshwright.InputError, match=r"profiler\.py does not train a model"):
        read(tmp_path, f"{MODEL} --profile_type memory", "profiler.py")


def test_its_exported_script_is_checked_without_a_size(tmp_path: Path) -> None:
    asked = {"gpus": "8xA100-80", "seq_len": 4096, "global_batch": 64}
    planned = meshwright.plan("llama-2-7b", target="galvatron", top=1, **asked)
    meshwright.export(planned[0].job, "galvatron", tmp_path)
    report = meshwright.check("llama-2-7b", source=tmp_path / "train.sh", gpus="8xA100-80", search=False)
    assert report.name == planned[0].name
    assert report.violations == ()
