"""Data-parallel choices of the search: which ones a row has, and what they are, for all rows and choices at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.search.grid import Grid
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.row import offload_of
from meshwright.specs.shardings import SHARDINGS, UNSHARDED, ShardingKind, searched_shardings
from meshwright.specs.strategy import COLLECTIVE, Offload
from meshwright.strategies import PASSINGS
from meshwright.strategies.data import Z0, Z2, Z3, ShardingColumns, whole_between


@dataclass(frozen=True, slots=True)
class Sharding:
    """A data-parallel choice; `shard` counts data ranks of a group, of kinds with groups."""

    name: str
    shard: int = 0
    prefetch: int = 1
    """Layers gathered ahead of the one at work, of kinds that gather layers."""

    @property
    def kind(self) -> ShardingKind:
        """What the name says."""
        return SHARDINGS[self.name]

    def settings(self, cp: int) -> dict[str, Any]:
        """The fields of a plan's row that state it.

        Args:
            cp: context degree, whose ranks share states too.
        """
        words = {"data_words": (f"prefetch{self.prefetch}",)} if self.prefetch != 1 else {}
        return {"sharding": self.name, "shard_group": self.shard * cp, **words}


@lru_cache(maxsize=4096)
def shardings_for(dp: int, cp: int, space: Space) -> tuple[Sharding, ...]:
    """Choices for a data and context degree: one where nothing is shared, else all kinds and every size of groups.

    Args:
        dp: data degree.
        cp: context degree, whose ranks share states too.
        space: pinned choices.

    Returns:
        The choices.
    """
    wanted = space.pinned("sharding")
    if dp * cp == 1:
        free = wanted is None or UNSHARDED in wanted
        return (Sharding(UNSHARDED),) if free and "1" in (space.pinned("prefetch") or ("1",)) else ()
    groups = [shard for shard in divisors(dp)[:-1] if shard * cp > 1]
    ahead = [int(str(depth)) for depth in space.pinned("prefetch") or (1,)]
    return tuple(
        Sharding(name, shard, depth)
        for name in searched_shardings(*(wanted or ()))
        if wanted is None or name in wanted
        for shard in (groups if SHARDINGS[name].grouped else (0,))
        # Where no layers are gathered, every plan has the neutral depth.
        for depth in (ahead if SHARDINGS[name].gathers_layers else {1}.intersection(ahead))
    )


def ordered_shardings(dp: int, cp: int, space: Space) -> int:
    """Data-parallel choices of a data and context degree whose gradients may leave behind exchanges of tokens.

    Args:
        dp: data ranks.
        cp: context ranks.
        space: pinned axes.
    """
    return sum(keeps_order(choice.name) for choice in shardings_for(dp, cp, space))


def keeps_order(choice: str) -> bool:
    """Whether exchanges of tokens may go before gradients: those of sharded weights leave layer by layer, in no order.

    Args:
        choice: name of the sharding.
    """
    return SHARDINGS[choice].zero < Z3


def _away_columns(away: Offload, shape: tuple[int, ...]) -> dict[str, Float[np.ndarray, "choices rows"]]:
    """Columns of what is away besides the optimizer, the same in all rows."""
    values = {
        "offload_gradients": away.gradients,
        "offload_weights": away.weights,
        "offload_disk": float(away.tier == "nvme"),
        "delayed_update": float(away.delayed_update),
    }
    return {name: np.full(shape, value) for name, value in values.items()}


def offload_suits(away: Offload, choice: str, ranks: Int[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Rows that may keep so much away under a data-parallel choice.

    Gradients that leave as they come are summed before; weights of several ranks are sharded over all of them, so that
    each fetches its own.

    Args:
        away: what is away.
        choice: name of the sharding.
        ranks: data x context ranks.
    """
    kind = SHARDINGS[choice]
    summed = kind.zero >= Z2 or not away.gradients
    sharded = kind.shards_all or not away.weights
    if kind.travels and (away.weights or away.gradients):
        return np.zeros(np.shape(ranks), dtype=bool)
    return (ranks == 1) | (summed and sharded)


def _passing_suits(kind: ShardingKind, grid: Grid, layers: int, experts: bool) -> Bool[np.ndarray, "rows"]:
    """Rows whose weights may get to other ranks as a kind passes them."""
    if not kind.travels:
        return np.ones(grid.rows, dtype=bool)
    degrees = {name: getattr(grid, name) for name in ("tp", "cp", "pp", "ep", "etp", "dp")}
    return PASSINGS[kind.passing].suits(degrees, layers=layers, experts=experts)


@dataclass(frozen=True, slots=True, eq=False)
class ShardingTable:
    """Every choice on every row of a grid."""

    choices: Sequence[Sharding]
    legal: Bool[np.ndarray, "choices rows"]
    """Whether a choice applies to a row; elsewhere the columns mean nothing."""
    columns: ShardingColumns
    """Columns of shape choices x rows."""

    @classmethod
    def of(
        cls, grid: Grid, choices: Sequence[Sharding], keeps: str = "never", *, layers: int = 0, experts: bool = False
    ) -> ShardingTable:
        """The table of these choices.

        Args:
            grid: rows.
            choices: the choices, at least one.
            keeps: whether FSDP keeps gradients whole, as the framework says it.
            layers: the number of layers of the model, for choices that pass whole ones from rank to rank.
            experts: whether some layers have experts, likewise.
        """
        dp, cp = grid.dp, grid.cp
        ranks, away = dp * cp, offload_of(grid.offload)
        expert_ranks = np.maximum(grid.tp * ranks // (grid.ep * grid.etp), 1)

        def each(values: Sequence[object]) -> np.ndarray:
            return np.array(values)[:, None]

        group = each([choice.shard for choice in choices])
        kinds = [choice.kind for choice in choices]
        alone = each([kind.zero == Z0 for kind in kinds])
        grouped = each([kind.grouped for kind in kinds])
        replicate = np.where(grouped, np.maximum(dp // np.maximum(group, 1), 1), 1)
        expert_replicate = np.where(alone, expert_ranks, np.where(expert_ranks % replicate == 0, replicate, 1))
        replicate = np.where(alone, ranks, replicate)
        shape = replicate.shape
        fsdp = np.broadcast_to(each([kind.family == "fsdp" for kind in kinds]), shape)
        whole = whole_between(keeps, grid.m, grid.pp)
        passing = each([kind.passing for kind in kinds])
        ahead = each([choice.prefetch for choice in choices])
        in_groups = (dp % np.maximum(group, 1) == 0) & (dp > group) & (group * cp > 1)
        return cls(
            choices=choices,
            legal=np.where(grouped, in_groups, (ranks > 1) | alone)
            & np.array([_passing_suits(kind, grid, layers, experts) for kind in kinds])
            & np.array([offload_suits(away, choice.name, ranks) for choice in choices])
            & (each([keeps_order(choice.name) for choice in choices]) | ~grid.first)
            & (not away.weights or ahead == 1),
            columns=ShardingColumns(
                zero=np.broadcast_to(each([kind.zero for kind in kinds]), shape),
                fsdp=fsdp,
                reshard=np.broadcast_to(each([kind.reshard for kind in kinds]), shape),
                shard=ranks // replicate,
                replicate=replicate,
                expert_shard=expert_ranks // expert_replicate,
                expert_replicate=expert_replicate,
                overlap=np.ones(shape, dtype=bool),
                passing=np.broadcast_to(passing, shape) if (passing != COLLECTIVE).any() else None,
                prefetch=np.broadcast_to(ahead, shape) if (ahead != 1).any() else None,
                offload_optimizer=np.full(shape, away.optimizer),
                whole=None if whole is None else whole * fsdp,
                **({} if not grid.offload else _away_columns(away, shape)),
            ),
        )

    def take(self, choice: Int[np.ndarray, "picked"], row: Int[np.ndarray, "picked"]) -> ShardingColumns:
        """Columns of shape picked x 1.

        Args:
            choice: the choice by number.
            row: the row by number, a legal one of that choice.
        """
        return self._picked(lambda values: values[choice, row][:, None])

    def of_rows(self, index: Int[np.ndarray, "picked"]) -> ShardingTable:
        """The same choices on some rows.

        Args:
            index: the index of them.
        """
        columns = self._picked(lambda values: values[:, index])
        return ShardingTable(choices=self.choices, legal=self.legal[:, index], columns=columns)

    def every(self, choices: slice, row: Int[np.ndarray, "picked"]) -> ShardingColumns:
        """Columns of shape choices x picked x 1.

        Args:
            choices: some of them.
            row: the row by number.
        """
        return self._picked(lambda values: values[choices][:, row, None])

    def _picked(self, pick: Callable[[np.ndarray], np.ndarray]) -> ShardingColumns:
        found = {f.name: getattr(self.columns, f.name) for f in fields(ShardingColumns)}
        picked: dict[str, Any] = {name: None if values is None else pick(values) for name, values in found.items()}
        return ShardingColumns(**picked)
