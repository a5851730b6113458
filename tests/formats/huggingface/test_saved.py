"""Configs as transformers 5 saves them, beside the same models as published."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.counts import FAMILIES
from tests.formats.huggingface.configs import CONFIGS, LLAMA, MOE


def test_picked_blocks_of_minimax_m3() -> None:
    published = CONFIGS["minimax-m3"]
    saved = {key: value for key, value in published.items() if key != "sparse_attention_config"}
    sparse = published["sparse_attention_config"]
    sizes = {"index_n_heads": "num_index_heads", "index_head_dim": "index_dim", "index_block_size": "block_size"}
    sizes |= {"index_topk_blocks": "topk_blocks"}
    saved |= {key: sparse[f"sparse_{name}"] for key, name in sizes.items()}
    where = sparse["sparse_attention_freq"]
    saved["layer_types"] = ["minimax_m3_sparse" if one else "full_attention" for one in where]
    assert 0 < sum(where) < len(where)
    assert read_config(saved, "m").runs == read_config(published, "m").runs


def test_compressed_layers_of_deepseek_v4() -> None:
    saved = FAMILIES["deepseek_v4"]["config"]
    rates = {"sliding_attention": 0, **saved["compress_rates"]}
    published = {key: value for key, value in saved.items() if key not in ("compress_rates", "layer_types")}
    published["compress_ratios"] = [rates[word] for word in saved["layer_types"]]
    assert read_config(saved, "m").runs == read_config(published, "m").runs
    with pytest.raises(UnsupportedError, match="'dense_attention'"):
        read_config(saved | {"layer_types": ["dense_attention"] * 43}, "m")


@pytest.mark.parametrize(("version", "tied"), [("5.24.0", False), ("4.57.1", True), (None, True)])
def test_the_class_around_a_text_model_unties_it(version: str | None, tied: bool) -> None:
    text = LLAMA | {"model_type": "qwen3", "tie_word_embeddings": True}
    whole = {"model_type": "qwen3_omni", "text_config": text, "tie_word_embeddings": False}
    assert read_config(whole | {"transformers_version": version}, "m").tied_embeddings is tied


def test_t5_says_by_a_scale_that_its_head_is_apart() -> None:
    published = CONFIGS["flan-t5-xl"]
    saved = published | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    assert read_config(saved, "m") == read_config(published, "m")


def test_widths_of_experts_say_nothing_of_a_pattern_without_experts() -> None:
    dense = CONFIGS["nemotron-h-56b"]
    saved = dense | {
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "num_experts_per_tok": 2,
    }
    assert read_config(saved, "m") == read_config(dense, "m")


def test_dense_layers_before_experts_have_a_width_and_windows_of_their_own() -> None:
    """Command MoE: two dense layers, the second full; then every fourth of the others."""
    sizes: dict[str, Any] = {"model_type": "cohere2_moe", "num_hidden_layers": 10, "first_k_dense_replace": 2}
    sizes |= {"prefix_dense_sliding_window_pattern": 2, "prefix_dense_intermediate_size": 512}
    layers = list(read_config(MOE | sizes, "m").layers())
    assert [i for i, layer in enumerate(layers) if not layer.attention.window] == [1, 5, 9]
    assert [layer.mlp.routed_experts for layer in layers] == [0, 0, *[64] * 8]
    assert layers[0].mlp.ffn_hidden == 512


@pytest.mark.parametrize(("version", "tied"), [("4.57.0", True), ("5.23.0", False)])
def test_who_decides_on_tying_is_said_around_a_model_that_also_speaks(version: str, tied: bool) -> None:
    text = {
        "model_type": "qwen2_5_omni_text",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    }
    whole = {
        "model_type": "qwen2_5_omni",
        "transformers_version": version,
        "thinker_config": {"text_config": text, "tie_word_embeddings": False},
    }
    assert read_config(whole, "omni").tied_embeddings is tied
