"""What a plan's tensor collectives send, as its strategy prices them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Op, Vector
from meshwright.specs.row import PlanRow
from meshwright.strategies import TENSORS
from tests.strategies.columns import columns

SENT = {"all_reduce": 2.0}
"""Times (g - 1) / g of the payload that each of g ranks sends; 1 for other kinds."""


def tensor_bytes(
    spec: ModelSpec, row: PlanRow, seq_len: int, phase: Literal["forward", "backward"], element_bytes: float
) -> float:
    """Bytes out of one rank for one micro-batch.

    Args:
        spec: of the model.
        row: the plan.
        seq_len: tokens of a sample.
        phase: of the collectives.
        element_bytes: of activations and weights.
    """
    own = columns(tp=row.tp, sp=row.sp, mbs=row.mbs, seq_len=seq_len, tensor=row.tensor)
    strategy = TENSORS[row.tensor]
    sizes = {name: int(group[1][0]) for name, group in strategy.groups(own).items()}
    sent = 0.0
    for op in _operators(spec):
        if isinstance(op, Linear):
            calls = strategy.linear(op, own, element_bytes).calls
        else:
            calls = strategy.vector_calls(op, own, element_bytes) if isinstance(op, Vector) else ()
        for call in calls:
            if call.phase == phase:
                ranks = sizes[call.group]
                payload = float(np.broadcast_to(np.asarray(call.payload_bytes), (1,))[0])
                sent += payload * (1.0 if call.kind == "send" else SENT.get(call.kind, 1.0) * (ranks - 1) / ranks)
    return sent


def copies_bytes(spec: ModelSpec, row: PlanRow, element_bytes: float) -> float:
    """Bytes out of one rank for sums of gradients of what several tensor ranks hold alike.

    Args:
        spec: of the model.
        row: the plan.
        element_bytes: of gradients.
    """
    own, strategy = columns(tp=row.tp, sp=row.sp, mbs=row.mbs, tensor=row.tensor), TENSORS[row.tensor]
    linear = [strategy.linear(op, own, element_bytes) for op in _operators(spec) if isinstance(op, Linear)]
    alike = sum(float(np.broadcast_to(np.asarray(one.replicated), (1,))[0]) for one in linear)
    return SENT["all_reduce"] * (row.tp - 1) / row.tp * alike * element_bytes


def _operators(spec: ModelSpec) -> list[Op]:
    works = [
        edge_work(spec, "embedding"),
        *(layer_work(layer, spec.hidden, "flash") for layer in spec.layers()),
        edge_work(spec, "head"),
    ]
    return [op for work in works for op in work.ops]
