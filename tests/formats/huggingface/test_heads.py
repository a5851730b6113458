"""Heads of classifiers, reward models and models of embeddings."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.formats.huggingface import read_config
from meshwright.ops.counts import trained_parameters
from meshwright.specs.model import ModelSpec
from tests.formats.huggingface.configs import LLAMA

# Llama-3.1-8B's sizes; counts are those of its classes in transformers 5.24.0.
EIGHT_B = LLAMA | {"vocab_size": 128_256, "intermediate_size": 14_336, "num_key_value_heads": 8}
WORDS = 128_256 * 4096


def read(name: str, **changes: Any) -> ModelSpec:
    return read_config(EIGHT_B | {"architectures": [name]} | changes, "m")


@pytest.mark.parametrize(
    ("name", "changes", "less"),
    [
        ("LlamaForCausalLM", {}, 0),
        ("LlamaModel", {}, WORDS),
        ("LlamaForSequenceClassification", {}, WORDS - 2 * 4096),
        ("LlamaForSequenceClassification", {"id2label": {"0": "LABEL_0"}}, WORDS - 4096),
        ("LlamaForTokenClassification", {"num_labels": 9}, WORDS - 9 * 4097),
        ("LlamaModel", {"tie_word_embeddings": True}, WORDS),
    ],
)
def test_the_class_says_what_the_head_predicts(name: str, changes: dict[str, Any], less: int) -> None:
    model = read(name, **changes)
    assert model.parameters == read("LlamaForCausalLM").parameters - less
    assert trained_parameters(model) == model.parameters
    assert bool(less) == any(name in note for note in model.notes)


def test_a_class_of_remote_code_that_is_called_causal_keeps_its_head() -> None:
    model = read("LlamaModel", auto_map={"AutoModelForCausalLM": "modeling.LlamaModel"})
    assert model.classes is None


def test_no_framework_for_language_models_is_told_to_train_a_classifier() -> None:
    assert read("LlamaForSequenceClassification").beside_decoder == ("a head that predicts no words",)
