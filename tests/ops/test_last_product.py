"""What a layer that is made again leaves out where recompute ends with what backward needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.library.models import resolve
from meshwright.ops.last_product import without_last_product
from meshwright.ops.layers import work_of
from meshwright.specs.layer_spec import LayerSpec
from meshwright.specs.strategy import LAST_PRODUCT


def left_out(name: str, **changed: object) -> list[str]:
    model = resolve(name)
    layer: LayerSpec = replace(list(model.kinds())[-1], **changed)
    found = without_last_product(work_of(model, layer, "flash"), layer)
    return [op.name for op in found.ops if op.module == LAST_PRODUCT]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2", "mixtral-8x7b"])
def test_only_the_end_is_left_out(name: str) -> None:
    model = resolve(name)
    layer = list(model.kinds())[-1]
    before = work_of(model, layer, "flash")
    found = without_last_product(before, layer)
    names = left_out(name)

    assert [op.name for op in found.ops] == [op.name for op in before.ops]
    assert names == [op.name for op in found.ops][len(found.ops) - len(names) :]
    assert found.kept == before.kept


def test_a_llama_layer_leaves_out_down_and_what_is_behind_it() -> None:
    assert left_out("llama-3.1-8b") == ["mlp down", "mlp residual"]


def test_what_reads_the_last_product_keeps_it() -> None:
    """Dropout keeps its mask by running, a norm behind keeps its input, routers have gradients by what experts give."""
    assert left_out("llama-3.1-8b", dropout=True) == []
    assert left_out("llama-3.1-8b", norms=4) == []
    assert left_out("mixtral-8x7b") == []
