"""What decides without a full price: legality and memory by projection, and a lower bound of the time.

memory   reads neither networks nor overlap of data-parallel traffic: priced once per projection
networks allow an assignment by the degrees alone: checked once per split of the processors
bound    the same model on a system with one more network that costs nothing, which carries pipeline and data
         traffic; all the terms this leaves out are at least 0, so no execution of the projection is quicker
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.calculon.axes import LARGEST
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import OPERATIONS, Network, System
from meshwright.calculon.layouts import Cells
from meshwright.calculon.legality import reject
from meshwright.calculon.model import MemoryColumns, price_for_search, price_memory
from meshwright.calculon.rows import Book
from meshwright.calculon.settings import OFFLOAD_KEYS, SettingTable
from meshwright.calculon.space import ExecutionSpace
from meshwright.search.distinct import distinct
from meshwright.shapes import Bool, Float, Int

FREE = Network(
    bandwidth_bytes_per_s=1e30,
    efficiency=1.0,
    size=1 << 62,
    latency_s=0.0,
    must_be_filled=False,
    processor_usage=0.0,
    operations=dict.fromkeys(OPERATIONS, (1.0, 0.0)),
)
"""A network on which every transfer takes no time and every group is legal."""


class Relaxed:
    """Bounds over a space."""

    def __init__(self, space: ExecutionSpace, *, fixed: bool) -> None:
        self.space, self.app, self.system, self.fixed = space, space.app, space.system, fixed
        self.any_network: System = replace(space.system, networks=tuple(FREE for _ in space.system.networks))
        self.one_more: System = replace(space.system, networks=(*space.system.networks, FREE))
        self.free = len(space.system.networks)
        self.book = self._book()
        self._legal: dict[tuple[int, int, int], Bool[np.ndarray, "assignments"]] = {}

    def _book(self) -> Book | None:
        """The blocks of the whole space, where its batches leave few micro-batch sizes."""
        if self.space.axes.batches != LARGEST:
            return None
        parts: dict[int, list[Cells]] = {}
        tables: dict[int, SettingTable] = {}
        for table, cells in self.space.cells():
            tables[id(table)] = table
            parts.setdefault(id(table), []).append(cells)
        rows = []
        for key, table in tables.items():
            cells = Cells.joined(parts[key])
            cells = cells.take(distinct([cells.tensor_par, cells.data_par, cells.microbatch]).example)
            cell, setting = np.divmod(np.arange(cells.rows * table.coarse.size), table.coarse.size)
            rows.append(self.space.columns(table, cells.take(cell), table.coarse.first[setting], cells.low[cell]))
        return Book.of(self.app, self.one_more, ExecutionColumns.joined(rows), fixed=self.fixed) if rows else None

    def broken(self, table: SettingTable, cells: Cells) -> Int[np.ndarray, "cells ways"]:
        """Code of the first rule that each cell and memory setting breaks, networks aside; 0 where none."""
        first = table.rules.first
        cell, setting = np.repeat(np.arange(cells.rows), len(first)), np.tile(first, cells.rows)
        columns = self.space.columns(table, cells.take(cell), setting, cells.low[cell])
        code = reject(self.app, self.any_network, columns).reshape(cells.rows, len(first))
        return code[:, table.rules.of[table.memory.first]]

    def memory(self, columns: ExecutionColumns) -> MemoryColumns:
        """Memory of both tiers of executions that break no rule, whatever the networks."""
        return price_memory(self.app, self.any_network, columns, fixed=self.fixed, book=self.book)

    def allowed(self, table: SettingTable, cells: Cells, cell: int) -> Bool[np.ndarray, "assignments"]:
        """Which assignments of networks the degrees of a cell allow, one per entry of `table.networks`."""
        key = int(cells.tensor_par[cell]), int(cells.pipeline_par[cell]), int(cells.data_par[cell])
        if key not in self._legal:
            first = table.networks.first
            one = cells.take(np.full(len(first), cell))
            columns = self.space.columns(table, one, first, one.low)
            # An execution that breaks another rule too would be refused for that; these settings break none.
            plain = replace(
                columns,
                tensor_par_comm_type=np.zeros_like(columns.tensor_par_comm_type),
                seq_par_ag_redo=np.zeros_like(columns.seq_par_ag_redo),
                weight_offload=np.zeros_like(columns.weight_offload),
                activations_offload=np.zeros_like(columns.activations_offload),
                optimizer_offload=np.zeros_like(columns.optimizer_offload),
            )
            on_these = reject(self.app, self.system, plain)
            anyhow = reject(self.app, self.any_network, plain)
            self._legal[key] = (on_these == 0) | (anyhow != 0)
        return self._legal[key]

    def sample_s(
        self,
        table: SettingTable,
        cells: Cells,
        settings: Int[np.ndarray, "rows"],
        microbatches: Int[np.ndarray, "rows"],
        *,
        offload: bool = True,
    ) -> Float[np.ndarray, "rows"]:
        """Lower bound of seconds per sample over all networks of pipeline and data traffic, and its overlap.

        Args:
            table: settings of the cells.
            cells: one per row.
            settings: rows of the table, one of each projection that is bounded.
            microbatches: the micro-batches per replica.
            offload: the offload as the settings say; otherwise nothing is offloaded, which no offload is quicker than.
        """
        given: dict[str, Any] = {
            "data_par_net": np.int64(self.free),
            "data_par_overlap": np.bool_(False),
            "pipeline_par_net": np.where(
                cells.pipeline_par > 1, self.free, table.columns["pipeline_par_net"][settings]
            ),
        }
        if not offload:
            given |= dict.fromkeys(OFFLOAD_KEYS, np.bool_(False))
        columns = self.space.columns(table, cells, settings, microbatches, **given)
        priced = price_for_search(self.app, self.one_more, columns, fixed=self.fixed, legal=True, book=self.book)
        return priced.total_time_s / columns.batch_size


def best_count(cells: Cells) -> Int[np.ndarray, "cells"]:
    """A number of micro-batches whose time per sample bounds that of every number in a cell.

    Time per sample is a + c / n plus a term that is 0 where the pipeline degree divides n, with c at least 0: the
    least multiple of the degree at or above the highest n bounds them all. One number bounds itself.
    """
    degree = cells.pipeline_par
    above = -(-cells.high // degree) * degree
    return np.where(cells.low == cells.high, cells.high, above)
