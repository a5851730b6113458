"""Rows of a grid with everything that is priced once for them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property

import numpy as np

from meshwright.estimate.data.network import DataGroups, data_groups
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import ItemCosts, item_costs
from meshwright.estimate.layers.states import has_extras
from meshwright.estimate.memory import TIGHT_SHARE, PerParameter
from meshwright.estimate.pipeline import BoundaryColumns, Placed, boundary_columns
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid
from meshwright.search.shardings import Sharding, ShardingTable, shardings_for
from meshwright.search.space import Space
from meshwright.search.table import of_each_pair
from meshwright.shapes import Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import offload_of
from meshwright.specs.shardings import SHARDINGS
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import StrategyColumns

FEW_PAIRS = 8192
"""Pairs of rows and shapes that make a block whatever their numbers of micro-batches: most of them mean nothing, and
one product of more takes less than many of few."""


class PricedRows:
    """Rows with everything that is priced once for them."""

    def __init__(
        self,
        grid: Grid,
        factory: ShapeFactory,
        model: ModelSpec,
        hardware: Hardware,
        workload: Workload,
        space: Space,
        sections: int = 1,
    ) -> None:
        self.grid, self.hardware, self.workload = grid, hardware, workload
        self.layers, self.experts = model.num_layers, model.is_moe
        self.freezes = model.tuning is not None
        self.uneven = has_extras(model, workload)
        self.columns: StrategyColumns = grid.strategies(workload, sections)
        self.costs: ItemCosts = item_costs(factory.items, self.columns, model, hardware, workload)
        self.whole = np.array([item.part not in ("tie", "copy") for item in factory.items])
        self.edges = np.array([item.layer is None for item in factory.items])
        placed = Placed(pp=grid.pp, dp=grid.dp)
        self.boundary: BoundaryColumns = boundary_columns(self.columns, placed, model, hardware, workload)
        self.groups: DataGroups = data_groups(self.columns)
        self.space, self.away = space, offload_of(grid.offload)
        self.limit_bytes = hardware.memory_bytes * (1.0 if space.tight else 1.0 - TIGHT_SHARE)

    @cached_property
    def shardings(self) -> list[Sharding]:
        """Choices that apply to at least one of the rows."""
        return sorted(
            {
                choice
                for dp, cp in {*zip(self.grid.dp.tolist(), self.grid.cp.tolist(), strict=True)}
                for choice in shardings_for(dp, cp, self.space)
            },
            key=lambda choice: (list(SHARDINGS).index(choice.name), choice.shard, choice.prefetch),
        )

    @cached_property
    def table(self) -> ShardingTable:
        """These choices on every row."""
        keeps = self.hardware.software.whole_gradients
        return ShardingTable.of(self.grid, self.shardings, keeps, layers=self.layers, experts=self.experts)

    @cached_property
    def plans_of_rows(self) -> Int[np.ndarray, "rows"]:
        """The shardings of each row: plans of one shape."""
        return np.asarray(self.table.legal.sum(axis=0))

    @cached_property
    def per_parameter(self) -> PerParameter:
        """What each choice keeps of a parameter of each row."""
        return PerParameter.of(self.table.columns, self.hardware, self.workload)

    @cached_property
    def least_per_parameter(self) -> PerParameter:
        """The fewest bytes of each kind under any choice of a row."""
        return self.per_parameter.least(self.table.legal)

    def take(self, index: Int[np.ndarray, "picked"]) -> PricedRows:
        """The rows of this index."""
        part = copy(self)
        for name in ("plans_of_rows", "shardings", "table", "per_parameter", "least_per_parameter"):
            part.__dict__.pop(name, None)
        if "table" in self.__dict__:
            # Choices that apply to none of the rows that are left are legal on none of them.
            part.shardings, part.table = self.shardings, self.table.of_rows(index)
        part.grid, part.columns, part.costs = self.grid.take(index), self.columns.take(index), self.costs.take(index)
        part.boundary = self.boundary.take(index)
        part.groups = self.groups.take(index)
        return part


def priced_together(grid: Grid, factory: ShapeFactory) -> Iterator[Int[np.ndarray, "here"]]:
    """Rows by number that make a block: those of a (pp, m), and where these are few, of more numbers m.

    Args:
        grid: rows.
        factory: the factory of their shapes; those without a bound of their own are sketched for each (pp, m).
    """
    pairs = [*of_each_pair(grid.pp, grid.m)]
    most = FEW_PAIRS if all(schedule.bound_by_formula for schedule in factory.schedules) else 0
    for pp in dict.fromkeys(pp for pp, _, _ in pairs):
        together, shapes = list[Int[np.ndarray, "here"]](), 0
        for m, here in [(m, here) for one, m, here in pairs if one == pp]:
            more = factory.count(pp, m)
            if together and sum(map(len, (*together, here))) * (shapes + more) > most:
                yield np.concatenate(together)
                together, shapes = [], 0
            together.append(here)
            shapes += more
        yield np.concatenate(together)
