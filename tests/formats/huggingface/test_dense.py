"""Llama and its kin: what their configs mean."""

from __future__ import annotations

from meshwright.formats.huggingface import read_config
from meshwright.specs.layers import Attention, DenseMlp
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
    assert all(layer.norms == 4 and layer.attention.qk_norm for layer in model.kinds())  # type: ignore[union-attr]
    assert any("text model" in note for note in model.notes)


def test_layer_types_win_over_the_usual_pattern() -> None:
    config = dict(CONFIGS["gpt-oss-20b"])
    assert [layer.attention.window for layer in read_config(config, "m").layers()][:4] == [128, None, 128, None]
    config["layer_types"] = ["full_attention"] * 23 + ["sliding_attention"]
    assert [layer.attention.window for layer in read_config(config, "m").layers()] == [None] * 23 + [128]
