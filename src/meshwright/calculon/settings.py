"""Categorical settings of a space as a table: every combination that the needs of its axes allow.

The table is also cut into projections, because what an execution costs factors: memory reads few keys, the time of a
block a few more, and the networks of pipeline and data traffic only join at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.axes import Axes
from meshwright.calculon.inputs import CHOICES
from meshwright.shapes import Int

OFFLOAD_KEYS = ("weight_offload", "activations_offload", "optimizer_offload")
MEMORY_KEYS = (
    "activation_recompute", "optimizer_sharding", "tensor_par_comm_type", "seq_par_ag_redo", *OFFLOAD_KEYS,
    "fused_activation", "attention_type", "datatype",
)  # fmt: skip
"""Keys that memory reads, besides whether it trains and whether tensor-parallel traffic is overlapped at all."""
NETWORK_KEYS = ("tensor_par_net", "pipeline_par_net", "data_par_net")

Columns = Mapping[str, Int[np.ndarray, "settings"]]


@dataclass(frozen=True, slots=True)
class DistinctSettings:
    """Distinct values of some keys of the settings."""

    first: Int[np.ndarray, "distinct"]
    """One setting of each."""
    of: Int[np.ndarray, "settings"]
    """Which one each setting has."""

    @property
    def size(self) -> int:
        """Number of distinct values."""
        return len(self.first)


@dataclass(frozen=True, slots=True)
class SettingTable:
    """Every combination of settings for layouts whose degrees are above 1 in the same places."""

    columns: Columns
    """One code per setting and key: the position in CHOICES, 0 or 1, or the number of a network."""
    rules: DistinctSettings
    """Settings by what legality depends on, networks aside: whether anything is offloaded, and what memory depends on
    else."""
    light: DistinctSettings
    """Settings by what memory depends on but for offload."""
    memory: DistinctSettings
    """Settings by what memory depends on."""
    coarse: DistinctSettings
    """Settings by what the time depends on but for offload, pipeline and data traffic."""
    bound: DistinctSettings
    """Settings by what the time without pipeline and data traffic depends on."""
    networks: DistinctSettings
    """Settings by assignment of networks."""

    @property
    def rows(self) -> int:
        """Number of settings."""
        return len(self.networks.of)


def setting_table(axes: Axes, above_one: tuple[bool, bool, bool]) -> SettingTable:
    """All settings of a space.

    Args:
        axes: the space.
        above_one: whether tensor, pipeline and data degree are above 1.

    Returns:
        The table, possibly without rows.
    """
    degrees = dict(zip(("tensor_par", "pipeline_par", "data_par"), above_one, strict=True))
    columns: dict[str, Int[np.ndarray, "settings"]] = {}
    rows = 1
    for axis in axes.settings:
        free = np.ones(rows, dtype=bool)
        for need in axis.needs:
            if need.values:
                free &= np.isin(columns[need.key], [code(need.key, value) for value in need.values])
            else:
                free &= degrees[need.key]
        values = np.array([code(axis.key, value) for value in axis.values], dtype=np.int64)
        repeats = np.where(free, len(values), 1)
        source = np.repeat(np.arange(rows), repeats)
        turn = np.arange(len(source)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        column = np.where(free[source], values[turn], code(axis.key, axis.plain))
        columns = {key: values_[source] for key, values_ in columns.items()}
        columns[axis.key] = column
        rows = len(column)
        pinned = axes.pinned(axis.key)
        if pinned is not None:
            kept = np.isin(column, [code(axis.key, value) for value in pinned])
            columns = {key: values_[kept] for key, values_ in columns.items()}
            rows = int(kept.sum())
    light = [columns[key] for key in MEMORY_KEYS if key not in OFFLOAD_KEYS]
    light.append(np.minimum(columns["tensor_par_overlap"], 1))
    coarse = [*light, columns["tensor_par_overlap"], columns["tensor_par_net"]]
    if not above_one[1]:
        # A pipeline of one stage still pays the latency of its network inside a block, so that network stays apart.
        coarse.append(columns["pipeline_par_net"])
    offload = [columns[key] for key in OFFLOAD_KEYS]
    return SettingTable(
        columns=columns,
        rules=_projection([*light, np.max(offload, axis=0)], rows),
        light=_projection(light, rows),
        memory=_projection([*light, *offload], rows),
        coarse=_projection(coarse, rows),
        bound=_projection([*coarse, *offload], rows),
        networks=_projection([columns[key] for key in NETWORK_KEYS], rows),
    )


def _projection(keys: list[Int[np.ndarray, "settings"]], rows: int) -> DistinctSettings:
    """Distinct combinations, in the order of their first setting."""
    joined = np.zeros(rows, dtype=np.int64)
    for key in keys:
        joined = joined * (int(key.max(initial=0)) + 1) + key
    _, first, of = np.unique(joined, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return DistinctSettings(first[order], rank[of.reshape(-1)])


def code(key: str, value: str | bool | int) -> int:
    """A value's number in a column."""
    return CHOICES[key].index(str(value)) if key in CHOICES else int(value)
