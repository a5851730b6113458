"""What a layer keeps and repeats where backward makes every second product again."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.library.models import resolve
from meshwright.ops.half_products import half_products_work
from meshwright.ops.layers import work_of
from meshwright.specs.operators import LayerWork, Linear
from meshwright.specs.strategy import HALF_PRODUCTS, Recompute


def work(name: str, *, compiled: bool = True) -> LayerWork:
    model = resolve(name)
    return half_products_work(work_of(model, list(model.kinds())[-1], "flash"), compiled=compiled)


def repeated(found: LayerWork) -> list[str]:
    return [op.name for op in found.ops if isinstance(op, Linear) and op.module == HALF_PRODUCTS]


@pytest.mark.parametrize(("compiled", "last"), [(True, 0), (False, 4096)])
def test_a_llama_layer_keeps_what_torchtitan_saves(compiled: bool, last: int) -> None:
    """wq, wv and w1 of wq, wk, wv, wo, w1, w3, w2; w2 as well without a compiler."""
    found = work("llama-3.1-8b", compiled=compiled)

    assert repeated(found) == ["qkv, keys", "attention out", "mlp up, values"]
    stays = [one for one in found.kept if not one.freed_by and one.role != "fp32"]
    # Layer input, queries, values, gate, attention's output.
    assert sum(one.elements for one in stays) == 4096 + 4096 + 1024 + 14336 + 4096 + last


def test_products_one_by_one_have_the_weights_and_the_sums_of_the_layer() -> None:
    for name in ("llama-3.1-8b", "gpt2", "qwen3-30b-a3b", "deepseek-v3"):
        model = resolve(name)
        before, found = work_of(model, list(model.kinds())[-1], "flash"), work(name)
        assert found.parameters == before.parameters
        for field in ("gather", "reduce"):
            sums = [sum(getattr(op, field) for op in one.ops if isinstance(op, Linear)) for one in (before, found)]
            assert sums[0] == sums[1]


def test_routers_and_routed_experts_are_repeated_and_exchanges_are_not() -> None:
    names = repeated(found := work("qwen3-30b-a3b"))

    assert {"router", "experts up", "experts down"} <= set(names)
    assert all(op.module == "" for op in found.ops if op.name in ("dispatch", "combine", "core attention"))


def test_it_cannot_be_combined_with_other_modules() -> None:
    with pytest.raises(InputError, match="cannot be combined"):
        Recompute(kind="selective", modules=(HALF_PRODUCTS, "mlp"))
