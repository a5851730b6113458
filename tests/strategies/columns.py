"""Strategy columns by name, for tests that look at one field at a time."""

from __future__ import annotations

import numpy as np

from meshwright.specs.dispatchers import dispatcher_code
from meshwright.strategies import CONTEXTS
from meshwright.strategies.columns import OVERLAPS, StrategyColumns
from meshwright.strategies.data import ShardingColumns

GIB = 2**30
MIB = 2**20


def columns(
    *,
    tp: int | list[int] = 1,
    sp: bool = False,
    overlap: str = "none",
    a2a: int = 1,
    p2p: int = 1,
    ag: int = 1,
    striped: int = 1,
    burst: int = 1,
    tree: int = 1,
    ep: int | list[int] = 1,
    etp: int = 1,
    mbs: int = 1,
    seq_len: int = 4096,
    capacity: float = np.nan,
    chunks: int = 1,
    imbalance: float = 1.0,
    tensor: str = "1d",
    dispatcher: str = "alltoall",
    shadowed: int = 0,
) -> StrategyColumns:
    """One row, or one for each degree of a list."""
    rows = max(len(x) if isinstance(x, list) else 1 for x in (tp, ep))

    def whole(value: int | list[int]) -> np.ndarray:
        return np.broadcast_to(np.array(value), (rows,)).copy()

    levels = {"a2a": a2a, "p2p": p2p, "ag": ag, "striped": striped, "burst": burst, "tree": tree}
    return StrategyColumns(
        tp=whole(tp),
        sp=np.full(rows, sp),
        tp_overlap=whole(OVERLAPS.index(overlap)),
        context=np.tile([[levels.get(kind, 1) for kind in CONTEXTS]], (rows, 1)),
        tensor=tensor,
        ep=whole(ep),
        etp=whole(etp),
        mbs=whole(mbs),
        capacity=np.full(rows, capacity),
        ep_chunks=whole(chunks),
        offload_weights=np.zeros(rows),
        offload_activations=np.zeros(rows),
        seq_len=seq_len,
        imbalance=imbalance,
        dispatcher=None if dispatcher == "alltoall" else whole(dispatcher_code(dispatcher)),
        shadowed=whole(shadowed) if shadowed else None,
    )


def sharding(name: str, ranks: int = 1, *, groups: int = 1, offload: float = 0.0) -> ShardingColumns:
    """One data-parallel choice over so many ranks in so many groups."""
    fsdp = "fsdp" in name or name == "hsdp"
    return ShardingColumns(
        zero=np.array([3 if fsdp else int(name[1])]),
        fsdp=np.array([fsdp]),
        reshard=np.array([name != "fsdp-keep"]),
        shard=np.array([ranks // groups]),
        replicate=np.array([groups]),
        expert_shard=np.array([ranks // groups]),
        expert_replicate=np.array([groups]),
        overlap=np.array([True]),
        offload_optimizer=np.array([offload]),
    )
