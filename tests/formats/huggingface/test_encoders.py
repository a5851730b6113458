"""Encoder-decoders, bidirectional encoders and pairs of encoders: parameters as published."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.huggingface import read_config
from meshwright.specs.layers.attention import Attention
from tests.formats.huggingface.configs import CONFIGS
from tests.formats.huggingface.encoders import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_models(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert read_config(config, name).parameters == pytest.approx(parameters, rel=1e-4)


def test_an_encoder_stands_before_the_decoder_that_reads_it() -> None:
    model = read_config(PUBLISHED["t5-large"][0], "t5")
    assert [layer.stream for layer in model.layers()] == ["encoder"] * 24 + [""] * 24
    assert [layer.memory for layer in model.layers()] == [""] * 24 + ["encoder"] * 24
    assert (model.tower_layers, model.most_stages) == (0, 48)


def test_whisper_hears_1500_tokens_whatever_is_said() -> None:
    encoder = read_config(PUBLISHED["whisper-large-v3"][0], "whisper").stream("encoder")
    assert encoder is not None
    assert encoder.tokens.count == 1500


def test_a_vision_transformer_makes_one_prediction_per_image() -> None:
    model = read_config(PUBLISHED["vit-l-16"][0], "vit")
    assert (model.pooled, model.vocab, model.max_seq_len) == (True, 1000, 1)


def test_classes_are_counted_by_their_names() -> None:
    names = {str(number): f"class {number}" for number in range(10)}
    assert read_config({**PUBLISHED["vit-l-16"][0], "id2label": names}, "vit").vocab == 10
    bare = read_config({**PUBLISHED["vit-l-16"][0], "architectures": ["ViTModel"]}, "vit")
    assert bare.parameters == PUBLISHED["vit-l-16"][1] + 24 * 1025  # a pooler in place of the head of 1,000 classes


def test_modernbert_sees_windows_in_two_of_three_layers() -> None:
    layers = list(read_config({"model_type": "modernbert"}, "m").layers())
    windows = [layer.attention.window for layer in layers if isinstance(layer.attention, Attention)]
    assert windows[:4] == [None, 65, 65, None]


def test_all_problems_of_a_config_come_together() -> None:
    broken = {**PUBLISHED["t5-small"][0], "d_kv": 0, "num_heads": "many"}
    with pytest.raises(InputError) as caught:
        read_config(broken, "t5")
    assert {problem.field for problem in caught.value.problems} == {"d_kv", "num_heads"}


@pytest.mark.parametrize("name", ["T5EncoderModel", "BartForCausalLM"])
def test_one_side_of_an_encoder_decoder_is_not_counted_as_both(name: str) -> None:
    library = "t5-small" if name.startswith("T5") else "bart-large"
    config = CONFIGS[library] | {"architectures": [name]}
    with pytest.raises(UnsupportedError, match="architectures"):
        read_config(config, "m")
    whole = read_config(config | {"architectures": ["T5ForConditionalGeneration"]}, "m")
    assert whole.parameters == read_config(CONFIGS[library], "m").parameters


def test_deberta_shares_one_table_of_relative_positions() -> None:
    relative = PUBLISHED["deberta-v3-base"][0]
    model = read_config(relative, "deberta")
    plain = read_config({**relative, "relative_attention": False}, "deberta")
    assert model.parameters - plain.parameters == (2 * 256 + 2) * 768
    assert any("relative positions" in note for note in model.notes)


def test_electra_of_a_narrow_table_is_refused_with_the_sizes_that_can_be_planned() -> None:
    with pytest.raises(UnsupportedError, match="ELECTRA-Base and -Large"):
        read_config({**PUBLISHED["electra-base"][0], "embedding_size": 128}, "electra")


def test_a_family_that_no_reader_understands_is_refused_by_what_it_has() -> None:
    with pytest.raises(UnsupportedError, match="DaViT"):
        read_config({"model_type": "florence2", "text_config": {}, "vision_config": {}}, "florence")
    with pytest.raises(UnsupportedError, match="learned relative positions"):
        read_config({"model_type": "inkling_mm_model", "text_config": {"model_type": "inkling_text"}}, "inkling")


BERT = PUBLISHED["bert-base"][0]
ROBERTA = PUBLISHED["roberta-base"][0]
LABELS = {str(number): f"LABEL_{number}" for number in range(6)}


@pytest.mark.parametrize(
    ("config", "name", "parameters"),
    [
        # Classes of transformers 5.23.0 on meta devices.
        (BERT, "BertForMaskedLM", 109_514_298),
        (BERT, "BertForSequenceClassification", 109_486_854),
        (BERT, "BertForTokenClassification", 108_896_262),
        (BERT, "BertModel", 109_482_240),
        (ROBERTA, "RobertaForSequenceClassification", 124_650_246),
        (ROBERTA, "RobertaModel", 124_645_632),
        (ROBERTA, "RobertaForQuestionAnswering", 124_056_578),
    ],
)
def test_the_class_says_what_an_encoder_predicts(config: dict[str, Any], name: str, parameters: int) -> None:
    model = read_config({**config, "architectures": [name], "id2label": LABELS}, "m")
    assert model.parameters == parameters
    assert (model.predicted == model.vocab) == name.endswith("MaskedLM")


def test_an_encoder_of_remote_code_is_known_by_its_class() -> None:
    known = {**ROBERTA, "architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta"}
    unnamed = {key: value for key, value in known.items() if key != "model_type"}
    assert read_config(unnamed, "m") == read_config(known, "m")
