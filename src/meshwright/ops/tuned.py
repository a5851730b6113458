"""A layer of which not everything is trained: frozen operators marked, adapters put beside them.

A frozen product has a forward and an input gradient, no gradient of its weights, and its input need not be kept for
one. An adapter is two thin products beside a product, and the addition of what they give:

    beside a column split   A on the rank's own tokens, its output gathered over tensor ranks, B split by columns
    beside a row split      A split by rows and its partial sums reduced, B on the rank's own tokens
    beside a whole product  both on the rank's own tokens
    beside experts          as the products of the experts, one pair for each expert
    on a weight             W + B A is made whole before each product, in 16 bits, and is kept for the backward pass,
                            which makes its gradient and of that those of A and B (`ParamWrapper` of PEFT 0.21.2)

Source: Hu et al. 2021 (arXiv 2106.09685), section 4; parallel adapters as NVIDIA-NeMo/Megatron-Bridge lays them out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.ops.modules import Module, adapted_modules, part_of, product_of
from meshwright.specs.model import TunedLayer
from meshwright.specs.operators import Kept, LayerWork, Linear, Op, Region, Split, Vector
from meshwright.specs.tuning import MADE_AGAIN_BYTES, STORED_BYTES, LayerTuning, Lora

# W + B A and its norm: B A written, added to W, the sum read. Source: huggingface/peft 0.14, peft/tuners/lora/dora.py.
_NORM_BYTES = 10.0
# W read and W + B A written; the gradient of the sum read once for A and once for B, in 16 bits.
_MERGED_BYTES = 4.0


_SPLITS: dict[Split, tuple[Split, Split]] = {
    "column": ("replicated", "column"),
    "row": ("row", "replicated"),
    "replicated": ("replicated", "replicated"),
    "expert-column": ("expert-column", "expert-column"),
    "expert-row": ("expert-row", "expert-row"),
}
"""How both products of an adapter are cut beside a product that is cut so."""
_INTO: dict[Split, Region] = {"row": "tensor", "expert-column": "expert-in", "expert-row": "expert"}
_OUT: dict[Split, Region] = {"column": "tensor", "expert-column": "expert", "expert-row": "expert-in"}
"""Regions of inputs and outputs of a product, where these are no whole tokens of the sequence."""


def tuned_work(work: LayerWork, layer: TunedLayer) -> LayerWork:
    """The operators of a layer of which not everything is trained.

    Args:
        work: the same layer trained in full.
        layer: what of it is trained.
    """
    tuning = layer.tuning
    ops: list[Op] = []
    kept_beside: list[Kept] = []
    inputs: dict[str, str] = {}
    for op in work.ops:
        trained = part_of(op) not in tuning.frozen
        product, lora = product_of(op), tuning.lora
        found = [*adapted_modules(product, lora)] if product is not None and lora is not None and not trained else []
        merged = any(one.on_weight for one in found)
        if isinstance(op, Linear):
            # An input kept for adapters alone is kept as they read it, in the format of activations; where they drop
            # some of it, what is left is kept instead.
            drops = lora is not None and lora.dropout > 0 and not merged
            if trained or (found and not drops):
                inputs[op.name] = "input" if trained else "activation"
            ops.append(op if trained else _frozen(op, tuning, dora=bool(found) and not merged, merged=merged))
        else:
            ops.append(replace(op, trained=False) if isinstance(op, Vector) and not trained else op)
        for with_adapter in found:
            assert lora is not None
            assert product is not None
            own, put = replace(lora, rank=with_adapter.rank), _on_weight if with_adapter.on_weight else _adapter
            beside, kept_own = put(product, with_adapter.module, own)
            ops += beside
            kept_beside += kept_own
    kept: list[Kept] = []
    for one in work.kept:
        roles = {inputs[name] for name in one.weights_of if name in inputs}
        if not one.weights_of or "input" in roles:
            kept.append(one)
        elif roles:
            kept.append(replace(one, role="activation"))
    if not tuning.reached:
        kept, kept_beside = [], []
    return replace(work, ops=tuple(ops), kept=(*kept, *kept_beside), reached=tuning.reached)


def _frozen(op: Linear, tuning: LayerTuning, *, dora: bool, merged: bool) -> Linear:
    """A product whose weights are not trained; `dora` with an adapter beside it, `merged` with one on its weight."""
    stored = None if part_of(op) in tuning.skip else tuning.base
    again = 0.0 if stored is None or STORED_BYTES[stored] >= MADE_AGAIN_BYTES else STORED_BYTES[stored]
    again = again + MADE_AGAIN_BYTES if again else 0.0
    norm = _NORM_BYTES if dora and tuning.lora is not None and tuning.lora.dora else 0.0
    summed = _MERGED_BYTES if merged else 0.0
    return replace(
        op,
        trained=False,
        merged=merged,
        stored=stored,
        forward_weight_bytes=again + norm + summed,
        backward_weight_bytes=again + summed,
    )


def _on_weight(op: Linear, module: Module, lora: Lora) -> tuple[list[Op], list[Kept]]:
    """An adapter that is added to the whole weight: its parameters, and the sum that is kept."""
    width_in = sum(units * width for units, width in op.inputs)
    width_out = sum(units * width for units, width in module.outputs)
    held = Vector(
        name=f"{op.name} {module.names[0]} adapter",
        module=op.module,
        region="sequence",
        forward_elements=0,
        backward_elements=0,
        parameters=lora.rank * (width_in + width_out) * max(1, op.experts),
        exact=True,
    )
    whole = width_in * width_out * max(1, op.experts)
    freed = (op.module,) if op.module else ()
    one = Kept(
        name=f"{op.name} {module.names[0]} sum",
        elements=whole,
        role="activation",
        region="sequence",
        freed_by=freed,
        of_experts=True,
    )
    return [held], [one]


def _adapter(op: Linear, module: Module, lora: Lora) -> tuple[list[Op], list[Kept]]:
    """Both products of an adapter, what lies around them, and what they keep."""
    rank, name = lora.rank, f"{op.name} {module.names[0]} adapter"
    down, up = _SPLITS[op.split]
    width_in = sum(units * width for units, width in op.inputs)
    width_out = sum(units * width for units, width in module.outputs)
    into, out = _INTO.get(op.split, "sequence"), _OUT.get(op.split, "sequence")
    middle: Region = into if op.experts else "sequence"
    beside: dict[str, Any] = {"freed_by": (op.module,) if op.module else (), "tokens": op.tokens}
    kept = [Kept(name=f"{name} middle", elements=rank, role="activation", region=middle, **beside)]
    # Inputs are dropped with a mask of one byte; their gradients are added to those of the product beside.
    drops = 2.5 * (lora.dropout > 0)
    ops: list[Op] = [
        Vector(
            name=f"{name} input",
            module=op.module,
            region=into,
            forward_elements=drops * width_in,
            backward_elements=(drops + 3) * width_in,
            kernels=2.0 if lora.dropout else 0.5,
            exact=True,
        )
    ]
    if lora.dropout:
        dropped: dict[str, Any] = {"elements": width_in, "region": into, **beside}
        kept.append(Kept(name=f"{name} dropped input", role="activation", **dropped))
        kept.append(Kept(name=f"{name} mask", role="mask", **dropped))
    shared: dict[str, Any] = {"module": op.module, "adapter": True, "experts": op.experts, "tokens": op.tokens}
    heads = {"column": up, "row": down}.get(op.split)
    ops.append(
        Linear(
            name=f"{name} down",
            inputs=op.inputs,
            outputs=((1, rank),),
            split=down,
            reduce=rank if down == "row" else 0,
            of_heads=op.of_heads and down == heads,
            **shared,
        )
    )
    ops.append(
        Linear(
            name=f"{name} up",
            inputs=((1, rank),),
            outputs=module.outputs,
            split=up,
            gather=rank if up == "column" else 0,
            of_heads=op.of_heads and up == heads,
            **shared,
        )
    )
    # What it gives is scaled, and added to what the product gives; so is the gradient scaled.
    ops.append(
        Vector(
            name=f"{name} addition",
            module=op.module,
            region=out,
            forward_elements=5 * width_out,
            backward_elements=2 * width_out,
            parameters=width_out if lora.dora else 0,
            kernels=2.0,
            exact=True,
        )
    )
    if lora.dora:
        ops.append(
            Vector(
                name=f"{name} magnitude",
                module=op.module,
                region=out,
                forward_elements=2 * width_out,
                backward_elements=4 * width_out,
                exact=True,
            )
        )
        product: dict[str, Any] = {"elements": width_out, "region": out, **beside}
        kept.append(Kept(name=f"{name} product", role="activation", **product))
    return ops, kept
