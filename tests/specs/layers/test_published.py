"""Kinds of layers hold the parameters that authors of real models publish."""

from __future__ import annotations

import pytest

from meshwright.ops.layers import layer_work
from meshwright.specs.model import ModelSpec
from tests.specs.layers.published import PUBLISHED, nemotron_h, qwen3_next


@pytest.mark.parametrize(
    ("model", "published", "within", "source"), PUBLISHED, ids=lambda one: getattr(one, "name", "")
)
def test_a_model_has_the_parameters_that_its_authors_state(
    model: ModelSpec, published: float, within: float, source: str
) -> None:
    assert source
    assert model.parameters == pytest.approx(published, rel=within, abs=0)
    for kind in model.kinds():
        assert layer_work(kind, model.hidden, "flash").parameters == kind.parameters(model.hidden)


def test_three_billion_of_qwen3_next_work_on_a_token() -> None:
    """Embedding and head, 0.6 billion, are in the count."""
    model = qwen3_next()
    assert model.active_parameters - 2 * model.hidden * model.vocab == pytest.approx(3e9, rel=0.1)


def test_a_layer_of_one_part_has_one_norm_and_one_residual_addition() -> None:
    for kind in nemotron_h().kinds():
        names = [op.name for op in layer_work(kind, 8192, "flash").ops]
        assert sum(name.endswith(" norm") and not name.startswith("gated") for name in names) == 1
        assert sum(name.endswith(" residual") for name in names) == 1
