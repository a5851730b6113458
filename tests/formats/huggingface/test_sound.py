"""Audio towers beside text models: sizes, tokens of a clip, and what a config may not say."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.formats.huggingface import read_config
from meshwright.specs.streams import Clips
from tests.formats.huggingface.sounds import CLASSES, OMNI


def clips_of(name: str) -> Clips:
    stream = read_config(CLASSES[name][0], name).stream("audio")
    assert stream is not None
    assert stream.clips is not None
    return stream.clips


@pytest.mark.parametrize("name", CLASSES)
def test_parameters_are_those_of_classes(name: str) -> None:
    config, parameters = CLASSES[name]
    assert read_config(config, name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "seconds", "pieces", "length"),
    [
        ("qwen2-audio", 10.0, 1.0, 1500),
        ("voxtral", 45.0, 2.0, 1500),
        ("voxtral", 60.0, 2.0, 1500),
        ("glm-asr", 10.0, 1.0, 500),
        ("qwen2.5-omni", 12.5, 6.25, 100),
        ("qwen2.5-omni", 1.0, 1.0, 50),
    ],
)
def test_a_clip_is_read_in_pieces(name: str, seconds: float, pieces: float, length: int) -> None:
    assert clips_of(name).of_seconds(seconds) == (pieces, length)


def test_a_model_that_also_speaks_is_read_with_the_towers_of_its_thinker() -> None:
    thinker = {key: value for key, value in OMNI.items() if key != "model_type"}
    whole: dict[str, Any] = {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {}}
    model = read_config(whole, "omni")
    assert model.parameters == read_config(OMNI, "thinker").parameters
    assert {stream.name for stream in model.streams} == {"vision", "vision windows", "audio"}
    assert any("what speaks" in note for note in model.notes)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen2-audio", "max_source_positions", 3000),
        ("voxtral", "intermediate_size", 5000),
        ("qwen2.5-omni", "output_dim", 4096),
        ("qwen2-audio", "encoder_attention_heads", 19),
    ],
)
def test_sizes_that_contradict_are_refused_by_their_key(name: str, key: str, value: int) -> None:
    config, _ = CLASSES[name]
    with pytest.raises(InputError, match=key):
        read_config({**config, "audio_config": {**config["audio_config"], key: value}}, name)
