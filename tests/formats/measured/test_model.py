"""Models of measured rows: known by name, or built from their columns."""

from __future__ import annotations

from meshwright.specs.layers import LatentAttention, MoeMlp
from tests.formats.measured.row import assumed, run_of


def test_a_known_name_takes_the_librarys_model() -> None:
    deepseek = {
        "model_name": "DeepSeekV3",
        "n_layers": "61",
        "hidden": "7168",
        "ffn_hidden": "18432",
        "n_heads": "128",
        "n_kv_heads": "128",
        "vocab": "129280",
        "n_experts": "256",
        "top_k": "8",
        "moe_ffn_hidden": "2048",
        "ep": "8",
        "etp": "1",
    }
    run = run_of(**deepseek, notes="w/o MTP")
    assert isinstance(run.model.kinds()[0].attention, LatentAttention)
    assert run.model.mtp_layers == 0
    assert run.split == ()
    proxy = run_of(model_name="Llama 3.1 8B", n_layers="4")
    assert proxy.model.num_layers == 4
    assert "4 of the 32 layers" in assumed(proxy)["model"]


def test_a_name_with_other_widths_is_built_from_the_columns() -> None:
    run = run_of(model_name="llama-3-8b", ffn_hidden="11008")
    assert run.model.kinds()[0].mlp.ffn_hidden == 11008  # type: ignore[union-attr]
    assert run.model.family == "measured"


def test_experts_from_columns_and_notes() -> None:
    run = run_of(
        n_experts="16",
        top_k="2",
        moe_ffn_hidden="2048",
        ep="4",
        notes="moe-layer-freq=([0]*1+[1]*31); moe-shared-expert-intermediate-size=512; token drop",
    )
    dense, moe = run.model.kinds()
    assert isinstance(moe.mlp, MoeMlp)
    assert (moe.mlp.experts, moe.mlp.shared_ffn_hidden) == (16, 512)
    assert dense.mlp.kind == "dense"
    assert run.capacity == 1.0
    assert run.plans[0].row.etp == 2
