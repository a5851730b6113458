"""Mixture of experts: what biases of experts cost."""

from __future__ import annotations

from dataclasses import replace

from meshwright.library.models import spec
from meshwright.specs.layers.base import LayerContext, PartWork
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.operators import Vector

GPT_OSS = spec("gpt-oss-120b").last_layer().mlp


def work(**changes: bool) -> PartWork:
    assert isinstance(GPT_OSS, MoeMlp)
    return replace(GPT_OSS, **changes).work(LayerContext(hidden=2880, kernel="flash", dropout=False))


def streamed(part: PartWork) -> dict[str, tuple[float, float]]:
    vectors = (op for op in part.ops if isinstance(op, Vector))
    return {op.name: (op.forward_elements, op.backward_elements) for op in vectors}


def test_outputs_of_experts_are_added_to_their_biases_in_32_bits() -> None:
    """t + b p with b in 16 and p in 32 bits writes b p (4 bytes), reads t and it (6), writes (4), joins experts (8) and
    casts (6): 28 bytes, as much as 14 elements."""
    assert streamed(work())["experts bias"] == (28 / 2 * 2880, 40 / 2 * 2880)
    assert "experts bias" not in streamed(work(bias=False))


def test_gated_experts_with_biases_are_clamped() -> None:
    """Two halves read, written and joined forward; backward two masks and gradients read, written and joined."""
    halves = 2 * 2880
    assert streamed(work())["experts clamp"] == (4 * halves, 5 * halves)
    assert "experts clamp" not in streamed(work(gated=False))
    assert "experts clamp" not in streamed(work(bias=False))


def test_what_is_clamped_is_kept_beside_what_was_not_until_it_is_recomputed() -> None:
    kept = {one.name: one for one in work().kept}
    assert kept["clamped experts up output"].elements == kept["experts up output"].elements
    assert "moe_act" in kept["clamped experts up output"].freed_by
    assert "clamped experts up output" not in {one.name for one in work(bias=False).kept}
