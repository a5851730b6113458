"""Streams of which not everything is trained: towers, projectors, encoders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.fields.job import JobFields
from meshwright.formats.huggingface import read_config
from meshwright.library.models import names, spec
from meshwright.ops.counts import adapter_parameters, trained_parameters
from meshwright.ops.edges import edge_works
from meshwright.ops.layers import work_of
from meshwright.planning.question.samples import with_samples
from meshwright.planning.question.tuned import with_tuning
from meshwright.specs.model import ModelSpec, TunedLayer
from meshwright.specs.operators import LayerWork
from tests.formats.huggingface.test_encoders import PUBLISHED
from tests.formats.huggingface.towers import QWEN25_VL

QWEN = with_samples(read_config(QWEN25_VL, "qwen"), JobFields(images=1, image_size="448"), 4096)[0]
WHISPER = read_config(PUBLISHED["whisper-large-v3"][0], "whisper")
MERGER = 44_573_184
"""Two matrices with biases: 5120 x 5120 and 5120 x 3584."""


BESIDE = [name for name in names() if spec(name).beside_decoder]


@pytest.mark.parametrize("name", BESIDE)
def test_operators_hold_the_parameters_of_the_model(name: str) -> None:
    model = spec(name)
    sized = any(stream.tower and stream.length is None for stream in model.streams)
    towers = any(stream.tower for stream in model.streams)
    said = JobFields(images=1 if towers else None, image_size="448" if sized else None)
    model = with_samples(model, said, 4096)[0]
    layers = sum(count * work_of(model, kind, "flash").parameters for kind, count in model.kind_counts().items())
    edges = sum(work.parameters for part in ("embedding", "head") for work in edge_works(model, part))
    shared = model.vocab * model.hidden if model.tied_embeddings else 0
    assert layers + edges - shared == model.parameters == spec(name).parameters


def _works(model: ModelSpec) -> dict[str, list[LayerWork]]:
    """Of the layers, by stream."""
    found: dict[str, list[LayerWork]] = {}
    for layer in model.kinds():
        found.setdefault(layer.stream, []).append(work_of(model, layer, "flash"))
    return found


def test_a_frozen_tower_has_no_backward_pass_and_its_projector_is_trained() -> None:
    model = with_tuning(QWEN, None, ["vision"])
    works = _works(model)
    assert not any(work.reached for name in ("vision", "vision windows") for work in works[name])
    assert all(work.reached for work in works[""])
    assert [work.reached for work in edge_works(model, "embedding")] == [True, False, False, True]


def test_a_projector_alone_is_trained_behind_a_frozen_tower_and_before_a_frozen_text() -> None:
    model = with_tuning(QWEN, None, ["vision", "text"])
    assert trained_parameters(model) == MERGER
    assert all(work.reached for work in _works(model)[""]), "gradients pass the text on their way to the projector"


def test_gradients_pass_a_frozen_projector_to_a_tower_that_is_trained() -> None:
    model = with_tuning(QWEN, None, ["projector"])
    assert trained_parameters(model) == model.parameters - MERGER
    assert all(work.reached for work in edge_works(model, "embedding"))


def test_adapters_stand_in_the_text_not_in_towers() -> None:
    model = with_tuning(QWEN, "r=16", [])
    text = replace(QWEN, streams=(), runs=QWEN.runs[-1:])
    assert adapter_parameters(model) == adapter_parameters(with_tuning(text, "r=16", []))
    assert not any(work.reached for work in _works(model)["vision"])
    both = with_tuning(QWEN, "r=16,train=projector", [])
    assert trained_parameters(both) == adapter_parameters(both) + MERGER


def test_adapters_stand_in_an_encoder_and_in_cross_attention() -> None:
    tuned = [layer for layer in with_tuning(WHISPER, "r=8", []).kinds() if isinstance(layer, TunedLayer)]
    assert {layer.stream for layer in tuned if layer.tuning.lora} == {"", "encoder"}


def test_layers_are_numbered_within_the_text() -> None:
    model = with_tuning(QWEN, None, ["layers.0-26"])
    frozen = [isinstance(layer, TunedLayer) for layer in model.layers()]
    assert frozen == [False] * 32 + [True] * 27 + [False]
    with pytest.raises(InputError, match="its text has 28 layers"):
        with_tuning(QWEN, None, ["layers.0-28"])


@pytest.mark.parametrize("part", ["vision", "projector", "encoder"])
def test_parts_that_a_model_has_not_are_refused(part: str) -> None:
    with pytest.raises(InputError, match=f"the {part} of whisper" if part != "encoder" else "the encoder of qwen"):
        with_tuning(QWEN if part == "encoder" else WHISPER, None, [part])


def test_names_of_model_classes_are_understood() -> None:
    assert with_tuning(QWEN, None, ["visual.*"]) == with_tuning(QWEN, None, ["vision"])
