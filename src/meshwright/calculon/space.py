"""The executions of one application on one system: counted, numbered and drawn without trying any.

Every execution has a number: layouts (degrees, interleaving, batch, micro-batch) in order, and within each all
settings in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.calculon.axes import Axes
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.layouts import Cells, Degrees, DegreeTable, cells_of
from meshwright.calculon.settings import SettingTable, setting_table
from meshwright.errors import InfeasibleError
from meshwright.shapes import Int

AboveOne = tuple[bool, bool, bool]


@dataclass(frozen=True)
class ExecutionSpace:
    """A space of training executions.

    Its size is the number of executions whose keys keep every constraint of `axes`; networks and memory reject some
    of them later, as they do in Calculon.
    """

    app: Application
    system: System
    num_procs: int
    batch: int
    """The batch; each data degree takes the largest multiple of it up to here, or every multiple."""
    axes: Axes

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the question alone; tables are made again where they are needed."""
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @cached_property
    def degrees(self) -> tuple[Degrees, ...]:
        """Every split of the processors, without those that have no settings."""
        table = DegreeTable(self.app, self.axes, self.num_procs, self.batch)
        return tuple(degrees for degrees in table.rows if self.settings(degrees.above_one).rows)

    @cached_property
    def _tables(self) -> dict[AboveOne, SettingTable]:
        return {}

    def settings(self, above_one: AboveOne) -> SettingTable:
        """The settings of layouts whose tensor, pipeline and data degrees are above 1 in these places."""
        if above_one not in self._tables:
            self._tables[above_one] = setting_table(self.axes, above_one)
        return self._tables[above_one]

    @cached_property
    def _first(self) -> Int[np.ndarray, "splits"]:
        """Number of the first execution of every split, and after the last."""
        sizes = [degrees.layouts * self.settings(degrees.above_one).rows for degrees in self.degrees]
        return np.cumsum([0, *sizes])

    @property
    def size(self) -> int:
        """Number of executions."""
        return int(self._first[-1])

    def __len__(self) -> int:
        return self.size

    def require_executions(self) -> None:
        """Refuse an empty space.

        Raises:
            InfeasibleError: it has no execution; says which constraint leaves none.
        """
        if self.degrees:
            return
        table = DegreeTable(self.app, self.axes, self.num_procs, self.batch)
        if table.rows:
            held = [f"{key} is {' or '.join(map(str, values))}" for key, values in self.axes.pins]
            key, why = "pins", " and ".join(held) + ": no setting keeps these and what they need"
        else:
            key, why = table.what_empties()
        what = f"the space has no execution of {self.app.name or 'the application'} on {self.num_procs} processors"
        fix = "change the number of processors or the batch, or pin less"
        raise InfeasibleError(what=what, why=f"nothing keeps: {why}", fix=fix, field=key, code="MW310")

    def cells(self, block: slice | None = None) -> Iterator[tuple[SettingTable, Cells]]:
        """All layouts, gathered into cells of equal memory, with the settings each has.

        Args:
            block: only these of `degrees`.
        """
        places = range(len(self.degrees))[block or slice(None)]
        kinds = sorted({self.degrees[place].above_one for place in places}, reverse=True)
        for kind in kinds:
            table = self.settings(kind)
            for place in places:
                degrees = self.degrees[place]
                if degrees.above_one == kind:
                    yield table, cells_of(degrees, int(self._first[place]), table.rows)

    def columns(
        self,
        table: SettingTable,
        cells: Cells,
        settings: Int[np.ndarray, "rows"],
        microbatches: Int[np.ndarray, "rows"],
        **given: Any,
    ) -> ExecutionColumns:
        """Executions of cells, one cell, setting and number of micro-batches per row.

        Args:
            table: settings of the cells.
            cells: one per row.
            settings: rows of the table.
            microbatches: the micro-batches per replica.
            given: columns or values that replace the table's.
        """
        values: dict[str, Any] = {
            "num_procs": np.int64(self.num_procs),
            "training": np.bool_(True),
            "tensor_par": cells.tensor_par,
            "pipeline_par": cells.pipeline_par,
            "data_par": cells.data_par,
            "pipeline_interleaving": cells.interleaving,
            "microbatch_size": cells.microbatch,
            "batch_size": cells.data_par * cells.microbatch * microbatches,
            **{key: column[settings] for key, column in table.columns.items()},
            **given,
        }
        return ExecutionColumns.of(values)

    def take(self, numbers: Int[np.ndarray, "rows"]) -> ExecutionColumns:
        """The executions of these numbers.

        Args:
            numbers: the numbers from 0 to `size` - 1, any order.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        split = np.searchsorted(self._first, numbers, side="right") - 1
        parts: list[ExecutionColumns] = []
        places: list[Int[np.ndarray, "part"]] = []
        for place in np.unique(split).tolist():
            rows = np.flatnonzero(split == place)
            degrees = self.degrees[place]
            table = self.settings(degrees.above_one)
            cells = cells_of(degrees, int(self._first[place]), table.rows)
            cell = np.searchsorted(cells.first, numbers[rows], side="right") - 1
            within, setting = np.divmod(numbers[rows] - cells.first[cell], table.rows)
            picked = cells.take(cell)
            parts.append(self.columns(table, picked, setting, picked.low + within))
            places.append(rows)
        if not parts:
            return _none()
        order = np.argsort(np.concatenate(places), kind="stable")
        return ExecutionColumns.joined(parts).take(order)

    def sample(self, rows: int, seed: int = 0) -> ExecutionColumns:
        """Executions drawn uniformly, with repetition.

        Args:
            rows: how many.
            seed: the same executions for the same seed.
        """
        return self.take(np.random.default_rng(seed).integers(0, self.size, rows))


def _none() -> ExecutionColumns:
    empty = np.zeros(0, dtype=np.int64)
    return ExecutionColumns.of(dict.fromkeys(ExecutionColumns.__slots__, empty))
