"""Weights that pipelines sum with each other: those that are trained, of each layer and both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.data.partners import weights_of
from meshwright.estimate.layout import ModelLayout
from meshwright.specs.model import ModelSpec
from meshwright.specs.tuning import Frozen, Lora, Tuning
from tests.estimate.cases import DENSE, TIED

TABLE = {DENSE.name: DENSE.vocab * DENSE.hidden, TIED.name: TIED.vocab * TIED.hidden}


@pytest.mark.parametrize("model", [DENSE, TIED], ids=lambda model: model.name)
@pytest.mark.parametrize("tuning", [None, Tuning(frozen=(Frozen(part="layers", layers=(0, 3)),))])
def test_a_tied_table_is_summed_once_and_a_head_of_its_own_with_its_stage(
    model: ModelSpec, tuning: Tuning | None
) -> None:
    trained = weights_of(ModelLayout.of(replace(model, tuning=tuning), 2048))
    assert trained[0] >= TABLE[model.name]
    if model is TIED:
        assert trained[-1] < TABLE[model.name]
    else:
        assert trained[-1] >= TABLE[model.name]


def test_adapters_alone_are_summed() -> None:
    adapted = replace(DENSE, tuning=Tuning(lora=Lora(rank=16)))
    embedding, *layers, head = weights_of(ModelLayout.of(adapted, 2048)).tolist()
    assert (embedding, head) == (0.0, 0.0)
    assert len(set(layers)) == 1
    assert 0 < layers[0] < 0.02 * weights_of(ModelLayout.of(DENSE, 2048))[1]
