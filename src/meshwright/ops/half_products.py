"""A layer whose backward pass makes every second product again, as torchtitan's selective recompute does.

    kept      the layer's input; outputs of products 1, 3, 5, ...; attention's output; what exchanges brought
    repeated  products 2, 4, 6, ..., those of routers and routed experts, norms, rotary embedding, activations

Products count in the order in which they run: queries, keys, values, output; gate, up, down. That of the last product
is kept too where operators run one by one; a compiler finds that no gradient needs it.

Source: `SelectiveAC` in torchtitan/distributed/activation_checkpoint.py of pytorch/torchtitan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from meshwright.specs.operators import CoreAttention, Exchange, Kept, LayerWork, Linear, Op, Region, Units
from meshwright.specs.strategy import HALF_PRODUCTS

_REGIONS: dict[str, Region] = {"column": "tensor", "row": "sequence", "replicated": "sequence"}


@lru_cache(maxsize=256)
def half_products_work(work: LayerWork, *, compiled: bool) -> LayerWork:
    """The same layer with what is repeated as one module, and with what stays for backward.

    Args:
        work: the layer.
        compiled: whether a compiler drops what no gradient needs.

    Returns:
        Operators in the same order, those of several products one by one.
    """
    ops, kept = list[Op](), [Kept(name="layer input", elements=work.input_width, role="activation", region="sequence")]
    count = 0
    products = [op for op in work.ops if isinstance(op, Linear)]
    for op in work.ops:
        if isinstance(op, (CoreAttention, Exchange)):
            ops.append(replace(op, module=""))
            continue
        if not isinstance(op, Linear) or op.experts or op.name == "router":
            ops.append(replace(op, module=HALF_PRODUCTS))
            continue
        for part in _one_by_one(op):
            count += 1
            stays = count % 2 == 1
            ops.append(replace(part, module="" if stays else HALF_PRODUCTS))
            if stays and not (compiled and op is products[-1]):
                elements = sum(units * width for units, width in part.outputs)
                region = _REGIONS[part.split]
                name = f"{part.name} output"
                kept.append(Kept(name=name, elements=elements, role="activation", region=region, tokens=part.tokens))
    whole = ("attention out input", "log-sum-exp")
    before = (replace(one, freed_by=() if one.name in whole else (HALF_PRODUCTS,)) for one in work.kept)
    return replace(work, ops=tuple(ops), kept=(*kept, *before))


def _one_by_one(op: Linear) -> Iterator[Linear]:
    """The products that one of ours stands for: queries, keys and values; gate and up. The last one gathers for all."""
    if len(op.outputs) == 2 and op.split == "column":
        queries, (units, width) = op.outputs
        parts: tuple[tuple[str, Units], ...] = (
            ("queries", (queries,)),
            ("keys", ((units, width // 2),)),
            ("values", ((units, width - width // 2),)),
        )
    elif len(op.outputs) == 1 and op.outputs[0][1] == 2 and op.name.endswith("up"):
        units = op.outputs[0][0]
        parts = (("gate", ((units, 1),)), ("values", ((units, 1),)))
    else:
        yield op
        return
    whole = sum(units * width for units, width in op.outputs)
    for place, (name, outputs) in enumerate(parts):
        share = sum(units * width for units, width in outputs) / whole
        # The gathered input is made again for the products that are repeated: it is counted with the second.
        yield replace(
            op,
            name=f"{op.name}, {name}",
            outputs=outputs,
            bias=round(op.bias * share),
            gather=op.gather if place == 1 else 0,
        )
