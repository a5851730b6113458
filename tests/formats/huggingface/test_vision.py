"""Vision towers beside text models: sizes, tokens of an image, and what a config may not say."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.formats.huggingface import read_config
from meshwright.formats.huggingface.nested import TEXT_ONLY
from meshwright.specs.layers.cross_attention import CrossAttention
from tests.counts import FAMILIES
from tests.formats.huggingface.tower_classes import CLASSES, JANUS
from tests.formats.huggingface.towers import LLAVA, MLLAMA, PUBLISHED, QWEN25_VL


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_files(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert read_config(config, name).parameters == pytest.approx(parameters, rel=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_parameters_are_those_of_classes(name: str) -> None:
    config, parameters = CLASSES[name]
    assert read_config(config, name).parameters == parameters


def test_a_llava_image_is_a_class_token_and_576_patches() -> None:
    vision = read_config(LLAVA, "llava").stream("vision")
    assert vision is not None
    assert vision.images is not None
    assert (vision.length, vision.images.text_tokens(577)) == (577, 576)


def test_qwen_merges_four_patches_and_fills_the_last_ones_up() -> None:
    vision = read_config(QWEN25_VL, "qwen").stream("vision")
    assert vision is not None
    assert vision.images is not None
    assert vision.length is None, "images keep their size"
    patches = vision.images.of_size(1024, 768)
    assert patches == 74 * 56
    assert vision.images.text_tokens(patches) == 74 * 56 // 4


def test_most_layers_of_qwen_2_5_see_windows_of_64_patches() -> None:
    model = read_config(QWEN25_VL, "qwen")
    names = [layer.stream for layer in model.layers()]
    assert [number for number in range(32) if names[number] == "vision"] == [7, 15, 23, 31]
    assert names[32:] == [""] * 28
    windows = model.stream("vision windows")
    assert windows is not None
    assert windows.length == 64


def test_llama_3_2_reads_images_in_eight_layers() -> None:
    model = read_config(MLLAMA, "mllama")
    text = [layer for layer in model.layers() if not layer.stream]
    crossed = [number for number, layer in enumerate(text) if isinstance(layer.attention, CrossAttention)]
    assert crossed == [3, 8, 13, 18, 23, 28, 33, 38]
    assert model.tower_layers == 40


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_attention_heads", 15, "num_attention_heads"),
        ("patch_size", 15, "patch_size"),
        ("hidden_size", "wide", "hidden_size"),
    ],
)
def test_a_tower_whose_numbers_contradict_names_the_field(key: str, value: object, said: str) -> None:
    broken: dict[str, Any] = {**LLAVA, "vision_config": {**LLAVA["vision_config"], key: value}}
    with pytest.raises(InputError) as caught:
        read_config(broken, "llava")
    assert any(problem.field == f"vision_config.{said}" for problem in caught.value.problems)


def test_a_tower_nobody_reads_is_left_out_and_said() -> None:
    model = read_config({**LLAVA, "model_type": "llava_of_my_own"}, "own")
    assert not model.streams
    assert any(note.startswith(TEXT_ONLY) for note in model.notes)


def test_an_audio_tower_is_left_out_and_said() -> None:
    model = read_config({**LLAVA, "audio_config": {"hidden_size": 512}}, "hears")
    assert "the audio tower is left out" in model.notes


@pytest.mark.parametrize(
    ("key", "value"), [("out_hidden_size", 1024), ("hidden_size", 1024)], ids=["qwen2.5-vl", "qwen2-vl"]
)
def test_a_tower_that_hands_on_another_width_than_the_text_has_is_refused(key: str, value: int) -> None:
    kind = "qwen2_5_vl" if key == "out_hidden_size" else "qwen2_vl"
    vision = {**QWEN25_VL["vision_config"], key: value} if kind == "qwen2_5_vl" else {key: value, "depth": 2}
    with pytest.raises(InputError, match=key):
        read_config({**QWEN25_VL, "model_type": kind, "vision_config": vision}, "m")


def test_a_head_that_the_whole_ties_and_the_text_does_not_is_counted_and_said() -> None:
    stated = {**LLAVA, "transformers_version": "5.2.0", "tie_word_embeddings": True}
    inner = {**LLAVA["text_config"], "tie_word_embeddings": False}
    model = read_config({**stated, "text_config": inner}, "m")
    assert not model.tied_embeddings
    assert any("tie_word_embeddings is true around" in note for note in model.notes)
    plain = read_config({**stated, "tie_word_embeddings": False, "text_config": inner}, "m")
    assert plain.parameters == model.parameters
    assert not any("tie_word_embeddings" in note for note in plain.notes)


def test_the_pooling_head_of_siglip_is_counted_unless_the_config_has_none() -> None:
    config, parameters = CLASSES["gemma3"]
    vision = {**config["vision_config"], "vision_use_head": False}
    without = read_config({**config, "vision_config": vision}, "gemma3")
    # A probe, attention, a norm and an MLP: Siglip's class of transformers 5.23.0.
    assert parameters - without.parameters == 1152 + 4 * 1152 * 1153 + 2 * 1152 + (2 * 1152 + 1) * 4304 + 1152


def test_the_head_size_of_an_audio_part_is_not_the_texts() -> None:
    config, _ = CLASSES["llava-next"]
    text = read_config(config["text_config"], "text").parameters
    audio = {"model_type": "granite_speech", "head_dim": 1280, "audio_config": {}, "text_config": config["text_config"]}
    model = read_config(audio, "granite_speech")
    assert model.parameters == text
    assert any(note.startswith(TEXT_ONLY) for note in model.notes)


def test_an_image_of_a_shuffling_tower_takes_a_quarter_of_its_patches() -> None:
    vision = read_config(CLASSES["cohere2-vision"][0], "command").stream("vision")
    assert vision is not None
    assert vision.images is not None
    assert (vision.length, vision.images.text_tokens(1024)) == (32 * 32, 16 * 16)


@pytest.mark.parametrize("ratio", [0, -4, "4", True, 1e9])
def test_a_wrong_ratio_of_a_tower_is_told(ratio: object) -> None:
    with pytest.raises(InputError, match="mlp_ratio"):
        read_config({**JANUS, "vision_config": {**JANUS["vision_config"], "mlp_ratio": ratio}}, "janus")


def test_a_tower_that_hands_on_another_width_is_refused() -> None:
    with pytest.raises(InputError, match="projection_dim"):
        read_config({**JANUS, "vision_config": {**JANUS["vision_config"], "projection_dim": 4096}}, "janus")


MOLMO2_TEXT = {
    "model_type": "molmo2_text",
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("name", "text", "parameters"),
    [
        # Classes of transformers 5.23.0 on meta devices.
        ("glm5_next", FAMILIES["glm5_next"]["config"], 563_627_008),
        ("lfm3_vl", FAMILIES["lfm3"]["config"], 189_380_352),
        ("molmo2", MOLMO2_TEXT, 513_041_872),
    ],
)
def test_a_tower_is_as_its_class_builds_it(name: str, text: dict[str, Any], parameters: int) -> None:
    vision = {"model_type": f"{name}_vision", "out_hidden_size": text["hidden_size"]}
    if name == "lfm3_vl":
        vision |= {"num_hidden_layers": 14, "num_key_value_heads": 8}
        vision["layer_types"] = ["conv", *["conv", "full_attention"] * 6, "conv"]
    seeing = read_config({"model_type": name, "text_config": text, "vision_config": vision}, "m")
    assert seeing.parameters - read_config(text, "m").parameters == parameters


def test_molmo_2_reads_windows_of_its_patches() -> None:
    config = {"model_type": "molmo2", "text_config": MOLMO2_TEXT, "vision_config": {"image_size": [378, 378]}}
    (stream,) = read_config(config, "m").streams
    assert stream.images is not None
    assert (stream.length, stream.images.tokens) == (27 * 27, 14 * 14)
