"""What an item computes and what of it backward repeats."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.estimate.layers.items import items_of, works_of
from meshwright.library.models import spec
from meshwright.library.software import software
from meshwright.ops.half_products import half_products_work
from meshwright.ops.layers import work_of
from meshwright.specs.operators import LayerWork
from meshwright.specs.strategy import HALF_PRODUCTS, Recompute
from meshwright.specs.workload import Workload

NONE, FULL = Recompute(), Recompute(kind="full")
HALF = Recompute(kind="selective", modules=(HALF_PRODUCTS,))


@pytest.mark.parametrize("driver", [None, "torchtitan"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_every_second_product_is_a_module_of_layers_that_repeat_so_and_of_no_others(
    model: str, driver: str | None
) -> None:
    workload, given = Workload(seq_len=4096, global_batch=8), None if driver is None else software(driver)

    def layers(recompute: Recompute) -> list[LayerWork]:
        items = [item for item in items_of(spec(model), (recompute,)) if item.part == "layer"]
        return [work for item in items for work, _, _ in works_of(item, spec(model), workload, given)]

    whole = [work_of(spec(model), item.layer, "flash") for item in items_of(spec(model), (NONE,)) if item.layer]
    assert layers(NONE) == whole
    compiled = given is None or not given.unfused
    assert layers(HALF) == [half_products_work(work, compiled=compiled) for work in whole]
    assert layers(HALF) != whole
    assert all(HALF_PRODUCTS not in {op.module for op in work.ops} for work in layers(FULL))


@pytest.mark.parametrize("lora", [None, "r=16"])
def test_weights_that_no_sample_uses_are_kept_in_shards_and_never_gathered(lora: str | None) -> None:
    """Layers of images beside a step of text: FSDP gathers a module when it is called."""
    asked = {"gpus": "8xH100", "lora": lora, "seq_len": 1024, "software": "pytorch-eager"}
    text, seeing = (
        mw.estimate(name, "dp8.fsdp.mbs1.gbs8.rc-full", **asked)[0].estimate
        for name in ("llama-3.1-8b", "llama-3.2-11b-vision")
    )
    (own,), (whole,) = text.stages, seeing.stages

    assert seeing.step_time_s == pytest.approx(text.step_time_s, rel=1e-3)
    kept, all_kept = dict(own.memory_bytes), dict(whole.memory_bytes)
    assert all_kept["transient"] == pytest.approx(kept["transient"])
    assert all_kept["weights"] > 1.1 * kept["weights"]
