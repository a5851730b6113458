"""Families whose layers are not all attention: what their patterns mean."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.huggingface import read_config
from meshwright.library.models import spec
from meshwright.specs.layers.absent import NoMixer, NoMlp
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.delta_net import DeltaNet
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.mamba2 import Mamba2
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.layers.side_by_side import SideBySide
from tests.formats.huggingface.configs import LLAMA
from tests.formats.huggingface.towers import LFM2_VL

NEMOTRON: dict[str, Any] = LLAMA | {
    "model_type": "nemotron_h",
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M*-E",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
QWEN: dict[str, Any] = LLAMA | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 8,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


def test_letters_of_nemotron_h_are_layers_of_one_part() -> None:
    state_space, attention, dense, sparse = read_config(NEMOTRON, "m").layers()
    assert isinstance(state_space.attention, Mamba2)
    assert isinstance(state_space.mlp, NoMlp)
    assert isinstance(attention.attention, Attention)
    assert isinstance(dense.attention, NoMixer)
    assert isinstance(dense.mlp, DenseMlp)
    assert isinstance(sparse.mlp, MoeMlp)
    assert {layer.norms for layer in (state_space, attention, dense, sparse)} == {1}


def test_words_of_nemotron_3_say_the_same_and_count_the_layers() -> None:
    words = {key: value for key, value in NEMOTRON.items() if "pattern" not in key and key != "num_hidden_layers"}
    words["layers_block_type"] = ["mamba", "attention", "mlp", "moe"]
    assert read_config(words, "m") == read_config(NEMOTRON, "m")


def test_a_pattern_shorter_than_the_layers() -> None:
    with pytest.raises(InputError, match="as many layers as num_hidden_layers = 5"):
        read_config(NEMOTRON | {"num_hidden_layers": 5}, "m")


@pytest.mark.parametrize("pattern", [{}, {"full_attention_interval": 4}, {"layer_types": "list"}])
def test_one_layer_in_four_of_qwen_3_5_is_attention(pattern: dict[str, Any]) -> None:
    if "layer_types" in pattern:
        pattern = {"layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 3}
        pattern["layer_types"].append("full_attention")
    layers = list(read_config(QWEN | pattern, "m").layers())
    assert [isinstance(layer.attention, DeltaNet) for layer in layers] == [True, True, True, False] * 2
    assert isinstance(layers[3].attention, Attention)
    assert layers[3].attention.gate


def test_falcon_h1_has_both_side_by_side() -> None:
    sizes = {"mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_ssm": 2048}
    (layer,) = read_config(LLAMA | {"model_type": "falcon_h1"} | sizes, "m").kinds()
    assert isinstance(layer.attention, SideBySide)


def test_an_unknown_family_says_by_its_keys_what_its_linear_layers_are() -> None:
    words = ["linear_attention", "full_attention"] * 4
    model = read_config(QWEN | {"model_type": "mine", "layer_types": words}, "m")
    assert isinstance(next(model.layers()).attention, DeltaNet)
    bare = LLAMA | {"model_type": "mine", "num_hidden_layers": 8, "layer_types": words}
    with pytest.raises(UnsupportedError, match="what kind of linear attention"):
        read_config(bare, "m")


@pytest.mark.parametrize(
    ("version", "sizes", "parameters"),
    [
        (5, {}, 13 * 2560**2 * 32 + 14 * 2560 * 32 + 4 * 2560 + 2 * 2560 * 65536),
        (6, {}, 13 * 2560**2 * 32 + 464 * 2560 * 32 + 4 * 2560 + 2 * 2560 * 65536),
        (
            7,
            {"decay_low_rank_dim": 96, "a_low_rank_dim": 96, "v_low_rank_dim": 64, "gate_low_rank_dim": 320},
            2_947_735_040,
        ),
    ],
)
def test_rwkv_counts_as_its_papers(version: int, sizes: dict[str, int], parameters: int) -> None:
    """Source: arXiv 2404.05892, appendix on parameters; arXiv 2503.14456, table of models."""
    config = {"model_type": f"rwkv{version}", "hidden_size": 2560, "num_hidden_layers": 32, "vocab_size": 65536}
    model = read_config(config | {"context_length": 4096, "head_size": 64} | sizes, "m")
    assert model.parameters == parameters


def test_granite_4_without_experts_has_an_mlp_of_the_shared_width() -> None:
    sizes = {"num_local_experts": 0, "shared_intermediate_size": 8192, "layer_types": ["attention"] * 32}
    (layer,) = read_config(LLAMA | {"model_type": "granitemoehybrid"} | sizes, "m").kinds()
    assert layer.mlp == DenseMlp(ffn_hidden=8192, gated=True)


@pytest.mark.parametrize(
    "key", [{"mtp_hybrid_override_pattern": "*E"}, {"mtp_layers_block_type": ["attention", "moe"]}]
)
def test_a_module_for_one_more_token_has_the_parts_that_its_pattern_names(key: dict[str, Any]) -> None:
    model = read_config(NEMOTRON | {"num_nextn_predict_layers": 1} | key, "m")
    _, attention, _, sparse = model.layers()
    assert (model.mtp_kind.attention, model.mtp_kind.mlp, model.mtp_kind.norms) == (attention.attention, sparse.mlp, 2)


def test_blocks_of_lfm2_are_as_wide_as_its_stream() -> None:
    config = LFM2_VL["text_config"]
    assert read_config(config | {"block_dim": None, "conv_dim": None}, "m") == read_config(config, "m")
    with pytest.raises(UnsupportedError, match="hidden_size = 2048"):
        read_config(config | {"conv_dim": 1024}, "m")


def test_kimi_k3_has_the_weights_of_its_checkpoint() -> None:
    """Shapes of model-*.safetensors of moonshotai/Kimi-K3 (2026-07); its card counts 104B active beside the table."""
    hidden, heads, latent = 7168, 96 * 128, 3584
    low = 128 * (hidden + heads)
    delta = 5 * hidden * heads + low + 3 * 4 * heads + 96 * hidden + heads + 96 + 128
    queries = hidden * 1536 + 1536 + 1536 * 96 * 192
    soft = queries + hidden * 576 + 512 + 512 * 96 * 256 + 2 * hidden * heads
    shared = hidden * 896 + 2 * hidden * latent + latent + 3 * hidden * 6144
    own = 6 * hidden  # two norms, two queries that attend to blocks, and the norms of their keys
    model = spec("kimi-k3")
    kinds = {(kind.attention.kind, kind.mlp.kind): kind for kind in model.kinds() if not kind.stream}
    assert kinds["kimi-delta", "dense"].parameters(hidden) == delta + 3 * hidden * 33792 + own
    assert kinds["kimi-delta", "moe"].parameters(hidden) == delta + shared + 896 * 3 * latent * 3072 + own
    assert kinds["latent", "moe"].parameters(hidden) == soft + shared + 896 * 3 * latent * 3072 + own
    assert [model.kind_counts()[kind] for kind in kinds.values()] == [1, 68, 24]
    text = model.active_parameters - sum(kind.parameters(1024) for kind in model.layers() if kind.stream)
    assert text - 163840 * hidden == pytest.approx(104e9, rel=5e-3)
    assert not [note for note in model.notes if "left out" in note]


def test_blocks_of_attention_residuals_are_as_many_as_cover_the_layers() -> None:
    plain = read_config(LLAMA, "m")
    (layer,) = read_config(LLAMA | {"attn_res_block_size": 5}, "m").kinds()
    assert (layer.residual_blocks, layer.block_layers) == (-(-plain.num_layers // 5), 5)
    with pytest.raises(UnsupportedError, match="attn_res_block_size"):
        read_config(LLAMA | {"attn_res_block_size": 5, "parallel_block": True}, "m")
