"""GPT-style families: what their configs mean."""

from __future__ import annotations

import pytest

from meshwright.errors import UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.formats.huggingface.configs import CONFIGS


def test_gpt_style_models_are_tied_by_default() -> None:
    for name in ("gpt2-xl", "opt-13b", "bloom-176b", "falcon-40b"):
        assert read_config(CONFIGS[name], name).tied_embeddings


def test_opt_has_two_positions_more_and_its_narrow_embedding_is_refused() -> None:
    model = read_config(CONFIGS["opt-13b"], "opt-13b")
    assert (model.max_seq_len, model.learned_positions) == (2048, 2050)
    assert model.kinds()[0].dropout
    with pytest.raises(UnsupportedError, match="word_embed_proj_dim is 512"):
        read_config(CONFIGS["opt-13b"] | {"word_embed_proj_dim": 512}, "opt-350m")


def test_falcon_blocks() -> None:
    small = read_config(CONFIGS["falcon-7b"], "m").kinds()[0]
    large = read_config(CONFIGS["falcon-180b"], "m").kinds()[0]
    assert (small.attention.kv_heads, small.norms, small.parallel_block) == (1, 1, True)
    assert (large.attention.kv_heads, large.norms, large.parallel_block) == (8, 2, True)
    serial = read_config(CONFIGS["falcon-7b"] | {"parallel_attn": False, "multi_query": False}, "m").kinds()[0]
    assert (serial.attention.kv_heads, serial.norms, serial.parallel_block) == (71, 2, False)


def test_gpt2_takes_either_spelling() -> None:
    usual = {"model_type": "gpt2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    usual |= {"max_position_embeddings": 32, "vocab_size": 100}
    short = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100}
    assert read_config(usual, "m") == read_config(short, "m")
    assert read_config(short, "m").kinds()[0].dropout
    assert not read_config(short | {"attn_pdrop": 0.0, "resid_pdrop": 0}, "m").kinds()[0].dropout


def test_starcoder_1_has_one_head_of_keys_and_tied_embeddings_unless_it_says_otherwise() -> None:
    config = {
        "model_type": "gpt_bigcode",
        "n_embd": 512,
        "n_layer": 2,
        "n_head": 8,
        "n_positions": 1024,
        "vocab_size": 1000,
    }
    usual = read_config(config, "m")
    assert (usual.kinds()[0].attention.kv_heads, usual.tied_embeddings) == (1, True)
    other = read_config(config | {"multi_query": False, "tie_word_embeddings": False}, "m")
    assert (other.kinds()[0].attention.kv_heads, other.tied_embeddings) == (8, False)


def test_orion_has_layer_norms_and_a_gate() -> None:
    config = {
        "model_type": "orion",
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "max_position_embeddings": 1024,
        "vocab_size": 1000,
    }
    layer = read_config(config, "m").kinds()[0]
    assert layer.mlp.gated
    assert layer.norm == "layernorm"


def test_what_starcoder_2_has_where_the_config_is_silent() -> None:
    config = {
        "model_type": "starcoder2",
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "max_position_embeddings": 1024,
        "vocab_size": 1000,
    }
    usual, other = (read_config(config | more, "m") for more in ({}, {"use_bias": False, "tie_word_embeddings": False}))
    assert (usual.tied_embeddings, other.tied_embeddings) == (True, False)
