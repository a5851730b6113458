"""Llama and its kin: what their configs mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.huggingface import read_config
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from tests.formats.huggingface.configs import CONFIGS, LLAMA, MOE


def test_llama_3_8b() -> None:
    model = read_config(LLAMA, "mine", source="a card")
    (run,) = model.runs
    (layer,) = run.layers
    assert (model.name, model.family, model.source) == ("mine", "llama", "a card")
    assert run.repeats == 32
    assert layer.attention == Attention(heads=32, kv_heads=8, head_dim=128)
    assert layer.mlp == DenseMlp(ffn_hidden=14336, gated=True)
    assert not layer.dropout
    assert not model.tied_embeddings
    assert model.parameters == 8_030_261_248


def test_llama_switches() -> None:
    plain = read_config(LLAMA, "m")
    biased = read_config(LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, "m")
    per_layer = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert biased.parameters - plain.parameters == 32 * per_layer - 128256 * 4096
    assert read_config(LLAMA | {"attention_dropout": 0.1}, "m").kinds()[0].dropout
    explicit = read_config(LLAMA | {"head_dim": 64}, "m").kinds()[0].attention
    assert explicit.head_dim == 64
    without_groups = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read_config(without_groups, "m").kinds()[0].attention.kv_heads == 32


def test_mistral_window() -> None:
    mistral = LLAMA | {"model_type": "mistral"}
    assert read_config(mistral, "m").kinds()[0].attention.window == 4096
    assert read_config(mistral | {"sliding_window": None}, "m").kinds()[0].attention.window is None


def test_qwen2_has_biases_on_query_key_value_only() -> None:
    attention = read_config(LLAMA | {"model_type": "qwen2"}, "m").kinds()[0].attention
    assert isinstance(attention, Attention)
    assert (attention.qkv_bias, attention.out_bias, attention.qk_norm) == (True, False, False)


def test_qwen3_has_norms_on_query_and_key_and_no_biases() -> None:
    for config in (LLAMA | {"model_type": "qwen3"}, MOE | {"model_type": "qwen3_moe"}):
        attention = read_config(config, "m").kinds()[0].attention
        assert isinstance(attention, Attention)
        assert (attention.qkv_bias, attention.out_bias, attention.qk_norm) == (False, False, True)
        assert attention.head_dim == 128


def test_qwen2_window_holds_from_a_layer_on() -> None:
    config = LLAMA | {"model_type": "qwen2", "sliding_window": 1000, "max_window_layers": 28}
    assert [layer.attention.window for layer in read_config(config, "m").layers()] == [None] * 32
    windows = [layer.attention.window for layer in read_config(config | {"use_sliding_window": True}, "m").layers()]
    assert windows == [None] * 28 + [1000] * 4


def test_gemma_3_alternates_five_windows_and_a_full_layer() -> None:
    model = read_config(CONFIGS["gemma-3-27b"], "gemma-3-27b")
    windows = [layer.attention.window for layer in model.layers()]
    assert windows[:7] == [1024] * 5 + [None, 1024]
    assert windows.count(None) == 10
    assert [(len(run.layers), run.repeats) for run in model.runs] == [(6, 10), (1, 2)]
    assert all(layer.norms == 4 and layer.attention.qk_norm for layer in model.kinds())
    assert any("text model" in note for note in model.notes)


def test_layer_types_win_over_the_usual_pattern() -> None:
    config = dict(CONFIGS["gpt-oss-20b"])
    assert [layer.attention.window for layer in read_config(config, "m").layers()][:4] == [128, None, 128, None]
    config["layer_types"] = ["full_attention"] * 23 + ["sliding_attention"]
    assert [layer.attention.window for layer in read_config(config, "m").layers()] == [None] * 23 + [128]


def test_full_layers_of_gemma_4_have_heads_of_their_own_whose_keys_are_values() -> None:
    sizes = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "num_hidden_layers": 6}
    wide = {"global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True, "head_dim": 256}
    layers = [layer.attention for layer in read_config(LLAMA | sizes | wide, "m").layers()]
    assert layers[:5] == [Attention(heads=32, kv_heads=8, head_dim=256, window=512, qk_norm=True)] * 5
    assert layers[5] == Attention(heads=32, kv_heads=2, head_dim=512, qk_norm=True, value_is_key=True)


def test_the_last_layers_of_gemma_4_take_keys_of_earlier_ones_and_have_wide_mlps() -> None:
    sizes = {"model_type": "gemma4_text", "num_hidden_layers": 12, "num_kv_shared_layers": 6}
    config = LLAMA | sizes | {"vocab_size_per_layer_input": 1000, "use_double_wide_mlp": True}
    layers = [*read_config(config, "m").layers()]
    attention = [layer.attention for layer in layers]
    assert [one.own_keys for one in attention] == [True] * 6 + [False] * 6
    widths = [layer.mlp.mlp.ffn_hidden for layer in layers]
    assert widths == [LLAMA["intermediate_size"]] * 6 + [2 * LLAMA["intermediate_size"]] * 6
    assert {(layer.mlp.width, layer.mlp.rows) for layer in layers} == {(256, 1000)}
    with pytest.raises(InputError, match="must have an earlier one of its kind"):
        read_config(config | {"num_kv_shared_layers": 7}, "m")


def test_layers_of_gemma_3n_have_copies_and_a_learned_residual() -> None:
    sizes = {"model_type": "gemma3n_text", "num_hidden_layers": 10, "num_kv_shared_layers": 5, "laurel_rank": 8}
    model = read_config(LLAMA | sizes | {"activation_sparsity_pattern": [0.95] * 10}, "m")
    layer = model.kinds()[0]
    assert (layer.residuals, layer.altup, layer.norms) == (4, True, 4)
    assert [part.kind for part in layer.attention.mixers] == ["grouped", "laurel"]
    plain = replace(layer, residuals=1, altup=False)
    assert layer.parameters(4096) - plain.parameters(4096) == 6 * 4096 + 64 + 16
    with pytest.raises(InputError, match="copies of the residual stream, of which there are none"):
        replace(layer, residuals=1)


def test_an_embedding_for_each_layer_beside_experts_is_refused() -> None:
    sizes = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 512}
    with pytest.raises(UnsupportedError, match="an embedding for each layer beside experts"):
        read_config(LLAMA | sizes | {"model_type": "gemma4_text", "num_hidden_layers": 6}, "m")


def test_layers_that_a_search_chose_one_by_one() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.5}},
        {"attention": {"n_heads_in_group": 16}, "ffn": {"no_op": True}},
    ]
    config = LLAMA | {"model_type": "nemotron-nas", "num_hidden_layers": 3, "block_configs": blocks}
    first, second, third = read_config(config, "m").layers()
    assert (first.attention.kv_heads, first.mlp) == (4, DenseMlp(ffn_hidden=7168, gated=True))
    assert (second.single, third.single) == (True, True)
    with pytest.raises(InputError, match="must name as many layers as num_hidden_layers = 4"):
        read_config(config | {"num_hidden_layers": 4}, "m")


def test_norms_of_olmo_2_span_all_heads() -> None:
    attention = read_config(LLAMA | {"model_type": "olmo2"}, "m").kinds()[0].attention
    assert isinstance(attention, Attention)
    assert (attention.qk_norm, attention.qk_scales) == (True, "all")


def test_a_nested_config_may_leave_out_what_its_class_has() -> None:
    wrapped = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    model = read_config(wrapped, "m")
    assert model.parameters == 6_738_939_904
    assert "num_hidden_layers = 32" in model.notes[0]


LLADA: dict[str, Any] = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "block_type": "llama",
    "d_model": 4096,
    "embedding_size": 126464,
    "vocab_size": 126464,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "layer_norm_type": "rms",
    "weight_tying": False,
}
DREAM: dict[str, Any] = LLAMA | {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}


@pytest.mark.parametrize(("config", "published"), [(LLADA, 8.02e9), (DREAM, 7.62e9)])
def test_diffusion_models_see_later_tokens_and_have_a_head(config: dict[str, Any], published: float) -> None:
    """Sizes of the weights of GSAI-ML/LLaDA-8B-Base and Dream-org/Dream-v0-Base-7B on Hugging Face, three digits."""
    model = read_config(config, "m")
    assert model.parameters == pytest.approx(published, rel=1e-3)
    assert model.beside_decoder == ("attention to later tokens",)


def test_a_block_that_is_not_llama_s_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="block_type"):
        read_config(LLADA | {"block_type": "sequential"}, "m")


@pytest.mark.parametrize(("said", "causal"), [(True, False), ("all", False), ("vision", True), (False, True)])
def test_models_of_embeddings_may_see_later_tokens(said: object, causal: bool) -> None:
    gemma = LLAMA | {"model_type": "gemma3_text", "use_bidirectional_attention": said}
    assert read_config(gemma, "m").kinds()[0].attention.causal is causal


@pytest.mark.parametrize(
    ("family", "sizes", "parameters"),
    [
        ("olmo", {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}, 6_888_095_744),
        ("nanochat", {"hidden_size": 768, "intermediate_size": 8192, "num_hidden_layers": 12}, 256_573_440),
    ],
)
def test_norms_without_weights_are_said(family: str, sizes: dict[str, int], parameters: int) -> None:
    """Parameters of the classes of transformers 5.23.0, built without weights."""
    heads = {"num_attention_heads": sizes["hidden_size"] // 128, "vocab_size": 50304, "max_position_embeddings": 2048}
    model = read_config({"model_type": family, **sizes, **heads, "tie_word_embeddings": False}, family)
    (note,) = [one for one in model.notes if "norms of this family have no weights" in one]
    assert f"{model.parameters - parameters:,} parameters" in note
