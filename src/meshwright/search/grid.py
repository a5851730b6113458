"""Every legal row of degrees of a space, as columns; what is decided per row and what is left to its block.

A row fixes tp, cp, ep, etp, pp, dp, mbs and the tensor overlap. Schedule with its chunks, recompute and sharding form
the block of plans that share the row's layer costs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.search.axes import first_ways, paired_ways, way_columns, ways
from meshwright.shapes import Bool, Int
from meshwright.specs.row import PlanRow, offload_of
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.strategies.base import Degrees
from meshwright.strategies.columns import OVERLAPS, StrategyColumns, ranks_of
from meshwright.strategies.context import half_ranks, head_ranks

Ints = Int[np.ndarray, "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rows of degrees."""

    tp: Ints
    overlap: Ints
    context: Int[np.ndarray, "rows kinds"]
    """Degree of each kind of `CONTEXTS`, innermost first."""
    ep: Ints
    etp: Ints
    pp: Ints
    dp: Ints
    mbs: Ints
    m: Ints
    """Micro-batches per step."""
    way: Ints
    """Index into `axes.ways`: how tokens reach their experts, and what runs beside."""
    tensor: str = "1d"
    """Tensor strategy of all rows."""
    offload: str = ""
    """What all rows keep away from their devices, as `PlanRow.offload` says it."""
    stopped: str = ""
    """The limit that left legal rows out; empty where all are there."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tp)

    @property
    def cp(self) -> Ints:
        """Context degree over all levels."""
        return ranks_of(self.context).astype(np.int64)

    @property
    def paired(self) -> Bool[np.ndarray, "rows"]:
        """Rows whose exchanges run beside another micro-batch."""
        return paired_ways(self.way)

    @property
    def first(self) -> Bool[np.ndarray, "rows"]:
        """Rows whose exchanges go before gradients."""
        return first_ways(self.way)

    def levels(self, row: int) -> tuple[tuple[str, int], ...]:
        """Context levels of a row, as a plan states them."""
        degrees = zip(CONTEXTS, self.context[row].tolist(), strict=True)
        return tuple((kind, degree) for kind, degree in degrees if degree > 1)

    def plan_row(self, row: int, **settings: Any) -> PlanRow:
        """A row as a plan.

        Args:
            row: the row of the grid.
            settings: the settings of the plan that a grid does not hold: pipeline, batch, sharding, recompute.
        """
        dispatcher, overlap, hot_experts, order = ways()[int(self.way[row])]
        return PlanRow(
            tp=int(self.tp[row]),
            tensor=self.tensor,
            tp_overlap=OVERLAPS[int(self.overlap[row])],
            cp=self.levels(row),
            ep=int(self.ep[row]),
            etp=int(self.etp[row]),
            dispatcher=dispatcher,
            ep_overlap=overlap,
            hot_experts=hot_experts,
            prioritised=order == "first",
            dp=int(self.dp[row]),
            mbs=int(self.mbs[row]),
            **settings,
        )

    def take(self, index: Int[np.ndarray, "picked"] | Bool[np.ndarray, "rows"]) -> Grid:
        """The rows of this index or mask."""
        return replace(self, **{name: getattr(self, name)[index] for name in COLUMNS})

    def in_ways(self, ways: Ints, *, alone: bool = False) -> Grid:
        """Each row with experts on several ranks once in each way, one row after the other.

        Args:
            ways: indices into `axes.ways`.
            alone: whether to take, too, rows whose experts are on one rank, for which every way is the same.
        """
        spread = np.ones(self.rows, dtype=bool) if alone else self.ep > 1
        times = np.where(spread, len(ways), 1)
        row = np.repeat(np.arange(self.rows), times)
        place = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
        return replace(self.take(row), way=np.where(spread[row], ways[place], 0).astype(self.way.dtype))

    def strategies(self, workload: Workload, sections: int = 1) -> StrategyColumns:
        """The rows as strategies; no token dropped.

        Args:
            workload: sequence length and expert load.
            sections: equal parts of a micro-batch, one of which each strategy computes.
        """
        away = offload_of(self.offload)
        several, about = bool(self.way.any()), way_columns()
        shadowed, placed = about.shadowed[self.way], about.placed[self.way]
        # Where weights are away, those of more ranks than one are sharded over them (`offload_suits`).
        shards = self.dp * self.cp * np.minimum(1.0, self.tp / (self.ep * self.etp))
        fetched = away.weights / np.maximum(np.floor(shards), 1.0)
        return StrategyColumns(
            tp=self.tp,
            sp=self.tp > 1,
            tp_overlap=self.overlap.astype(np.int64),
            context=self.context.astype(np.int64),
            tensor=self.tensor,
            ep=self.ep,
            etp=self.etp,
            mbs=self.mbs if sections == 1 else self.mbs / sections,
            capacity=np.full(self.rows, np.nan),
            ep_chunks=np.ones(self.rows, dtype=np.int64),
            offload_weights=fetched,
            offload_activations=np.full(self.rows, away.activations),
            weights_on_disk=np.full(self.rows, away.tier == "nvme") if away.weights else None,
            seq_len=workload.seq_len,
            imbalance=workload.expert_imbalance,
            dispatcher=about.dispatcher[self.way] if several else None,
            ep_overlap=about.overlap[self.way] if several else None,
            load=workload.expert_load,
            shadowed=shadowed if shadowed.any() else None,
            placed=placed if placed.any() else None,
            prioritised=self.first if self.first.any() else None,
            data_ranks=self.dp if workload.sequence_lengths else None,
        )


COLUMNS = tuple(f.name for f in fields(Grid) if f.name not in ("tensor", "offload", "stopped"))
"""Fields with one entry per row."""


NARROW: dict[str, type[np.signedinteger[Any]]] = {"context": np.int32, "overlap": np.int16, "way": np.int16}
"""Formats of columns that nobody computes with before they are widened: half of the bytes of a row are theirs in 64
bits, and a search of every method has ten million rows."""


def grid_degrees(grid: Grid) -> Degrees:
    """The columns that legality rules read; one chunk per worker, which every pipeline may have."""
    return {
        "tp": grid.tp,
        "sp": np.ones_like(grid.tp),
        "cp": grid.cp,
        "cp_heads": head_ranks(grid.context).astype(np.int64),
        "cp_halves": half_ranks(grid.context).astype(np.int64),
        "pp": grid.pp,
        "vpp": np.ones_like(grid.tp),
        "ep": grid.ep,
        "etp": grid.etp,
        "dp": grid.dp,
        "mbs": grid.mbs,
    }
