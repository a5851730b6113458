"""nanotron's files: windows of Starcoder2, and tables of forks."""

from __future__ import annotations

import json
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.targets import reader_named

SIZES = {"hidden_size": 4608, "num_attention_heads": 36, "num_hidden_layers": 32, "vocab_size": 49152}
MODEL = {"is_starcoder2_config": True, "grouped_query": True, "num_kv_heads": 4, "max_position_embeddings": 65536}


def read(more: dict[str, Any] | None = None, **model: Any) -> LaunchFile:
    keys = {
        "general": {"project": "code", "run": "one"},
        "parallelism": {"dp": 2, "tp": 4, "pp": 1, "tp_mode": "REDUCE_SCATTER"},
        "model": {"dtype": "bfloat16", "model_config": {**MODEL, **SIZES, **model}},
        "tokens": {"micro_batch_size": 1, "batch_accumulation_per_replica": 4, "sequence_length": 65536},
        "optimizer": {"zero_stage": 0, "accumulate_grad_in_fp32": True},
        **(more or {}),
    }
    target = reader_named("nanotron")
    assert target.read is not None
    return target.read({"config.yaml": json.dumps(keys, indent=1)}, None)


def test_windows_of_starcoder2_are_those_of_all_its_layers() -> None:
    assert set(read().model["windows"]) == {None}
    assert set(read(sliding_window_size=4096).model["windows"]) == {4096}


def test_layers_beside_the_window_are_refused() -> None:
    found = read(sliding_window_size=4096, global_attn_layers=[0, 16])
    assert [problem.field for problem in found.problems] == ["model.model_config.global_attn_layers"]


def test_a_table_of_a_fork_is_refused_and_those_of_earlier_releases_are_not() -> None:
    forked = read({"infini_attention": {"turn_on_memory": True, "segment_length": 1024}})
    assert [problem.field for problem in forked.problems] == ["infini_attention"]
    assert not read({"data_stages": [], "profile": None, "kill_switch_path": None}).problems
