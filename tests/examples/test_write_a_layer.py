"""The kind of layer that docs/extending.md shows, as it stands there, from its sizes to plans."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.library import models
from meshwright.ops.layers import layer_work
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.recurrent import RecurrentMixer, chunked_scan, recurrent_work
from meshwright.specs.model import LayerRun, ModelSpec
from meshwright.specs.operators import column_product, row_product


def of_the_page() -> type[RecurrentMixer]:
    """The class of the page."""
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"```python\n(@dataclass[^`]*class Retention.*?)```", page, flags=re.DOTALL)
    known: dict[str, Any] = {
        "dataclass": dataclass,
        "Literal": Literal,
        "LayerContext": LayerContext,
        "PartWork": PartWork,
        "RecurrentMixer": RecurrentMixer,
        "chunked_scan": chunked_scan,
        "column_product": column_product,
        "row_product": row_product,
        "recurrent_work": recurrent_work,
        "__name__": __name__,
    }
    exec("from __future__ import annotations\n" + code, known)
    return known["Retention"]


def with_retention(heads: int = 32) -> ModelSpec:
    model = models.resolve("llama-3.1-8b")
    mixer = of_the_page()(heads=heads, head_dim=128)
    layer = replace(model.last_layer(), attention=mixer)
    return replace(model, name="retnet-8b", runs=(LayerRun(layers=(layer,), repeats=model.num_layers),))


def test_the_kind_of_the_page_is_planned_as_any_other() -> None:
    model = with_retention()
    work = layer_work(model.last_layer(), model.hidden, "flash")
    assert work.parameters == model.last_layer().parameters(model.hidden)
    plans = mw.plan(model, cluster="8xH100", global_batch=64, pin=["tp=2", "pp=1"])
    assert plans[0].estimate.fits == "yes"
    assert model.last_layer().attention.state_bytes(10) == 4 * 32 * 128**2


def test_its_heads_bound_the_tensor_degree() -> None:
    with pytest.raises(InputError, match="tp 4 does not divide the 6 attention heads"):
        mw.estimate(with_retention(heads=6), "tp4.mbs1", cluster="8xH100", global_batch=64)
