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
from meshwright.specs.strategy import Offload
from meshwright.strategies.data import Z0, Z1, Z2, Z3, ShardingColumns, whole_between

PLAIN_SHARDINGS = ("z0", "z1", "z2", "z3", "fsdp", "fsdp-keep")
SEARCHED_SHARDINGS = (*PLAIN_SHARDINGS, "hsdp")
"""Those that are tried unless others are named."""
NAMED_SHARDINGS = ("weipipe",)
"""Those that are tried where they are named, or where `--methods` opens the axis."""
_ZERO = {"z0": Z0, "z1": Z1, "z2": Z2}
_FSDP = ("fsdp", "fsdp-keep", "hsdp")


@dataclass(frozen=True, slots=True)
class Sharding:
    """A data-parallel choice; `shard` counts data ranks of an HSDP group."""

    name: str
    shard: int = 0


@lru_cache(maxsize=4096)
def shardings_for(dp: int, cp: int, space: Space) -> tuple[Sharding, ...]:
    """Choices for a data and context degree: one where nothing is shared, else all kinds and every HSDP group.

    Args:
        dp: data degree.
        cp: context degree, whose ranks share states too.
        space: pinned choices.

    Returns:
        The choices.
    """
    wanted = space.pinned("sharding")
    if dp * cp == 1:
        return (Sharding("z0"),) if wanted is None or "z0" in wanted else ()
    found = [Sharding(name) for name in PLAIN_SHARDINGS]
    if wanted is not None:
        found += [Sharding(name) for name in NAMED_SHARDINGS]
    found += [Sharding("hsdp", shard) for shard in divisors(dp)[:-1] if shard * cp > 1]
    return tuple(choice for choice in found if wanted is None or choice.name in wanted)


def keeps_order(choice: str) -> bool:
    """Whether exchanges of tokens may go before gradients: those of sharded weights leave layer by layer, in no order.

    Args:
        choice: name of the sharding.
    """
    return choice in _ZERO


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
    summed = choice in ("z2", "z3", "fsdp", "fsdp-keep", "hsdp") or not away.gradients
    sharded = choice in ("z3", "fsdp") or not away.weights
    if choice == "weipipe" and (away.weights or away.gradients):
        return np.zeros(np.shape(ranks), dtype=bool)
    return (ranks == 1) | (summed and sharded)


@dataclass(frozen=True, slots=True)
class Rings:
    """What of a model decides whether its layers may travel round data ranks, as `ring_rules` has it."""

    layers: int
    experts: bool
    """Whether some layers have experts."""

    def suit(self, grid: Grid) -> Bool[np.ndarray, "rows"]:
        """Rows with a layer for every rank whose ranks need nothing of each other inside a layer.

        Args:
            grid: the rows.
        """
        alone = (grid.cp == 1) & (grid.pp == 1) & (grid.ep == 1)
        return (grid.dp <= self.layers) & alone & ((grid.etp == grid.tp) | (not self.experts))


NO_RINGS = Rings(layers=0, experts=False)


@dataclass(frozen=True, slots=True, eq=False)
class ShardingTable:
    """Every choice on every row of a grid."""

    choices: Sequence[Sharding]
    legal: Bool[np.ndarray, "choices rows"]
    """Whether a choice applies to a row; elsewhere the columns mean nothing."""
    columns: ShardingColumns
    """Of shape choices x rows."""

    @classmethod
    def of(
        cls, grid: Grid, choices: Sequence[Sharding], keeps: str = "never", rings: Rings = NO_RINGS
    ) -> ShardingTable:
        """The table of these choices.

        Args:
            grid: rows.
            choices: at least one.
            keeps: where FSDP keeps gradients whole, as the framework says it.
            rings: which rows may send whole layers from rank to rank.
        """
        dp, cp = grid.dp, grid.cp
        ranks, away = dp * cp, offload_of(grid.offload)
        expert_ranks = np.maximum(grid.tp * ranks // (grid.ep * grid.etp), 1)

        def each(values: Sequence[object]) -> np.ndarray:
            return np.array(values)[:, None]

        group = each([choice.shard for choice in choices])
        alone = each([choice.name == "z0" for choice in choices])
        grouped = each([choice.name == "hsdp" for choice in choices])
        replicate = np.where(grouped, np.maximum(dp // np.maximum(group, 1), 1), 1)
        expert_replicate = np.where(alone, expert_ranks, np.where(expert_ranks % replicate == 0, replicate, 1))
        replicate = np.where(alone, ranks, replicate)
        shape = replicate.shape
        fsdp = np.broadcast_to(each([choice.name in _FSDP for choice in choices]), shape)
        whole = whole_between(keeps, grid.m, grid.pp)
        ring = each([choice.name == "weipipe" for choice in choices])
        in_groups = (dp % np.maximum(group, 1) == 0) & (dp > group) & (group * cp > 1)
        return cls(
            choices=choices,
            legal=np.where(grouped, in_groups, (ranks > 1) | alone)
            & (~ring | rings.suit(grid))
            & np.array([offload_suits(away, choice.name, ranks) for choice in choices])
            & (each([keeps_order(choice.name) for choice in choices]) | ~grid.first),
            columns=ShardingColumns(
                zero=np.broadcast_to(each([_ZERO.get(choice.name, Z3) for choice in choices]), shape),
                fsdp=fsdp,
                reshard=np.broadcast_to(each([choice.name != "fsdp-keep" for choice in choices]), shape),
                shard=ranks // replicate,
                replicate=replicate,
                expert_shard=expert_ranks // expert_replicate,
                expert_replicate=expert_replicate,
                overlap=np.ones(shape, dtype=bool),
                ring=np.broadcast_to(ring, shape) if ring.any() else None,
                offload_optimizer=np.full(shape, away.optimizer),
                whole=None if whole is None else whole * fsdp,
                **({} if not grid.offload else _away_columns(away, shape)),
            ),
        )

    def take(self, choice: Int[np.ndarray, "picked"], row: Int[np.ndarray, "picked"]) -> ShardingColumns:
        """Columns of shape picked x 1.

        Args:
            choice: by number.
            row: likewise, a legal one of that choice.
        """
        return self._picked(lambda values: values[choice, row][:, None])

    def every(self, choices: slice, row: Int[np.ndarray, "picked"]) -> ShardingColumns:
        """Columns of shape choices x picked x 1.

        Args:
            choices: some of them.
            row: by number.
        """
        return self._picked(lambda values: values[choices][:, row, None])

    def _picked(self, pick: Callable[[np.ndarray], np.ndarray]) -> ShardingColumns:
        found = {f.name: getattr(self.columns, f.name) for f in fields(ShardingColumns)}
        picked: dict[str, Any] = {name: None if values is None else pick(values) for name, values in found.items()}
        return ShardingColumns(**picked)
