"""Configs of classes that came with their weights: families, nested texts and names that transformers does not have."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.counts import FAMILIES
from tests.formats.huggingface.configs import LLAMA

QWEN2_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
}
"""7,615,616,512 parameters with biases of queries, keys and values."""
PHI3_SMALL = {
    "model_type": "phi3small",
    "hidden_size": 4096,
    "ff_intermediate_size": 14336,
    "hidden_act": "gegelu",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 100352,
    "max_position_embeddings": 8192,
    "layer_norm_epsilon": 1e-5,
    "attention_bias": False,
    "blocksparse_block_size": 64,
    "dense_attention_every_n_layers": 2,
    "gegelu_limit": 20.0,
    "mup_use_scaling": True,
}
MINICPM3 = {
    "model_type": "minicpm3",
    "hidden_size": 2560,
    "num_hidden_layers": 62,
    "intermediate_size": 6400,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "vocab_size": 73448,
    "max_position_embeddings": 32768,
}
VL2_TINY = {
    "model_type": "deepseek_vl_v2",
    "vision_config": {"model_type": "vision", "width": 1152},
    "language_config": {
        "model_type": "deepseek_v2",
        "hidden_size": 1280,
        "intermediate_size": 6848,
        "moe_intermediate_size": 896,
        "num_hidden_layers": 12,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "kv_lora_rank": None,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "use_mla": False,
        "vocab_size": 129280,
        "max_position_embeddings": 4096,
    },
}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (PHI3_SMALL, 7_392_272_384),
        (MINICPM3, 4_073_875_968),
        (QWEN2_7B | {"model_type": "molmo", "intermediate_size": 37888, "qkv_bias": True}, 7_615_616_512),
        (
            QWEN2_7B | {"model_type": "minicpmv", "version": 2.6, "query_num": 64, "max_window_layers": 28},
            7_615_616_512,
        ),
        (QWEN2_7B | {"model_type": "llava_qwen", "mm_vision_tower": "siglip", "mm_hidden_size": 1152}, 7_615_616_512),
        ({"model_type": "llava_llama", "llm_cfg": LLAMA, "vision_tower_cfg": {"hidden_size": 1152}}, 8_030_261_248),
    ],
    ids=["phi-3-small", "minicpm3", "molmo", "minicpm-v", "llava-next", "vila"],
)
def test_parameters_of_published_models(config: dict[str, Any], count: int) -> None:
    assert read_config(config, "m").parameters == count


def test_the_smallest_deepseek_vl2_has_plain_attention() -> None:
    layer = read_config(VL2_TINY, "m").kinds()[0]
    assert layer.attention.describe()["heads"] == layer.attention.describe()["kv_heads"] == 10


def test_a_class_says_the_family_of_an_unknown_name() -> None:
    phi = LLAMA | {"model_type": "phi4", "architectures": ["Phi3ForCausalLM"]}
    model = read_config(phi, "m")
    assert model.family == "phi3"
    assert model.notes == ("model_type 'phi4' is unknown; its class is that of 'phi3'",)
    inside = {"model_type": "new_vl", "vision_config": {}, "text_config": phi}
    assert read_config(inside, "m").family == "phi3"


def test_the_class_of_a_whole_model_says_nothing_of_its_text() -> None:
    text = LLAMA | {"model_type": "some_text"}
    whole = {"model_type": "some_vl", "architectures": ["SomeForConditionalGeneration"], "text_config": text}
    assert read_config(whole | {"vision_config": {}}, "m").parameters == read_config(LLAMA, "m").parameters


def test_sizes_that_a_nested_config_leaves_out_are_those_of_its_class() -> None:
    whole = {"model_type": "mistral3", "vision_config": None, "tie_word_embeddings": False}
    short = whole | {"text_config": {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128}}
    model = read_config(short, "m")
    full = {
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    stated = whole | {"text_config": short["text_config"] | full}
    assert model.parameters == read_config(stated, "m").parameters
    assert "intermediate_size = 14336" in model.notes[0]
    nothing = whole | {"text_config": short["text_config"] | full | {"sliding_window": None}}
    assert read_config(nothing, "m").kinds()[0].attention.describe().get("window") is None


@pytest.mark.parametrize("key", ["draft_vocab_size", "dflash_config"])
def test_a_draft_model_is_refused_as_one(key: str) -> None:
    with pytest.raises(UnsupportedError, match="a draft model that reads the layers of another"):
        read_config(LLAMA | {key: 32000}, "m")


def test_experts_of_two_widths_in_a_layer_are_refused_as_such() -> None:
    ernie = LLAMA | {"model_type": "ernie4_5_moe_vl", "moe_num_experts": [64, 64], "moe_k": 6}
    with pytest.raises(UnsupportedError, match="experts for text and others for images"):
        read_config(ernie | {"moe_intermediate_size": [1536, 512], "moe_layer_start_index": [1, 1]}, "m")


def test_what_is_left_out_of_molmo_2_and_phi_4_multimodal_is_said() -> None:
    molmo = read_config({"vision_config": {}, "text_config": LLAMA | {"model_type": "molmo2_text"}}, "m")
    assert "rows of the embedding for tokens of images are left out: 524,288 parameters fewer" in molmo.notes
    assert molmo.parameters == read_config(LLAMA | {"model_type": "qwen3", "head_dim": 128}, "m").parameters
    phi = read_config(LLAMA | {"model_type": "phi4mm", "speech_lora": {"r": 320}, "vision_lora": {"r": 256}}, "m")
    assert phi.parameters == read_config(LLAMA, "m").parameters
    assert phi.notes == ("the adapters that images and speech pass in its text are left out",)


@pytest.mark.parametrize("name", ["QWenLMHeadModel", "QWenForCausalLM", "QWenModel"])
def test_a_class_names_its_family_whatever_its_head(name: str) -> None:
    without = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert read_config(without | {"architectures": [name]}, "m").family == "qwen"


@pytest.mark.parametrize(("family", "has"), [("gla", "linear attention"), ("clip_vision_model", "encoder of images")])
def test_families_of_other_kinds_are_refused_for_what_they_are(family: str, has: str) -> None:
    with pytest.raises(UnsupportedError, match=has):
        read_config(LLAMA | {"model_type": family}, "m")


def test_layers_that_draft_tokens_behind_deepseek_v4_are_left_out() -> None:
    config = FAMILIES["deepseek_v4"]["config"] | {"compress_ratios": None}
    rates = [4] * config["num_hidden_layers"]
    plain = read_config(config | {"compress_ratios": rates}, "m")
    drafting = config | {"compress_ratios": [*rates, 0, 0, 0], "dspark_block_size": 5, "dspark_markov_rank": 256}
    model = read_config(drafting, "m")
    assert model.parameters == plain.parameters
    assert "the layers that draft tokens for its decoding (dspark) are left out" in model.notes


@pytest.mark.parametrize("family", ["llama", "brand_new"])
def test_what_training_and_loading_leave_in_a_file_changes_no_model(family: str) -> None:
    left = {
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "_load_in_4bit": True},
        "load_in_4bit": True,
        "lora_alpha": 16,
        "num_labels": 3,
        "model_parallel_size": 8,
        "_attn_implementation_autoset": True,
    }
    assert read_config(LLAMA | {"model_type": family} | left, "m").parameters == 8_030_261_248
