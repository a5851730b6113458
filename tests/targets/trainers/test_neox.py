"""GPT-NeoX with Transformer Engine's layers: the same products, another attention kernel, widths of their own."""

from __future__ import annotations

import json
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.targets import reader_named

SIZES = {"hidden_size": 4096, "num_layers": 32, "num_attention_heads": 32, "seq_length": 2048, "pos_emb": "rotary"}
PLAIN = {"pipe_parallel_size": 1, "model_parallel_size": 1, "no_weight_tying": True, "padded_vocab_size": 50304}
BATCH = {"train_micro_batch_size_per_gpu": 4, "precision": "bfloat16", "zero_optimization": {"stage": 1}}


def read(**more: Any) -> LaunchFile:
    target = reader_named("neox")
    assert target.read is not None
    return target.read({"neox.yml": json.dumps({**SIZES, **PLAIN, **BATCH, **more}, indent=1)}, 8)


def test_layers_of_transformer_engine_are_read_as_the_products_they_are() -> None:
    names = ("te_mha", "te_layernorm_mlp", "te_columnparallel", "te_rowparallel")
    found = read(**dict.fromkeys(names, True), te_fp8_mha=False, te_fp8_format="hybrid")
    plain = read()
    assert found.problems == plain.problems == ()
    assert found.model == plain.model
    assert (plain.workload["attention_kernel"], found.workload["attention_kernel"]) == ("materialised", "flash")
    assert {one.option for one in found.said} >= {*names}


def test_products_in_8_bits_are_refused() -> None:
    assert [problem.field for problem in read(te_fp8_mha=True).problems] == ["te_fp8_mha"]


def test_gated_layers_of_transformer_engine_are_not_narrowed() -> None:
    gated = {"norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 11008, "mlp_multiple_of": 256}
    assert read(**gated).model["ffn_hidden"] == 3840  # ceil(11008 x 2/3 / 2 / 256) x 256
    assert read(**gated, te_layernorm_mlp=True).model["ffn_hidden"] == 11008


def test_the_width_follows_from_an_expansion_factor() -> None:
    assert read(expansion_factor=3.5).model["ffn_hidden"] == 14336


def test_windows_are_refused_and_curricula_said() -> None:
    assert [problem.field for problem in read(sliding_window_width=512).problems] == ["sliding_window_width"]
    found = read(curriculum_learning={"enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8})
    assert any("full length" in note for note in found.notes)


def test_what_a_file_leaves_to_others_is_said() -> None:
    target = reader_named("neox")
    assert target.read is not None
    model = {**SIZES, **PLAIN, "train_micro_batch_size_per_gpu": 4}
    (note,) = target.read({"neox.yml": json.dumps(model, indent=1)}, 8).notes
    assert note.startswith("fp32 and whole optimizer states are taken")
    assert read().notes == ()


def test_its_first_releases_say_bf16_within_fp16() -> None:
    half, wide = ({"enabled": True}, {"enabled": True, "type": "bfloat16"})
    names = [read(precision=None, fp16=one).workload["precision"].name for one in (half, wide)]
    assert names == ["fp16", "bf16"]
