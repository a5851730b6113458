"""What a plan's tensor collectives send, as its strategy prices them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from meshwright.kernels.compute import score_pairs
from meshwright.kernels.exchange import Routing
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import CoreAttention, Exchange, Linear, Op, Vector
from meshwright.specs.row import PlanRow
from meshwright.strategies import TENSORS
from meshwright.strategies.base import Call
from meshwright.strategies.columns import StrategyColumns
from meshwright.strategies.context import shard_attention
from meshwright.strategies.expert import exchange_calls
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
    own = _columns(row, seq_len)
    strategy = TENSORS[row.tensor]
    sizes = {name: int(group[1][0]) for name, group in strategy.groups(own).items()}
    sent = 0.0
    for op in _operators(spec):
        if isinstance(op, Linear):
            calls = strategy.linear(op, own, element_bytes).calls
        else:
            calls = strategy.vector_calls(op, own, element_bytes) if isinstance(op, Vector) else ()
        sent += sum(_sent(call, sizes[call.group]) for call in calls if call.phase == phase)
    return sent


def context_bytes(
    spec: ModelSpec, row: PlanRow, seq_len: int, phase: Literal["forward", "backward"], element_bytes: float
) -> float:
    """Bytes of keys, values, queries and heads likewise, that context ranks send."""
    own, pairs = _columns(row, seq_len), float(score_pairs(seq_len, seq_len))
    cores = [op for op in _operators(spec) if isinstance(op, CoreAttention)]
    calls = [call for op in cores for call in shard_attention(op, own, pairs, element_bytes, materialised=False).calls]
    sizes = dict(row.cp)
    return sum(_sent(call, sizes[call.group.removeprefix("cp_")]) for call in calls if call.phase == phase)


def expert_bytes(
    spec: ModelSpec,
    row: PlanRow,
    seq_len: int,
    phase: Literal["forward", "backward"],
    element_bytes: float,
    capacity: float,
) -> float:
    """Bytes of tokens on their way to experts and back, out of one rank, where experts have so much room."""
    own = _columns(row, seq_len)
    own = replace(
        own,
        ep=np.array([row.ep]),
        etp=np.array([row.etp]),
        capacity=np.array([capacity]),
        whole_tokens=np.array([True]) if row.drop_duplicates else None,
    )
    sizes, sent = {"ep": row.ep, "etp": row.etp, "tp": row.tp}, 0.0
    for layer in spec.layers():
        for op in layer_work(layer, spec.hidden, "flash").ops:
            if isinstance(op, Exchange):
                calls = exchange_calls(op, own, Routing(copies=layer.mlp.visited_experts), element_bytes)
                sent += sum(_sent(call, sizes[call.group]) for call in calls if call.phase == phase)
    return sent


def _columns(row: PlanRow, seq_len: int) -> StrategyColumns:
    return columns(tp=row.tp, sp=row.sp, mbs=row.mbs, seq_len=seq_len, tensor=row.tensor, **dict(row.cp))


def _sent(call: Call, ranks: int) -> float:
    payload = float(np.sum(np.asarray(call.payload_bytes) * np.asarray(call.repeats)))
    return payload * (1.0 if call.kind == "send" else SENT.get(call.kind, 1.0) * (ranks - 1) / ranks)


def copies_bytes(spec: ModelSpec, row: PlanRow, element_bytes: float) -> float:
    """Bytes out of one rank for sums of gradients of what several tensor ranks hold alike.

    Args:
        spec: of the model.
        row: the plan.
        element_bytes: of gradients.
    """
    own, strategy = _columns(row, 1), TENSORS[row.tensor]
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
