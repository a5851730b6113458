"""Kinds of layers hold the parameters that authors of real models publish."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.library import models
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.operators import Vector
from tests.specs.layers.published import (
    PUBLISHED,
    deepseek_v4_flash,
    nemotron_3_nano,
    nemotron_3_super,
    nemotron_h,
    qwen3_next,
)


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


def test_a_part_of_nemotron_3_works_on_a_token() -> None:
    assert nemotron_3_nano().active_parameters == pytest.approx(3.6e9, rel=0.01)
    assert nemotron_3_super().active_parameters == pytest.approx(12.7e9, rel=0.01)


def test_an_indexer_adds_less_than_two_parts_in_a_thousand_to_deepseek_v3() -> None:
    """Queries from the latent of 1536, one key head and a weight per head; source: DeepSeek-V3.2-Exp."""
    model = models.resolve("deepseek-v3")
    indexer = Indexer(heads=64, dim=128, top_k=2048)
    each = indexer.parameters(model.hidden, 1536)
    assert each == 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    assert each * model.num_layers < 0.002 * model.parameters


def test_a_layer_of_one_part_has_one_norm_and_one_residual_addition() -> None:
    for kind in nemotron_h().kinds():
        names = [op.name for op in layer_work(kind, 8192, "flash").ops]
        assert sum(name.endswith(" norm") and not name.startswith("gated") for name in names) == 1
        assert sum(name.endswith(" residual") for name in names) == 1


def test_copies_of_the_residual_stream_pass_between_stages_and_merge_before_the_head() -> None:
    """Four of 4096: 24 weights and as many biases of 16,384 around each part, 4 before the head."""
    model = deepseek_v4_flash()
    layer = model.last_layer()
    assert model.boundary_width(4096) == 4 * 4096
    assert layer.mixing_parameters(4096) == 2 * (24 * 4 * 4096 + 24 + 3)
    plain = replace(layer, residuals=1)
    assert layer.parameters(4096) - plain.parameters(4096) == layer.mixing_parameters(4096)
    works = [layer_work(one, 4096, "flash") for one in (layer, plain)]
    assert works[0].input_width == 4 * works[1].input_width
    assert edge_work(model, "head").parameters == model.head_parameters == 129280 * 4096 + 4096 + 4 * 4 * 4096 + 5
    with pytest.raises(InputError, match="residuals"):
        replace(layer, parallel_block=True)


def test_outputs_of_blocks_pass_between_stages_and_are_attended_to_before_the_head() -> None:
    """Eight blocks of twelve layers: a part sees four and a half of them on average, the head all."""
    model = models.spec("kimi-k3")
    layer, hidden = model.last_layer(), model.hidden
    assert model.boundary_width(4096) == (1 + 4.5) * hidden
    assert layer.mixing_parameters(hidden) == 4 * hidden
    plain = replace(layer, residual_blocks=0, block_layers=0)
    works = [layer_work(one, hidden, "flash") for one in (layer, plain)]
    assert works[0].input_width == hidden * (1 + 4.5 / 12)
    sums = [sum(op.forward_elements for op in work.ops if isinstance(op, Vector)) for work in works]
    assert sums[0] - sums[1] == 2 * (4.5 + 2) * hidden
    assert edge_work(model, "head").parameters == model.head_parameters == 163840 * hidden + hidden + 2 * hidden
    for wrong in ({"block_layers": 0}, {"residuals": 2}, {"parallel_block": True}):
        with pytest.raises(InputError, match="block"):
            replace(layer, **wrong)


def test_a_prediction_module_may_be_a_layer_of_its_own_shape() -> None:
    """Nemotron-3 Super predicts one token more by attention and experts in one layer; its other layers are single."""
    model = nemotron_3_super()
    parts = {kind.attention.kind: kind.attention for kind in model.kinds()}
    experts = next(kind.mlp for kind in model.kinds() if not kind.mlp.absent)
    module = LayerSpec(attention=parts["grouped"], mlp=experts)
    more = replace(model, mtp_layers=1, mtp_layer=module)
    assert more.parameters == model.parameters
    assert more.mtp_parameters == module.parameters(4096) + 2 * 4096**2 + 3 * 4096
    how = {"cluster": "8x8xH100", "global_batch": 128, "seq_len": 4096}
    both = [mw.estimate(one, "tp2.pp4.ep8.dp8.z1.mbs1.rc-full", **how)[0].estimate for one in (model, more)]
    assert both[0].step_time_s < both[1].step_time_s
    with pytest.raises(InputError, match="mtp_layer"):
        replace(model, mtp_layer=module)
