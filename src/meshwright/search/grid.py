"""Every legal row of degrees of a space, as columns; what is decided per row and what is left to its block.

A row fixes tp, cp, ep, etp, pp, dp, mbs and the tensor overlap. Schedule with its chunks, recompute and sharding form
the block of plans that share the row's layer costs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.estimate.legality import Degrees, model_rules
from meshwright.search.space import Space
from meshwright.shapes import Bool, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.strategies.base import OVERLAPS, StrategyColumns

Ints = Int[np.ndarray, "rows"]
Folds = Int[np.ndarray, "folds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rows of degrees."""

    tp: Ints
    overlap: Ints
    cp_a2a: Ints
    cp_p2p: Ints
    cp_ag: Ints
    ep: Ints
    etp: Ints
    pp: Ints
    dp: Ints
    mbs: Ints
    m: Ints
    """Micro-batches per step."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tp)

    @property
    def cp(self) -> Ints:
        """Context degree over all levels."""
        return self.cp_a2a * self.cp_p2p * self.cp_ag

    def take(self, index: Int[np.ndarray, "picked"] | Bool[np.ndarray, "rows"]) -> Grid:
        """The rows of this index or mask."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def strategies(self, workload: Workload, sections: int = 1) -> StrategyColumns:
        """The rows as strategies; nothing offloaded, no token dropped.

        Args:
            workload: sequence length and expert load.
            sections: equal parts of a micro-batch, one of which each strategy computes.
        """
        zero = np.zeros(self.rows)
        return StrategyColumns(
            tp=self.tp,
            sp=self.tp > 1,
            tp_overlap=self.overlap,
            cp_a2a=self.cp_a2a,
            cp_p2p=self.cp_p2p,
            cp_ag=self.cp_ag,
            ep=self.ep,
            etp=self.etp,
            mbs=self.mbs if sections == 1 else self.mbs / sections,
            capacity=np.full(self.rows, np.nan),
            ep_chunks=np.ones(self.rows, dtype=np.int64),
            offload_weights=zero,
            offload_activations=zero,
            seq_len=workload.seq_len,
            imbalance=workload.expert_imbalance,
        )


def divisors(number: int) -> list[int]:
    """Divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def build_grid(model: ModelSpec, workload: Workload, devices: int, space: Space) -> Grid:
    """All legal rows on exactly so many devices.

    Args:
        model: sets which degrees are legal.
        workload: sets batch and sequence.
        devices: tp x cp x pp x dp of every row.
        space: pinned axes.

    Returns:
        The rows; none if no degrees are legal.
    """
    wide = [tp for tp in divisors(devices) if _alone_legal(model, workload, tp=tp)]
    tps = _pinned(space, "tp", wide)
    experts = _expert_degrees(model, space)
    pieces: list[dict[str, Ints]] = []
    for tp in tps:
        for cp in _pinned(space, "cp", divisors(devices // tp)):
            if devices % (tp * cp) or workload.seq_len % (cp * (tp if tp > 1 else 1)):
                continue
            levels = _context_levels(cp, space)
            for pp in _pinned(space, "pp", divisors(devices // (tp * cp))):
                dp, rest = divmod(devices, tp * cp * pp)
                if rest or pp > model.num_layers or workload.global_batch % dp:
                    continue
                if not _allowed(space, "dp", dp):
                    continue
                pieces.append(_mesh(tp, cp, pp, dp, levels, experts, workload, space))
    if not pieces:
        empty = np.zeros(0, dtype=np.int64)
        return Grid(**{f.name: empty for f in fields(Grid)})
    grid = Grid(**{f.name: np.concatenate([piece[f.name] for piece in pieces]) for f in fields(Grid)})
    legal = np.ones(grid.rows, dtype=bool)
    degrees = grid_degrees(grid)
    for rule in model_rules(model, workload.seq_len):
        legal &= rule.holds(degrees)
    return grid.take(legal)


def grid_degrees(grid: Grid) -> Degrees:
    """The columns that legality rules read; one chunk per worker, which every pipeline may have."""
    return {
        "tp": grid.tp,
        "sp": np.ones_like(grid.tp),
        "cp": grid.cp,
        "cp_a2a": grid.cp_a2a,
        "pp": grid.pp,
        "vpp": np.ones_like(grid.tp),
        "ep": grid.ep,
        "etp": grid.etp,
        "dp": grid.dp,
        "mbs": grid.mbs,
    }


def _pinned(space: Space, axis: str, values: list[int]) -> list[int]:
    pinned = space.pinned(axis)
    return values if pinned is None else [value for value in values if value in pinned]


def _allowed(space: Space, axis: str, value: object) -> bool:
    pinned = space.pinned(axis)
    return pinned is None or value in pinned


def _alone_legal(model: ModelSpec, workload: Workload, *, tp: int) -> bool:
    """Whether a tensor degree can be legal with everything else at 1."""
    one = np.ones(1, dtype=np.int64)
    degrees = dict.fromkeys(("sp", "cp", "cp_a2a", "pp", "vpp", "ep", "etp", "dp", "mbs"), one) | {"tp": tp * one}
    return all(bool(rule.holds(degrees)[0]) for rule in model_rules(model, workload.seq_len))


def _context_levels(cp: int, space: Space) -> list[tuple[int, int, int]]:
    """(a2a, p2p, ag) of every kind of a context degree."""
    if cp == 1:
        return [(1, 1, 1)]
    kinds = {"p2p": [(1, cp, 1)], "a2a": [(cp, 1, 1)], "ag": [(1, 1, cp)]}
    kinds["a2a+p2p"] = [(inner, cp // inner, 1) for inner in divisors(cp)[1:-1]]
    return [level for kind, levels in kinds.items() if _allowed(space, "cp_kind", kind) for level in levels]


def _expert_degrees(model: ModelSpec, space: Space) -> tuple[Folds, Folds]:
    """Pairs (ep, etp) that divide experts and expert widths of every layer kind."""
    moes = [layer.mlp for layer in model.kinds() if layer.mlp.routed_experts]
    if not moes:
        return np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    eps = [ep for ep in divisors(moes[0].routed_experts) if all(moe.routed_experts % ep == 0 for moe in moes)]
    etps = [etp for etp in divisors(moes[0].expert_width) if all(moe.expert_width % etp == 0 for moe in moes)]
    ep, etp = np.meshgrid(_pinned(space, "ep", eps), _pinned(space, "etp", etps), indexing="ij")
    return ep.ravel().astype(np.int64), etp.ravel().astype(np.int64)


def _mesh(
    tp: int,
    cp: int,
    pp: int,
    dp: int,
    levels: list[tuple[int, int, int]],
    experts: tuple[Folds, Folds],
    workload: Workload,
    space: Space,
) -> dict[str, Ints]:
    """All rows of one (tp, cp, pp, dp)."""
    local_batch = workload.global_batch // dp
    batches = np.array(_pinned(space, "mbs", divisors(local_batch)), dtype=np.int64)
    overlaps = [OVERLAPS.index("bulk"), OVERLAPS.index("ring")] if tp > 1 else [OVERLAPS.index("bulk")]
    if space.pinned("tp_overlap") is not None and tp > 1:
        overlaps = [code for code in overlaps if _allowed(space, "tp_overlap", OVERLAPS[code])]
    stage = tp * cp * dp
    fold = stage % (experts[0] * experts[1]) == 0
    ep, etp = experts[0][fold], experts[1][fold]
    level, batch, overlap, fold_index = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(len(levels)), batches, np.array(overlaps, dtype=np.int64), np.arange(len(ep)), indexing="ij"
        )
    )
    kinds = np.array(levels, dtype=np.int64).reshape(-1, 3)[level]
    size = len(level)

    def full(value: int) -> Ints:
        return np.full(size, value, dtype=np.int64)

    return {
        "tp": full(tp),
        "overlap": overlap,
        "cp_a2a": kinds[:, 0],
        "cp_p2p": kinds[:, 1],
        "cp_ag": kinds[:, 2],
        "ep": ep[fold_index],
        "etp": etp[fold_index],
        "pp": full(pp),
        "dp": full(dp),
        "mbs": batch,
        "m": local_batch // batch,
    }
