"""Rows of a space as columns of the engine: bounded by themselves first, then by the shapes that fit them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from meshwright.search.block import Block
from meshwright.search.grid import Grid
from meshwright.search.queue import Queue
from meshwright.search.table import Table
from meshwright.shapes import Bool, Float, Int

SIZES = (512, 2, 4096)
"""Rows priced before anything is known, to find a first time to beat; twice as many each time after, until their
tables would not fit the cache."""
NEAR_SIZES = (128, 4, 4096)
"""The same where only plans near the quickest are wanted: the first plan is a time to beat, not the fifth layout."""
OPEN_SIZES = (64, 4, 4096)
"""Rows with the shapes that fit them that are priced together: few at first, as a time to beat spares most others."""
ROW_BEATEN = "row: time bound above the best"
SHAPE_BEATEN = "shape: time bound above the best"
SHAPE_TOO_LARGE = "shape: worker 0 exceeds memory"


@runtime_checkable
class Exploring(Protocol):
    """The search of a space, as far as its rows need it."""

    queue: Queue

    def worth_pricing(self, rows: GridRows) -> GridRows:
        """The rows that a shape fits which is quick enough."""

    def opened(self, grid: Grid) -> Iterator[OpenRows]:
        """Rows with the shapes that fit them."""

    def price(self, block: Block, pairs: Bool[np.ndarray, "rows shapes"], plans: int) -> None:
        """Price pairs of rows and shapes that stand for so many plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRows(Table):
    """Rows of the grid as columns of the engine."""

    run: Exploring
    grid: Grid
    """All rows."""
    row: Int[np.ndarray, "rows"]
    """Which of them."""
    bound_s: Float[np.ndarray, "rows"]
    plans: Int[np.ndarray, "rows"]
    """How many each stands for."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """See `engine.Columns`."""
        return SIZES if math.isinf(self.run.queue.near) else NEAR_SIZES

    def beaten(self) -> tuple[str, Int[np.ndarray, "rows"]]:
        """Plans are counted when their row is dropped."""
        return ROW_BEATEN, self.plans

    def refine(self) -> Iterator[OpenRows]:
        """The rows with the shapes that fit them."""
        return self.run.opened(self.grid.take(self.run.worth_pricing(self).row))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRows(Table):
    """Rows whose bounds are those of the shapes that fit them, as columns of the engine."""

    run: Exploring
    blocks: list[Block]
    block: Int[np.ndarray, "rows"]
    """Which of them a row is of."""
    row: Int[np.ndarray, "rows"]
    """Number of the row in its block."""
    bound_s: Float[np.ndarray, "rows"]
    plans: Int[np.ndarray, "rows"]
    """How many each stands for."""

    @classmethod
    def of(cls, run: Exploring, blocks: list[Block]) -> OpenRows:
        """All rows of blocks."""
        return cls(
            run=run,
            blocks=blocks,
            block=np.repeat(np.arange(len(blocks)), [block.grid.rows for block in blocks]),
            row=np.concatenate([np.arange(block.grid.rows) for block in blocks]),
            bound_s=np.concatenate([np.where(block.open, block.bounds_s(), np.inf).min(axis=1) for block in blocks]),
            plans=np.concatenate([block.plans(block.open) for block in blocks]),
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """See `engine.Columns`."""
        return OPEN_SIZES

    def beaten(self) -> tuple[str, Int[np.ndarray, "rows"]]:
        """Plans are counted when their row is dropped."""
        return SHAPE_BEATEN, self.plans

    def refine(self) -> tuple[()]:
        """Price the rows; what is found waits in the queue."""
        for number in np.flatnonzero(np.bincount(self.block)):
            here = self.block == number
            block = self.blocks[number]
            pairs = np.zeros_like(block.open)
            pairs[self.row[here]] = True
            self.run.price(block, pairs, int(self.plans[here].sum()))
        self.run.queue.simulate(rounds=2)
        return ()
