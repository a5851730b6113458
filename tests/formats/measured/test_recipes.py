"""Rows of Megatron-Bridge's tables take from the code of their release what the tables leave open."""

from __future__ import annotations

import pytest

from meshwright.formats.measured.recipes import LAYER_GRAPHS, launched_by, with_recipe
from tests.formats.measured.row import assumed, run_of

DEEPSEEK = {
    "source": "Megatron-Bridge performance summary 25.09",
    "framework": "Megatron-Bridge/Megatron-Core",
    "model_name": "DeepSeekV3",
    "n_experts": "64",
    "top_k": "6",
    "moe_ffn_hidden": "1408",
    "recompute": "",
    "tp": "2",
    "pp": "8",
    "vpp": "4",
    "ep": "64",
    "n_gpus": "1024",
    "dp": "64",
    "global_batch_seqs": "8192",
    "notes": "force-balanced routing, dropless",
}


def test_a_release_says_what_its_table_does_not() -> None:
    """DeepSeek-V3 on H100 in 25.09: DeepEP, combined 1F1B with gradients of weights put off, two modules repeated."""
    run = run_of(**DEEPSEEK)
    assert (run.deduplicates, run.overlap) == (True, "paired-wgrad")
    assert [(plan.row.recompute, plan.modules) for plan in run.plans] == [("sel", ("mla_up_proj", "mlp"))]
    assert "of the recipe of 25.09" in assumed(run)["settings"]


def test_what_is_repeated_goes_with_the_layout_it_was_chosen_for() -> None:
    """Another expert degree than the recipe's: tokens travel as there, and what is repeated stays open."""
    run = run_of(**DEEPSEEK | {"ep": "32"})
    assert run.overlap == "paired-wgrad"
    assert len(run.plans) > 1


def test_a_row_that_says_how_it_ran_is_read_as_it_says() -> None:
    stated = DEEPSEEK | {"recompute": "none", "recompute_detail": "dispatcher=None a2a_overlap=None"}
    assert with_recipe(stated) == (stated, "")
    run = run_of(**stated)
    assert (run.deduplicates, run.overlap, run.plans[0].row.recompute) == (False, "none", "none")


@pytest.mark.parametrize(("gpu", "graphs"), [("B200", True), ("H100-SXM", False)])
def test_experts_padded_to_their_capacity_are_captured_in_graphs_on_blackwell(gpu: str, *, graphs: bool) -> None:
    row = DEEPSEEK | {"model_name": "Qwen3_30B_a3B", "gpu": gpu, "notes": "token drop; tokendrop"}
    found, said = with_recipe(row)
    assert (LAYER_GRAPHS in (found["recompute_detail"] or "")) is graphs
    assert said
    line = run_of(**row | {"gpu_mem_gb": "180" if graphs else "80"}).workload.software
    assert line == ("megatron-core-graphs@2025-09" if graphs else "megatron-core@2025-09")


def test_settings_that_no_code_of_a_release_has_give_way_to_its_recipe() -> None:
    """26.02.01 prints Llama 3 70B in mxfp8 on GB300 without chunks and with micro-batches of 2."""
    printed = {
        "source": "Megatron-Bridge performance summary 26.02.01",
        "framework": "Megatron-Bridge/Megatron-Core",
        "model_name": "LLAMA3_70B",
        "gpu": "GB300",
        "gpu_mem_gb": "288",
        "n_gpus": "64",
        "n_layers": "80",
        "nodes_gpus": "4",
        "tp": "1",
        "pp": "4",
        "vpp": "",
        "dp": "16",
        "global_batch_seqs": "256",
        "micro_batch": "2",
        "recompute": "",
        "dtype": "mxfp8",
    }
    run = run_of(**printed)
    assert [(plan.row.pp, plan.row.vpp, plan.row.mbs) for plan in run.plans] == [(4, 5, 1)]
    assert "vpp 5" in assumed(run)["settings"]
    other = run_of(**printed | {"dtype": "bf16"})
    assert other.plans[0].row.mbs == 2


QWEN = {
    "source": "Megatron-MoE-ModelZoo Qwen3",
    "framework": "Megatron-Core MoE",
    "model_name": "Qwen3-235B-A22B",
    "year": "2025",
    "gpu": "GB200",
    "gpu_mem_gb": "186",
    "nodes_gpus": "4",
    "n_gpus": "256",
    "n_experts": "128",
    "top_k": "8",
    "moe_ffn_hidden": "1536",
    "tp": "1",
    "pp": "4",
    "vpp": "",
    "ep": "64",
    "dp": "64",
    "global_batch_seqs": "8192",
    "recompute": "",
    "notes": "HybridEP",
}


def test_parts_of_layers_in_graphs_are_launched_as_such() -> None:
    """Qwen3-235B on racks: attention and router in graphs, by scripts of 2026."""
    run = run_of(**QWEN)
    assert run.workload.software == "megatron-core-graphs-attention@2026-06"
    assert run.overlap == "none"
    assert "Megatron-MoE-ModelZoo" in assumed(run)["settings"]


def test_a_script_that_pairs_micro_batches_puts_gradients_of_weights_off() -> None:
    run = run_of(**QWEN | {"pp": "1", "dp": "256"})
    assert run.overlap == "paired-wgrad"


def test_what_a_row_says_of_recompute_stands_beside_its_script() -> None:
    said = {"source": "Megatron-Core MoE report (arXiv 2603.07685) T11", "recompute": "selective"}
    run = run_of(**QWEN | said | {"recompute_detail": "moe_act, layernorm"})
    assert run.plans[0].modules == ("moe_act", "layernorm")
    assert run.workload.software.startswith("megatron-core-graphs-attention")


@pytest.mark.parametrize(
    ("notes", "line"),
    [
        ("full-iteration cuda graph; cp by p2p", "megatron-core-graphs"),
        ("cuda_graph=none/full_iteration dispatcher=none", "megatron-core-graphs"),
        (
            "cuda_graph=transformer_engine/['moe_router', 'moe_preprocess'] dispatcher=none",
            "megatron-core-graphs-router",
        ),
        ("cuda_graph=none/none dispatcher=none", "megatron-core"),
        ("cuda_graph=none/[] dispatcher=hybridep", "megatron-core"),
    ],
)
def test_notes_say_what_is_launched_at_once(notes: str, line: str) -> None:
    assert launched_by(notes) == line


def test_a_policy_of_tpu_recipes_is_that_of_its_script() -> None:
    """Llama 8B keeps the outputs of attention's products on the host; 405B keeps inputs of layers alone."""
    row = {"source": "tpu-recipes example step logs", "recompute": "remat_policy=custom", "framework": "MaxText"}
    small, large = (run_of(**row, model_name=name) for name in ("Llama3.1-8B", "Llama3.1-405B"))
    assert small.plans[0].modules == ("core_attn", "mlp", "layernorm")
    assert "of its script" in assumed(small)["settings"]
    assert large.plans[0].row.recompute == "full"
