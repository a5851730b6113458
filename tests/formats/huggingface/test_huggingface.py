"""Any config.json: its family, and what is not a config."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.formats.huggingface import FAMILIES, read_config
from tests.formats.huggingface.configs import CONFIGS, LLAMA, MOE


def fields_of(error: MeshwrightError) -> set[str]:
    return {problem.field for problem in error.problems}


def refusal(config: object, name: str) -> MeshwrightError | None:
    """What reading the config raises, if it raises."""
    try:
        read_config(config, name)
    except MeshwrightError as error:
        return error
    return None


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


def test_a_family_of_unknown_name_is_read_by_its_fields_and_said() -> None:
    model = read_config(LLAMA | {"model_type": "qwen33"}, "m")
    assert model.parameters == read_config(LLAMA, "m").parameters
    (note,) = model.notes
    assert "model_type 'qwen33' is unknown (nearest known: qwen3)" in note
    assert "32 heads in 8 groups, gated MLPs, 2 RMSNorms a layer, untied embeddings" in note


def test_a_key_that_may_change_an_unknown_model_is_refused_by_name_and_value() -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_config(LLAMA | {"model_type": "mine", "wormhole_depth": 7, "rope_theta": 1e6, "residual_lanes": 0}, "m")
    assert fields_of(caught.value) == {"wormhole_depth"}
    assert caught.value.exit_code == 4
    assert "wormhole_depth is 7" in caught.value.render()


@pytest.mark.parametrize("family", ["llama", "mine"])
def test_a_key_that_changes_any_model_is_refused_whatever_the_family(family: str) -> None:
    with pytest.raises(UnsupportedError, match="several residual streams"):
        read_config(LLAMA | {"model_type": family, "hc_mult": 4}, "m")


def test_a_key_that_a_known_family_does_not_have_is_left_out_and_said() -> None:
    model = read_config(LLAMA | {"wormhole_depth": 7, "rope_theta": 1e6}, "m")
    assert model.notes == ("left out, as its family has no such key: 'wormhole_depth'",)


def test_a_shape_in_megatron_s_words_needs_no_model_type() -> None:
    shape = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32}
    shape |= {"num_query_groups": 8, "padded_vocab_size": 128256, "seq_length": 8192, "normalization": "RMSNorm"}
    shape |= {"swiglu": True, "add_bias_linear": False, "untie_embeddings_and_output_weights": True, "kv_channels": 128}
    model = read_config(shape, "m")
    assert model.parameters == read_config(LLAMA, "m").parameters
    assert "model_type is missing; read as a decoder" in model.notes[0]
    experts = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024}
    assert read_config(shape | experts, "m").is_moe


def test_a_longest_sequence_is_needed_for_learned_positions_alone() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    model = read_config(without, "m")
    assert model.parameters == read_config(LLAMA, "m").parameters
    assert model.notes == ("max_position_embeddings is not stated, and no shape depends on it: any length is priced",)
    with pytest.raises(InputError, match="max_position_embeddings or n_positions or n_ctx is missing"):
        read_config({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}, "m")


def test_two_spellings_that_disagree() -> None:
    with pytest.raises(InputError, match="hidden_size is 4096, and both name the same size"):
        read_config(LLAMA | {"d_model": 2048}, "m")


def test_a_problem_inside_text_config_says_where() -> None:
    config: dict[str, Any] = {
        "model_type": "llama4",
        "text_config": CONFIGS["llama-4-scout"]["text_config"] | {"vocab_size": 0},
    }
    with pytest.raises(InputError) as caught:
        read_config(config, "m")
    assert fields_of(caught.value) == {"text_config.vocab_size"}


def test_parameters_beyond_meaning() -> None:
    config = MOE | {
        "model_type": "mixtral",
        "num_local_experts": 60_000,
        "num_experts": 60_000,
        "hidden_size": 2**20,
        "num_hidden_layers": 999,
    }
    with pytest.raises(InputError, match="cannot be meant"):
        read_config(config, "m")


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
