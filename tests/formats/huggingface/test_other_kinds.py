"""Configs of unknown families that describe no text model: refused for what they are, and not for sizes they lack."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.huggingface import read_config
from tests.formats.huggingface.configs import LLAMA

SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**SIZES, "image_size": 224, "patch_size": 16}, "image_size, patch_size are keys of a model of images"),
        ({"model_type": "efficientnet_of_mine", "width_coefficient": 2.0}, "is a key of a model of images"),
        ({**SIZES, "num_mel_bins": 128}, "num_mel_bins is a key of a model of sound"),
        ({**SIZES, "horizon_lengths": [1, 8], "input_size": 1}, "a forecaster of series of numbers"),
        ({"protein": {"model_type": "esm"}, "words": {"model_type": "bert"}}, "protein (esm), words (bert)"),
        ({"width": 512, "blocks": 12}, "it states none of hidden_size"),
        ({**SIZES, "vocab_size": 30_522, "type_vocab_size": 2}, "means an encoder as BERT is"),
        ({**SIZES, "vocab_size": 32_000, "encoder_layers": 6}, "an encoder stands beside its decoder"),
        ({"logit_scale_init_value": 2.6, "text_config": {**LLAMA, "model_type": "mine_text"}}, "trained to agree"),
    ],
)
def test_a_config_of_another_kind_is_refused_for_what_it_is(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_config({"model_type": "mine", **config}, "mine")
    (problem,) = caught.value.problems
    assert reason in problem.why
    assert problem.fix


def test_the_class_of_another_kind_is_the_one_reason_given() -> None:
    config = {"model_type": "mine", "architectures": ["MineForMasks"], "vocab_size": 100, "backbone": "resnet50"}
    with pytest.raises(UnsupportedError) as caught:
        read_config(config, "mine")
    (problem,) = caught.value.problems
    assert problem.why.endswith("this is not the class of a decoder: backbone is a key of a model of images")


def test_the_one_decoder_of_a_known_family_is_the_text_wherever_it_stands() -> None:
    config = {"model_type": "speaks", "decoder_config": LLAMA, "diffusion_head_config": {"head_layers": 4}}
    model = read_config(config, "speaks")
    assert model.parameters == read_config(LLAMA, "llama").parameters
    assert model.notes[-1].endswith("left out: diffusion_head_config")


def test_a_stated_number_of_parameters_that_the_reading_has_not_is_refused() -> None:
    config = {**LLAMA, "model_type": "mine"}
    count = read_config(config, "mine").parameters
    assert read_config({**config, "total_parameters": count + 1000}, "mine").parameters == count
    with pytest.raises(UnsupportedError, match="its layers are others"):
        read_config({**config, "total_parameters": count // 2}, "mine")


def test_a_config_may_name_its_class_as_one_architecture() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert read_config({**config, "architecture": "Qwen2ForCausalLM"}, "m").family == "qwen2"


def test_a_file_of_adapters_names_its_model_and_how_they_are_asked_for() -> None:
    adapters = {"peft_type": "LORA", "r": 8, "target_modules": ["v_proj", "q_proj"], "base_model_name_or_path": "a/b"}
    with pytest.raises(InputError) as caught:
        read_config(adapters, "adapter_config")
    assert (
        caught.value.problems[0].fix == "pass the model that they are for, a/b, with --lora r=8,targets=q_proj,v_proj"
    )


def test_weights_published_in_few_bits_are_said_to_be_trained_in_others() -> None:
    stored = read_config({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "m")
    assert stored.parameters == read_config(LLAMA, "m").parameters
    assert "published as bitsandbytes" in stored.notes[-1]
