"""Any config.json: the model it describes, or one error with everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.formats.huggingface import FAMILIES, read_config
from meshwright.formats.huggingface.fields import fold
from meshwright.specs.layers import Attention, DenseMlp, LatentAttention, MoeMlp
from meshwright.specs.model import LayerSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
MOE: dict[str, Any] = LLAMA | {
    "num_experts": 64,
    "num_local_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
}
BUILT_IN = sorted(
    path
    for path in (Path(__file__).parents[2] / "src" / "meshwright" / "library" / "data" / "models").glob("*.json")
    if path.stem != "index"
)
CONFIGS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text())["config"] for path in BUILT_IN}


def fields_of(error: MeshwrightError) -> set[str]:
    return {problem.field for problem in error.problems}


def refusal(config: object, name: str) -> MeshwrightError | None:
    """What reading the config raises, if it raises."""
    try:
        read_config(config, name)
    except MeshwrightError as error:
        return error
    return None


# What a config means


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


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        *((family, False) for family in ("llama", "mistral", "qwen2", "qwen3", "phi3", "gpt_neox")),
        *((family, True) for family in ("gemma", "gemma2", "gemma3_text")),
    ],
)
def test_what_a_missing_tie_key_means(family: str, tied: bool) -> None:
    config = LLAMA | {"model_type": family}
    assert read_config(config, "m").tied_embeddings is tied
    assert read_config(config | {"tie_word_embeddings": not tied}, "m").tied_embeddings is not tied


def test_gpt_style_models_are_tied_by_default() -> None:
    for name in ("gpt2-xl", "opt-13b", "bloom-176b", "falcon-40b"):
        assert read_config(CONFIGS[name], name).tied_embeddings


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


def test_gpt_oss_layer() -> None:
    layer = read_config(CONFIGS["gpt-oss-120b"], "m").kinds()[0]
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, MoeMlp)
    assert layer.attention.sinks
    assert layer.attention.qkv_bias
    assert layer.attention.out_bias
    assert layer.mlp.router_bias
    assert layer.mlp.bias
    assert (layer.mlp.experts, layer.mlp.top_k) == (128, 4)


def test_deepseek_v3() -> None:
    model = read_config(CONFIGS["deepseek-v3"], "deepseek-v3")
    first, *_, last = model.layers()
    assert [(len(run.layers), run.repeats) for run in model.runs] == [(1, 3), (1, 58)]
    assert first.attention == LatentAttention(
        heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    assert first.mlp == DenseMlp(ffn_hidden=18432, gated=True)
    assert last.mlp == MoeMlp(experts=256, top_k=8, ffn_hidden=2048, gated=True, shared_ffn_hidden=2048)
    assert model.mtp_layers == 1


def test_deepseek_without_query_latent_and_every_other_layer_sparse() -> None:
    config = CONFIGS["deepseek-v2-lite"] | {"moe_layer_freq": 2}
    model = read_config(config, "m")
    assert isinstance(model.kinds()[0].attention, LatentAttention)
    assert model.kinds()[0].attention.q_rank is None
    assert [isinstance(layer.mlp, MoeMlp) for layer in model.layers()][:5] == [False, False, True, False, True]
    del config["q_lora_rank"]
    with pytest.raises(InputError, match="q_lora_rank is missing"):
        read_config(config, "m")


def test_llama_4_maverick_alternates_dense_and_sparse() -> None:
    model = read_config(CONFIGS["llama-4-maverick"], "m")
    layers = list(model.layers())
    assert [isinstance(layer.mlp, MoeMlp) for layer in layers[:4]] == [False, True, False, True]
    assert [layer.attention.window for layer in layers[:5]] == [8192, 8192, 8192, None, 8192]
    assert isinstance(layers[1].mlp, MoeMlp)
    assert layers[1].mlp.shared_ffn_hidden == 8192
    assert layers[0].mlp == DenseMlp(ffn_hidden=16384, gated=True)
    assert len(model.notes) == 2


def test_qwen_moe_layers_without_experts() -> None:
    config = MOE | {"model_type": "qwen3_moe", "mlp_only_layers": [0, 1], "decoder_sparse_step": 1}
    sparse = [isinstance(layer.mlp, MoeMlp) for layer in read_config(config, "m").layers()]
    assert sparse == [False, False] + [True] * 30
    config = MOE | {"model_type": "qwen3_moe", "decoder_sparse_step": 4}
    sparse = [isinstance(layer.mlp, MoeMlp) for layer in read_config(config, "m").layers()]
    assert sparse == [False, False, False, True] * 8


def test_qwen2_moe_has_a_gated_shared_expert() -> None:
    mlp = read_config(CONFIGS["qwen2-57b-a14b"], "m").kinds()[0].mlp
    assert isinstance(mlp, MoeMlp)
    assert (mlp.shared_ffn_hidden, mlp.shared_gate) == (20480, True)


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


def test_family_from_architectures() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert read_config(config | {"architectures": ["LlamaForCausalLM"]}, "m").family == "llama"
    assert read_config(config | {"architectures": ["Qwen2ForCausalLM"]}, "m").family == "qwen2"
    with pytest.raises(UnsupportedError):
        read_config(config | {"architectures": ["WhisperForConditionalGeneration"]}, "m")


def test_text_model_of_an_unknown_wrapper() -> None:
    config = {"model_type": "some_vision_model", "vision_config": {}, "text_config": LLAMA, "tie_word_embeddings": True}
    model = read_config(config, "m")
    assert model.tied_embeddings
    assert model.notes == ("only the text model is planned; the other parts of the config are left out",)


# What is not a config


@pytest.mark.parametrize("config", [None, 3, "llama", [], [LLAMA], True, float("nan")])
def test_not_an_object(config: object) -> None:
    with pytest.raises(InputError, match="one JSON object"):
        read_config(config, "m")


@pytest.mark.parametrize(
    "config",
    [
        *({}, {"tokenizer_class": "LlamaTokenizer"}, {"weight_map": {}, "metadata": {}}, {"text_config": "llama"}),
        *({"model_type": 7}, {"model_type": ""}, {"architectures": []}, {"architectures": [3]}),
    ],
)
def test_not_a_model(config: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        read_config(config, "m")
    assert caught.value.code == "MW204"
    assert fields_of(caught.value) <= {"model_type", "text_config"}


def test_unknown_family_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_config(LLAMA | {"model_type": "qwen33"}, "m")
    assert caught.value.code == "MW401"
    assert caught.value.exit_code == 4
    assert "nearest known: qwen3" in caught.value.render()


def test_all_problems_together() -> None:
    wrong: dict[str, Any] = LLAMA | {
        "hidden_size": "4096",
        "num_hidden_layers": -32,
        "num_key_value_heads": 5,
        "vocab_size": float("nan"),
        "max_position_embeddings": 8192.0,
        "tie_word_embeddings": "no",
        "attention_dropout": 7,
    }
    del wrong["intermediate_size"]
    wrong["intermediate_sise"] = 14336
    with pytest.raises(InputError) as caught:
        read_config(wrong, "m")
    by_field = {problem.field: problem for problem in caught.value.problems}
    assert len(by_field) == len(caught.value.problems) == 8
    assert by_field["hidden_size"].fix == "write it without quotes: 4096"
    assert by_field["max_position_embeddings"].fix == "write 8192"
    assert by_field["intermediate_size"].fix == "rename 'intermediate_sise' to 'intermediate_size'"
    assert "must divide num_attention_heads = 32" in by_field["num_key_value_heads"].why
    assert all(problem.why for problem in caught.value.problems)


def test_heads_must_divide_hidden_unless_the_head_size_is_given() -> None:
    with pytest.raises(InputError, match="must divide hidden_size = 4096"):
        read_config(LLAMA | {"num_attention_heads": 24}, "m")
    assert read_config(LLAMA | {"num_attention_heads": 24, "head_dim": 128}, "m").kinds()[0].attention.heads == 24


def test_a_problem_inside_text_config_says_where() -> None:
    config: dict[str, Any] = {
        "model_type": "llama4",
        "text_config": CONFIGS["llama-4-scout"]["text_config"] | {"vocab_size": 0},
    }
    with pytest.raises(InputError) as caught:
        read_config(config, "m")
    assert fields_of(caught.value) == {"text_config.vocab_size"}


@pytest.mark.parametrize("huge", [2**31, 10**30, 10**6000], ids=["2**31", "10**30", "10**6000"])
def test_huge_numbers(huge: int) -> None:
    with pytest.raises(InputError) as caught:
        read_config(LLAMA | {"num_hidden_layers": huge, "hidden_size": huge}, "m")
    assert len(caught.value.problems) == 2
    assert len(caught.value.render()) < 1000


def test_parameters_beyond_meaning() -> None:
    config = MOE | {
        "model_type": "mixtral",
        "num_local_experts": 60_000,
        "hidden_size": 2**20,
        "num_hidden_layers": 999,
    }
    with pytest.raises(InputError, match="cannot be meant"):
        read_config(config, "m")


def test_layer_lists_are_checked() -> None:
    gemma = LLAMA | {"model_type": "gemma2"}
    with pytest.raises(InputError, match="as many layers as num_hidden_layers = 32"):
        read_config(gemma | {"layer_types": ["full_attention"] * 31}, "m")
    with pytest.raises(InputError, match="list of words"):
        read_config(gemma | {"layer_types": [1] * 32}, "m")
    with pytest.raises(UnsupportedError, match="linear_attention"):
        read_config(gemma | {"layer_types": ["linear_attention"] * 32}, "m")
    with pytest.raises(InputError, match="layer numbers from 0 to 31"):
        read_config(MOE | {"model_type": "qwen3_moe", "mlp_only_layers": [32]}, "m")


def test_experts_are_checked() -> None:
    with pytest.raises(InputError, match="must not exceed the number of experts = 2"):
        read_config(MOE | {"model_type": "mixtral", "num_local_experts": 2}, "m")


# Invariants


LAYER_KEYS = ("num_hidden_layers", "n_layer")


@given(name=st.sampled_from(sorted(CONFIGS)), repeats=st.integers(1, 8))
def test_more_layers_add_exactly_their_parameters(name: str, repeats: int) -> None:
    config: dict[str, Any] = json.loads(json.dumps(CONFIGS[name]))
    text = config.get("text_config", config)
    key = next(key for key in LAYER_KEYS if key in text)
    model = read_config(config, name)
    period = 12  # every pattern of the built-in models repeats after 1, 2, 4 or 6 layers
    text[key] += period * repeats
    longer = read_config(config, name)
    assert longer.num_layers == model.num_layers + period * repeats
    added = list(longer.layers())[model.num_layers :]
    assert longer.parameters - model.parameters == sum(layer.parameters(model.hidden) for layer in added)
    assert list(longer.layers())[: model.num_layers] == list(model.layers())


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 200),
    st.integers(2**60, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["4096", "full_attention", "llama"]),
    st.lists(st.one_of(st.integers(-1, 40), st.text(max_size=3), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(data=st.data(), name=st.sampled_from(sorted(CONFIGS)))
def test_junk_raises_only_what_people_can_read(data: st.DataObject, name: str) -> None:
    config: dict[str, Any] = json.loads(json.dumps(CONFIGS[name]))
    inner = config.get("text_config", config)
    extra = ["head_dim", "layer_types", "mlp_only_layers", "sliding_window", "attention_bias", "n_inner", "text_config"]
    keys = data.draw(st.lists(st.sampled_from([*inner, *extra]), min_size=1, max_size=5, unique=True))
    for key in keys:
        inner[key] = data.draw(JUNK)
    error = refusal(config, name)
    if error is None:
        assert read_config(config, name).parameters > 0
    else:
        assert error.exit_code in (2, 4)
        assert error.problems
        assert "error[MW" in error.render()
        json.dumps(error.to_dict(), allow_nan=False)


@given(family=st.sampled_from(sorted(FAMILIES)), config=st.dictionaries(st.text(max_size=4), JUNK, max_size=4))
def test_a_bare_family_lists_what_is_missing(family: str, config: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        read_config({**config, "model_type": family}, "m")
    assert len(caught.value.problems) >= 3
    assert len(set(caught.value.problems)) == len(caught.value.problems)


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=40))
def test_folding_keeps_the_layers(widths: list[int]) -> None:
    attention = Attention(heads=1, kv_heads=1, head_dim=1)
    layers = [LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=width, gated=True)) for width in widths]
    runs = fold(layers)
    assert [layer for run in runs for _ in range(run.repeats) for layer in run.layers] == layers


def test_folding_finds_the_period() -> None:
    attention = Attention(heads=1, kv_heads=1, head_dim=1)
    a, b = (LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=width, gated=True)) for width in (1, 2))
    assert [(len(run.layers), run.repeats) for run in fold([a] * 80)] == [(1, 80)]
    assert [(len(run.layers), run.repeats) for run in fold([a, b] * 40)] == [(2, 40)]
    assert [(len(run.layers), run.repeats) for run in fold([b] * 3 + [a] * 58)] == [(1, 3), (1, 58)]
    assert [(len(run.layers), run.repeats) for run in fold([a, a, a, b] * 9 + [a])] == [(4, 9), (1, 1)]
