"""A layer that backward makes again only as far as gradients ask for it.

    made again      everything up to the input of the last product
    not made again  the last product, what tensor ranks sum of it, and its addition to the residual stream

Backward needs the input of the last product and no output of it: PyTorch's checkpoint without reentrant autograd stops
once everything that backward saved is there again, and XLA drops what nothing reads. Dropout after the product, a
second norm, and the sum of experts' outputs do read it.

Source: `_StopRecomputationError` and `set_checkpoint_early_stop` in torch/utils/checkpoint.py of PyTorch 2.1 and later.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from meshwright.specs.layer_spec import LayerSpec
from meshwright.specs.operators import LayerWork, Linear, Vector
from meshwright.specs.strategy import LAST_PRODUCT


@lru_cache(maxsize=256)
def without_last_product(work: LayerWork, layer: LayerSpec) -> LayerWork:
    """The same layer with the operators that backward does not ask for as one module.

    Args:
        work: its operators.
        layer: the layer that they are of.

    Returns:
        The work as it is where the last product's output is read.
    """
    parts = sum(not part.absent for part in (layer.attention, layer.cross, layer.mlp) if part is not None)
    if layer.dropout or layer.residuals > 1 or layer.residual_blocks or layer.norms > parts:
        return work
    ops = list(work.ops)
    behind = len(ops) - 1
    while behind >= 0 and isinstance(ops[behind], Vector) and ops[behind].name.endswith(" residual"):
        behind -= 1
    last = ops[behind]
    if not isinstance(last, Linear) or last.experts:
        return work
    ops[behind:] = [replace(op, module=LAST_PRODUCT) for op in ops[behind:]]
    return replace(work, ops=tuple(ops))
