"""Strategies of a plan as the columns that kernels take, one row each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshwright.shapes import Float
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.strategies.base import OVERLAPS, StrategyColumns
from meshwright.strategies.data import ShardingColumns


def strategy_columns(
    strategies: Sequence[LayerStrategy], micro_batch: float | Float[np.ndarray, "rows"], workload: Workload
) -> StrategyColumns:
    """Strategies as columns, one row each.

    Args:
        strategies: of a plan, of one tensor strategy.
        micro_batch: sequences per micro-batch, of all or each; a fraction for a section of one.
        workload: sequence length and expert load.

    Returns:
        The columns.
    """
    tensors = [strategy.tensor for strategy in strategies]
    levels = [[math.prod(c.degree for c in s.context if c.kind == kind) for kind in CONTEXTS] for s in strategies]
    return StrategyColumns(
        tp=np.array([t.degree for t in tensors]),
        sp=np.array([t.shards_sequence for t in tensors]),
        tp_overlap=np.array([OVERLAPS.index(t.overlap) if isinstance(t, Tensor1D) else 0 for t in tensors]),
        context=np.array(levels).reshape(-1, len(CONTEXTS)),
        ep=np.array([s.expert.ep for s in strategies]),
        etp=np.array([s.expert.etp for s in strategies]),
        mbs=np.broadcast_to(np.asarray(micro_batch), (len(strategies),)),
        capacity=np.array(
            [np.nan if s.expert.capacity_factor is None else s.expert.capacity_factor for s in strategies]
        ),
        ep_chunks=np.array([s.expert.overlap_degree for s in strategies]),
        offload_weights=np.array([s.offload.weights for s in strategies]),
        offload_activations=np.array([s.offload.activations for s in strategies]),
        seq_len=workload.seq_len,
        imbalance=workload.expert_imbalance,
        tensor=tensors[0].name,
        deduplicated=np.array([s.expert.dispatcher == "deduplicated" for s in strategies]),
    )


def sharding_columns(strategies: Sequence[LayerStrategy]) -> ShardingColumns:
    """Data-parallel records as columns of shape strategies x 1."""

    def column(values: list[object]) -> np.ndarray:
        return np.array(values)[:, None]

    shard, replicate, expert_shard, expert_replicate = [], [], [], []
    for strategy in strategies:
        data, ranks = strategy.data, strategy.cp * strategy.dp
        expert_ranks = max(1, strategy.devices // (strategy.expert.ep * strategy.expert.etp))
        if data.zero == 0:
            groups, expert_groups = ranks, expert_ranks
        else:
            groups = data.replicate
            expert_groups = groups if expert_ranks % groups == 0 else 1
        shard.append(ranks // groups)
        replicate.append(groups)
        expert_shard.append(expert_ranks // expert_groups)
        expert_replicate.append(expert_groups)
    return ShardingColumns(
        zero=column([s.data.zero for s in strategies]),
        fsdp=column([s.data.family == "fsdp" for s in strategies]),
        reshard=column([s.data.reshard for s in strategies]),
        shard=column(list(shard)),
        replicate=column(list(replicate)),
        expert_shard=column(list(expert_shard)),
        expert_replicate=column(list(expert_replicate)),
        overlap=column([s.data.overlap for s in strategies]),
        offload_optimizer=column([s.offload.optimizer for s in strategies]),
        gather_bytes=column([DTYPE_BYTES.get(s.data.gather_dtype or "", np.nan) for s in strategies]),
        reduce_bytes=column([DTYPE_BYTES.get(s.data.reduce_dtype or "", np.nan) for s in strategies]),
    )
