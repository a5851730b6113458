"""Degrees of a stage that are legal and worth pricing: which share of its devices does what, and its micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from meshwright.estimate.rules.degrees import model_rules
from meshwright.search.axes import PLAIN_WAY, WAY_AXES, only_in_groups, only_way, ways
from meshwright.search.grid import Grid, grid_degrees
from meshwright.search.legal_rows import context_levels
from meshwright.search.shardings import Sharding
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.shapes import Float, Int
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.model import ModelSpec
from meshwright.specs.shardings import SHARDINGS, searched_shardings
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.strategies.columns import OVERLAPS

SLOWEST = 1.6
"""A strategy this much slower per layer than the quickest of the same devices is not looked at."""


def stage_grid(
    model: ModelSpec,
    workload: Workload,
    sizes: Sequence[int],
    global_micro_batches: Sequence[int],
    most_tensor: int,
    space: Space,
    most_micro_batch: int,
) -> tuple[Grid, Int[np.ndarray, "rows"], Int[np.ndarray, "rows"]]:
    """Legal degrees of every size, and the micro-batches that make up each global micro-batch."""
    rows: list[tuple[int, ...]] = []
    experts = _experts(model)
    apart = len(experts) > 1 and only_in_groups(space, "ep")
    for size in sizes:
        for tp in _pinned(space, "tp", [d for d in divisors(size) if d <= most_tensor]):
            for cp in _pinned(space, "cp", divisors(size // tp) if size % tp == 0 else []):
                if size % (tp * cp) or workload.seq_len % (cp * tp):
                    continue
                dp = size // (tp * cp)
                if not _pinned(space, "dp", [dp]):
                    continue
                kinds = context_levels(cp, space, hierarchical=False)
                folds = [
                    (ep, etp)
                    for ep in _pinned(space, "ep", experts)
                    for etp in _pinned(space, "etp", sorted({1, tp}) if len(experts) > 1 else [1])
                    if size % (ep * etp) == 0 and (ep > 1 or not apart)
                ]
                overlaps = _overlaps(tp, space)
                rows += [(size, tp, o, *kind, ep, etp, dp) for o in overlaps for kind in kinds for ep, etp in folds]
    table = np.array(rows, dtype=np.int64).reshape(-1, 6 + len(CONTEXTS))
    each = np.array(global_micro_batches, dtype=np.int64)
    pick, number = (axis.ravel() for axis in np.meshgrid(np.arange(len(table)), np.arange(len(each)), indexing="ij"))
    whole = (each[number] % table[pick, -1] == 0) & (each[number] // table[pick, -1] <= most_micro_batch)
    pick, number = pick[whole], number[whole]
    size, tp, overlap, *levels, ep, etp, dp = table[pick].T
    global_micro_batch = each[number]
    grid = Grid(
        tp=tp,
        overlap=overlap,
        context=np.stack(levels, axis=1),
        ep=ep,
        etp=etp,
        pp=np.ones_like(tp),
        dp=dp,
        mbs=global_micro_batch // dp,
        m=np.maximum(workload.global_batch // global_micro_batch, 1),
        way=np.where(ep > 1, _way(space), 0),
    )
    legal = np.ones(grid.rows, dtype=bool)
    degrees = grid_degrees(grid)
    for rule in model_rules(model, workload.seq_len):
        legal &= rule.holds(degrees)
    if space.pinned("mbs") is not None:
        legal &= np.isin(grid.mbs, np.array(space.pinned("mbs"), dtype=np.int64))
    return grid.take(legal), size[legal], global_micro_batch[legal]


def _way(space: Space) -> int:
    """Tokens sent once where that is free: what runs beside an exchange is chosen of whole plans."""
    sent_once = next(name for name, kind in DISPATCHERS.items() if kind.once)
    once = ways().index((sent_once, *PLAIN_WAY[1:]))
    free = all(word in (space.pinned(axis) or (word,)) for axis, word in zip(WAY_AXES, ways()[once], strict=True))
    return once if free else only_way(space)


def _experts(model: ModelSpec) -> list[int]:
    counts = [count for layer in model.kinds() if (count := layer.mlp.routed_experts)]
    return [ep for ep in divisors(counts[0]) if all(count % ep == 0 for count in counts)] if counts else [1]


def _overlaps(tp: int, space: Space) -> list[int]:
    wanted = space.pinned("tp_overlap")
    named = ("bulk", "ring") if tp > 1 else ("bulk",)
    return [OVERLAPS.index(name) for name in named if wanted is None or name in wanted]


def _pinned(space: Space, axis: str, values: Iterable[int]) -> list[int]:
    wanted = space.pinned(axis)
    return [value for value in values if wanted is None or value in wanted]


def quickest_rows(
    grid: Grid,
    devices: Int[np.ndarray, "rows"],
    global_micro_batch: Int[np.ndarray, "rows"],
    layer_s: Float[np.ndarray, "rows"],
) -> Int[np.ndarray, "kept"]:
    """Rows whose kind of context and of overlap is the quickest of their degrees, and that are not hopelessly slow."""
    order = np.lexsort((layer_s, grid.etp, grid.ep, grid.cp, grid.tp, global_micro_batch, devices))
    keys = np.stack([grid.etp, grid.ep, grid.cp, grid.tp, global_micro_batch, devices])[:, order]
    first = np.concatenate([[True], (np.diff(keys, axis=1) != 0).any(axis=0)])
    kept = order[first]
    code = devices[kept] * (1 << 32) + global_micro_batch[kept]
    _, group = np.unique(code, return_inverse=True)
    best = np.full(group.max() + 1, np.inf)
    np.minimum.at(best, group, layer_s[kept])
    return kept[layer_s[kept] <= SLOWEST * best[group]]


def shardings_tried(grid: Grid, space: Space) -> list[Sharding]:
    """Data-parallel choices: every plain kind but z3, which is fsdp in what counts here, and groups by node."""
    wanted = space.pinned("sharding")
    by_node = [shard for shard in (8, 16, 32) if (grid.dp > shard).any()]
    return [
        Sharding(name, shard)
        for name in (searched_shardings() if wanted is None else searched_shardings(*wanted))
        if (name != "z3" if wanted is None else name in wanted) and not SHARDINGS[name].travels
        for shard in (by_node if SHARDINGS[name].grouped else (0,))
    ]
