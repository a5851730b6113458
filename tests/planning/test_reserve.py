"""What the memory reserve keeps out of an answer."""

from __future__ import annotations

from dataclasses import replace

import meshwright as mw
from meshwright.planning.reserve import reserve_reason
from meshwright.search.space import Space


def test_a_quicker_plan_that_leaves_too_little_free_is_named() -> None:
    asked = {"lora": "r=16,base=nf4", "software": "megatron-core", "global_batch": 16}
    best = mw.plan("llama-3.1-8b", gpus="1xRTX-4090", top=1, **asked).best
    searched = reserve_reason(best.job, best.row, best.estimate, Space())
    assert searched is not None
    facts = dict(searched.facts)
    assert facts["gain"] > 0
    assert facts["peak_bytes"] > 0.92 * facts["capacity_bytes"]
    assert facts["offload"] is False
    pinned = reserve_reason(best.job, best.row, best.estimate, Space(pins=(("offload", ("none",)),)))
    assert pinned is not None
    assert dict(pinned.facts)["offload"] is True


def test_memory_decides_nothing_where_much_is_free() -> None:
    best = mw.estimate("llama-3.1-8b", "tp2.z1", gpus="8xH100", global_batch=8)[0]
    stages = tuple(replace(stage, peak_memory_bytes=0.5 * stage.capacity_bytes) for stage in best.estimate.stages)
    assert best.row is not None
    assert best.row.recompute == "none"
    assert reserve_reason(best.job, best.row, replace(best.estimate, stages=stages), Space()) is None
