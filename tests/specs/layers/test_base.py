"""A kind of layer is one file: a mixer of this file goes from a model to plans, and is refused where it must be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pytest

import meshwright as mw
from meshwright.errors import InputError, UnsupportedError
from meshwright.library import models
from meshwright.ops.layers import layer_work
from meshwright.specs.layers.base import LayerContext, Mixer, PartWork
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.operators import Kept, Linear, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention(Mixer):
    """Tokens see a decayed sum of earlier ones: one product in, one scan, one product out."""

    kind: Literal["retention"] = "retention"
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        return 4 * hidden * self.width

    def describe(self) -> dict[str, object]:
        return {"heads": self.heads, "head_dim": self.head_dim}

    def work(self, context: LayerContext) -> PartWork:
        hidden, heads, width = context.hidden, self.heads, self.width
        into = Linear(
            name="retention in",
            module="",
            inputs=((1, hidden),),
            outputs=((heads, 3 * self.head_dim),),
            split="column",
            gather=hidden,
        )
        scan = Vector(name="scan", module="", region="tensor", forward_elements=4 * width, backward_elements=8 * width)
        out = Linear(
            name="retention out",
            module="",
            inputs=((heads, self.head_dim),),
            outputs=((1, hidden),),
            split="row",
            reduce=hidden,
        )
        kept = Kept(name="retention inputs", elements=3 * width, role="activation", region="tensor")
        return PartWork(ops=(into, scan, out), kept=(kept,))


def with_retention(heads: int = 32) -> ModelSpec:
    model = models.resolve("llama-3.1-8b")
    layer = replace(model.last_layer(), attention=Retention(heads=heads, head_dim=128))
    return replace(model, name="retnet-8b", runs=(LayerRun(layers=(layer,), repeats=model.num_layers),))


def test_a_kind_of_its_own_is_planned_as_any_other() -> None:
    model = with_retention()
    plans = mw.plan(model, cluster="8xH100", global_batch=64, pin=["tp=2", "pp=1"])
    assert plans[0].estimate.fits == "yes"
    layer = model.last_layer()
    work = layer_work(layer, model.hidden, "flash")
    assert work.parameters == layer.parameters(model.hidden)


def test_without_scores_a_long_sequence_takes_less_time() -> None:
    long = {"cluster": "8xH100", "seq_len": 65536, "global_batch": 8}
    scan, scores = (mw.estimate(model, "tp8.rc-full", **long)[0] for model in (with_retention(), "llama-3.1-8b"))
    assert scan.estimate.step_time_s < 0.8 * scores.estimate.step_time_s


def test_its_heads_bound_the_tensor_degree() -> None:
    with pytest.raises(InputError, match="tp must divide the 6 attention heads"):
        mw.estimate(with_retention(heads=6), "tp4.mbs1", cluster="8xH100", global_batch=64)


def test_an_exporter_that_does_not_know_it_refuses_it_by_name(tmp_path: object) -> None:
    plans = mw.estimate(with_retention(), "tp2.mbs1", cluster="8xH100", global_batch=64)
    with pytest.raises(UnsupportedError, match="retention"):
        plans[0].export("megatron", f"{tmp_path}/launch")


def test_layers_of_two_kinds_stand_side_by_side() -> None:
    model = with_retention()
    both: tuple[LayerSpec, ...] = (model.last_layer(), models.resolve("llama-3.1-8b").last_layer())
    mixed = replace(model, runs=(LayerRun(layers=both, repeats=model.num_layers // 2),))
    assert mixed.num_layers == model.num_layers
    assert mw.estimate(mixed, "tp2.mbs1", cluster="8xH100", global_batch=64)[0].estimate.step_time_s > 0
