"""What eager PyTorch keeps beyond fused kernels."""

from __future__ import annotations

from meshwright.library.models import spec
from meshwright.ops.layers import layer_work
from meshwright.ops.unfused import unfused_work


def test_norms_keep_fp32_and_gated_functions_both_factors() -> None:
    model = spec("llama-2-7b")
    fused = layer_work(model.kinds()[0], model.hidden, "flash")
    own = unfused_work(fused)
    sizes = {"activation": 2, "input": 2, "function": 2, "attention": 2, "fp32": 4}
    kept = [sum(one.elements * sizes[one.role] for one in work.kept) for work in (fused, own)]
    assert kept[1] - kept[0] == 2 * 2 * 4096 + 2 * 11008
    assert own.ops == fused.ops


def test_functions_of_one_factor_keep_what_they_kept() -> None:
    model = spec("gpt2")
    fused = layer_work(model.kinds()[0], model.hidden, "flash")
    assert len(unfused_work(fused).kept) == len(fused.kept)
