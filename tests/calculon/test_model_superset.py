"""Today's models in the same three files, and the repaired errors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.layer_list import layer_list
from meshwright.calculon.model import price
from meshwright.calculon.reading import read_application, read_execution, read_system
from tests.calculon.figures import answers, execution

GPT = read_application("gpt3-175B")
ROOMY = read_system("a100_80e")
LLAMA = Application(
    name="llama-3-8b-like",
    hidden=4096,
    feedforward=14336,
    seq_size=8192,
    attn_heads=32,
    attn_size=128,
    num_blocks=32,
    structure_type="llama",
    kv_heads=8,
)


def stats(app: Application = GPT, system: System = ROOMY, *, fixed: bool = False, **changes: Any) -> dict[str, Any]:
    rows = ExecutionColumns.from_executions([read_execution(execution(**changes))])
    answer = price(app, system, rows, fixed=fixed)
    assert answer.ok[0], answer.reason
    return answer.stats(0)


LLAMA_RUN: dict[str, Any] = {"tensor_par": 8, "pipeline_par": 8, "pipeline_interleaving": 2, "batch_size": 32}


@pytest.mark.parametrize("overlap", ["none", "ring", "pipe"])
@pytest.mark.parametrize("comm", ["ar", "rs_ag"])
def test_grouped_with_all_heads_is_multihead(overlap: str, comm: str) -> None:
    every = replace(GPT, kv_heads=GPT.attn_heads)
    change = {"tensor_par_overlap": overlap, "tensor_par_comm_type": comm, "seq_par_ag_redo": False}
    assert stats(every, attention_type="grouped", **change) == stats(GPT, attention_type="multihead", **change)


def test_fewer_key_and_value_heads_are_cheaper() -> None:
    rates = [stats(replace(GPT, kv_heads=heads), attention_type="grouped")["sample_rate"] for heads in (96, 48, 16, 8)]
    assert rates == sorted(rates)
    weights = [stats(replace(GPT, kv_heads=heads), attention_type="grouped")["weight_space"] for heads in (96, 8)]
    saved = 12 * 2 * 2 * GPT.hidden * (96 - 8) * 128 / 8
    assert weights[0] - weights[1] == saved


def test_flash_attention_stores_no_scores_and_is_faster() -> None:
    full, flash = (stats(attention_type=kind, activation_recompute="none") for kind in ("multihead", "flash"))
    assert flash["block_act_storage_space"] < 0.5 * full["block_act_storage_space"]
    assert flash["sample_rate"] > full["sample_rate"]
    scores = 96 // 8 * 2048 * 2048
    # Softmax's input and output, two bytes each, and the dropout's mask are what is no longer kept.
    assert full["block_act_storage_space"] - flash["block_act_storage_space"] == pytest.approx(5 * scores, rel=0.05)
    product = 2 * 12 * 2048 * 2048 * 128
    assert full["block_agrad_flops"] + product == pytest.approx(flash["block_agrad_flops"], rel=0.01)


def test_a_llama_block_has_its_weights_and_layers() -> None:
    one = stats(LLAMA, attention_type="flash", **LLAMA_RUN)
    weights = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert one["block_weight_space"] == 2 * (weights / 8 + 2 * 4096)
    names = [
        layer["name"]
        for layer in layer_list(LLAMA, ROOMY, read_execution(execution(attention_type="flash", **LLAMA_RUN)))
    ]
    assert "AttnBlock_Rotary" in names
    assert "MlpBlock_SwiGLU" in names
    assert not any("DropOut" in str(name) for name in names)


def test_a_vocabulary_adds_its_head_and_tables() -> None:
    words = replace(LLAMA, vocab_size=128256)
    run = {"attention_type": "flash", **LLAMA_RUN}
    without, with_words = stats(LLAMA, **run), stats(words, **run)
    assert with_words["total_time"] > without["total_time"]
    assert with_words["weight_space"] - without["weight_space"] == 2 * 4096 * 128256 / 8
    alone = {**run, "pipeline_par": 1, "pipeline_interleaving": 1, "num_procs": 8}
    more = stats(words, **alone)["weight_space"] - stats(LLAMA, **alone)["weight_space"]
    assert more == 2 * 2 * 4096 * 128256 / 8
    assert stats(words, **alone)["act_space"] - stats(LLAMA, **alone)["act_space"] == 8 * 8192 * 128256 / 8
    head_flop = 6 * 8192 * 4096 * 128256 / 8
    peak = 312e12
    useful_s = [one["total_efficiency"] * one["total_time"] for one in (without, with_words)]
    assert useful_s[1] - useful_s[0] == pytest.approx(32 * head_flop / peak)


def test_mended_recompute_costs_the_forward_pass_once() -> None:
    change = {"activation_recompute": "full", "seq_par_ag_redo": False, "tensor_par_comm_type": "ar"}
    as_is, repaired = stats(**change), stats(**change, fixed=True)
    assert as_is["block_re_flops"] > 5 * as_is["block_fw_flops"]
    # Everything is recomputed but the collectives, whose sums are the only flop that differ.
    assert repaired["block_re_flops"] == pytest.approx(repaired["block_fw_flops"], rel=1e-3)
    assert as_is["block_re_time"] == repaired["block_re_time"]


def test_mended_checkpoints_are_divided_under_sequence_parallelism() -> None:
    change = {"activation_recompute": "full", "seq_par_ag_redo": False}
    assert stats(**change)["act_checkpoint_size"] == 8 * stats(**change, fixed=True)["act_checkpoint_size"]


def test_mended_gradients_have_four_bytes() -> None:
    as_is, repaired = stats(), stats(fixed=True)
    assert repaired["weight_grad_space"] == 2 * repaired["weight_space"]
    assert as_is["weight_grad_space"] < 1.1 * as_is["weight_space"]
    # 18 bytes per parameter of Korthikanti et al.: 2 weights, 4 gradients, 12 optimizer.
    total = repaired["weight_space"] + repaired["weight_grad_space"] + repaired["optimizer_space"]
    assert total == 9 * repaired["weight_space"]


def test_mended_pipe_overlap_counts_its_bare_tile_once() -> None:
    pipe, ring = (stats(tensor_par_overlap=kind, fixed=True) for kind in ("pipe", "ring"))
    assert pipe["block_fw_time"] == ring["block_fw_time"]
    assert pipe["baseblock_fw_tp_time_exposed"] > ring["baseblock_fw_tp_time_exposed"]
    as_is = stats(tensor_par_overlap="pipe")
    assert as_is["total_time"] > pipe["total_time"]


def test_mended_edge_blocks_show_their_own_collectives() -> None:
    change = {"tensor_par_overlap": "ring", "tensor_par_comm_type": "p2p_rs_ag", "seq_par_ag_redo": False}
    as_is, repaired = stats(**change), stats(**change, fixed=True)
    assert as_is["baseblock_fw_tp_time_exposed"] == as_is["edgeblock_fw_tp_time_exposed"]
    assert repaired["edgeblock_fw_tp_time"] != repaired["baseblock_fw_tp_time"]


def test_mended_data_traffic_never_shows_more_than_is_sent() -> None:
    worst = 0.0
    for design, as_is in answers():
        repaired = design.priced(fixed=True)
        ok = as_is.ok & repaired.ok
        assert (repaired["dp_comm_exposed_time"][ok] <= repaired["dp_comm_link_time"][ok] * (1 + 1e-9)).all()
        worst = max(worst, float((as_is["dp_comm_exposed_time"] - as_is["dp_comm_link_time"])[ok].max(initial=0)))
    assert worst > 0


def test_mended_inference_says_zero_instead_of_none() -> None:
    change = {"training": False, "activation_recompute": "none", "seq_par_ag_redo": False}
    assert stats(**change)["act_checkpoint_size_with_offload"] is None
    assert stats(**change, fixed=True)["act_checkpoint_size_with_offload"] == 0


def test_the_manual_lists_the_quirks_that_the_source_names() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "coming-from-calculon.md").read_text()
    listed = {line.split("|")[1].strip() for line in page.splitlines() if re.match(r"\| B\d+ \|", line)}
    source = "".join(path.read_text() for path in (root / "src" / "meshwright" / "calculon").glob("*.py"))
    assert set(re.findall(r"\b(B\d+)[:)]", source)) == listed
