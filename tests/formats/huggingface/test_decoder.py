"""What all decoders read alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.formats.huggingface import read_config
from tests.formats.huggingface.configs import CONFIGS, LLAMA


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


LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers")
LISTED = ("layer", "pattern", "block", "indexer", "freq")
"""What names of keys hold that say something of each layer."""


def same_for_all(name: str) -> bool:
    """Whether no key of a config lists its layers, and each of its layers is one."""
    text = CONFIGS[name].get("text_config", CONFIGS[name])
    lists = [
        key for key, value in text.items() if isinstance(value, (list, str)) and any(word in key for word in LISTED)
    ]
    return not lists and any(key in text for key in LAYER_KEYS)


@given(name=st.sampled_from([name for name in sorted(CONFIGS) if same_for_all(name)]), repeats=st.integers(1, 8))
def test_more_layers_add_exactly_their_parameters(name: str, repeats: int) -> None:
    config: dict[str, Any] = json.loads(json.dumps(CONFIGS[name]))
    text = config.get("text_config", config)
    key = next(key for key in LAYER_KEYS if key in text)
    model = read_config(config, name)
    period = 24  # every pattern of the built-in models repeats after 1, 2, 4, 6 or 8 layers
    text[key] += period * repeats
    longer = read_config(config, name)
    assert longer.num_layers == model.num_layers + period * repeats
    added = list(longer.layers())[model.num_layers :]
    assert longer.parameters - model.parameters == sum(layer.parameters(model.hidden) for layer in added)
    assert list(longer.layers())[: model.num_layers] == list(model.layers())
