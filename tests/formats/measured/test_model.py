"""Models of measured rows: known by name, or built from their columns."""

from __future__ import annotations

from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.moe import MoeMlp
from tests.formats.measured.row import assumed, run_of

SIZES = {
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
DEEPSEEK = SIZES | {"head_dim": "", "tp": "1", "pp": "1", "dp": "16"}


def test_a_known_name_takes_the_librarys_model() -> None:
    run = run_of(**SIZES, model_name="DeepSeekV3", notes="w/o MTP")
    assert isinstance(run.model.kinds()[0].attention, LatentAttention)
    assert run.model.mtp_layers == 0
    assert run.split == ()
    proxy = run_of(model_name="Llama 3.1 8B", n_layers="4")
    assert proxy.model.num_layers == 4
    assert "4 of the 32 layers" in assumed(proxy)["model"]


def test_a_size_behind_a_name_does_not_hide_the_model() -> None:
    run = run_of(**DEEPSEEK, model_name="DeepSeek V3 671B")
    assert run.model.name == "deepseek-v3"
    assert isinstance(run.model.kinds()[0].attention, LatentAttention)


def test_fewer_layers_keep_the_dense_ones_that_are_stated() -> None:
    fewer = DEEPSEEK | {"n_layers": "4", "model_name": "deepseekv3 (4 layers)"}
    run = run_of(**fewer, arch_source="MLA; first 1 layer dense; reduced to 4 layers")
    assert [type(layer.mlp) for layer in run.model.layers()] == [DenseMlp, MoeMlp, MoeMlp, MoeMlp]
    assert run.model.mtp_layers == 0
    assert "4 of the 61 layers" in assumed(run)["model"]
    assert [type(layer.mlp) for layer in run_of(**fewer).model.layers()] == [DenseMlp] * 3 + [MoeMlp]


def test_latent_attention_and_shared_experts_are_read_in_words() -> None:
    words = "MLA (q_lora 768, kv_lora 256, nope 64 + rope 32, v 96); first 2 layers dense; 2 shared experts"
    run = run_of(**DEEPSEEK | {"hidden": "4096"}, arch_source=words)
    moe = run.model.last_layer()
    assert isinstance(moe.attention, LatentAttention)
    assert (moe.attention.q_rank, moe.attention.kv_rank, moe.attention.nope_dim) == (768, 256, 64)
    assert (moe.attention.rope_dim, moe.attention.value_dim) == (32, 96)
    assert isinstance(moe.mlp, MoeMlp)
    assert (moe.mlp.shared_ffn_hidden, run.model.runs[0].repeats) == (4096, 2)


def test_a_name_with_other_widths_is_built_from_the_columns() -> None:
    run = run_of(model_name="llama-3-8b", ffn_hidden="11008")
    assert run.model.kinds()[0].mlp.ffn_hidden == 11008
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
