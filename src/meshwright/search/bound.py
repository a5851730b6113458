"""Lower bounds for whole blocks: no plan of a row can be faster, or need less memory, whatever its settings.

Layer costs factor: the dense part of a layer depends on (tp, cp, mbs, overlap), the expert part on (tokens, ep, etp).
Each factor is priced once per distinct value and gathered, so a million rows cost what a few thousand do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from meshwright.estimate.away import updated_bytes
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.groups import Groups
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layers.work_seconds import WorkSeconds
from meshwright.estimate.layout import ModelLayout
from meshwright.ops.edges import edge_work, edge_works
from meshwright.ops.layers import work_of
from meshwright.search.grid import Grid
from meshwright.search.table import distinct_rows, distinct_values
from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork
from meshwright.specs.row import offload_of
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import BEST_OVERLAP, StrategyColumns

PerRow = Float[np.ndarray, "rows"]
EXPERT_MODULES = ("moe", "moe_act")


@dataclass(frozen=True, slots=True)
class Factors:
    """A column of the rows as the sum of a dense and an expert factor, each once per distinct value.

    Sums and multiples are taken of thousands of factors, before they are gathered into millions of rows.
    """

    dense: Float[np.ndarray, "dense"]
    experts: Float[np.ndarray, "experts"]

    def __add__(self, other: Factors) -> Factors:
        return Factors(self.dense + other.dense, self.experts + other.experts)

    def __mul__(self, count: float) -> Factors:
        return Factors(self.dense * count, self.experts * count)


def _summed(counts: Sequence[float], columns: Sequence[Factors]) -> Factors:
    """The sum of so many of each column."""
    first, *others = (column * count for count, column in zip(counts, columns, strict=True))
    for other in others:
        first = first + other
    return first


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Forward and backward seconds and parameters of one layer kind or edge; nothing recomputed."""

    forward_s: Factors
    backward_s: Factors
    dense_parameters: Factors
    expert_parameters: Factors
    frozen_dense_bytes: Factors
    """Bytes of dense weights that are not trained, as they are stored."""
    frozen_expert_bytes: Factors


class Factored:
    """Prices layers of a grid factor by factor."""

    def __init__(
        self,
        grid: Grid,
        hardware: Hardware,
        workload: Workload,
        *,
        ways: Int[np.ndarray, "ways"] | None = None,
        sections: int = 1,
    ) -> None:
        """Find the distinct factors of rows.

        Args:
            grid: rows.
            hardware: the device and its links.
            workload: the step.
            ways: the ways that each row with experts on several ranks stands for: of each cost the least counts.
            sections: equal parts of a micro-batch, one of which is priced.
        """
        self.grid, self.hardware, self.workload, self.ways, self.sections = grid, hardware, workload, ways, sections
        self.dense_rows, self.dense_of = distinct_rows(grid.tp, *grid.context.T, grid.mbs, grid.overlap)
        ranks = grid.cp * grid.tp
        # Sequences of a rank as whole numbers, small enough to be looked up in a table where degrees divide each other.
        whole = min(math.lcm(*distinct_values(ranks)[0].tolist()), 1 << 20) if grid.rows else 1
        self.expert_rows, self.expert_of = distinct_rows(grid.mbs * whole // ranks, grid.ep, grid.etp, grid.way)
        self._strategies: dict[bool, tuple[StrategyColumns, Groups]] = {}
        self._priced: dict[tuple[LayerWork, bool, bool], WorkSeconds] = {}

    def part(self, work: LayerWork, *, quantised: bool = True) -> PartCosts:
        """One layer kind or edge."""
        both = [self._price(work, quantised=quantised, experts=experts) for experts in (False, True)]
        return PartCosts(*(Factors(dense, experts) for dense, experts in zip(*both, strict=True)))

    def per_row(self, column: Factors, rows: Int[np.ndarray, "picked"] | slice = slice(None)) -> PerRow:
        """A column of the rows, or of some of them."""
        return column.dense[self.dense_of[rows]] + column.experts[self.expert_of[rows]]

    def columns(self, *, experts: bool) -> StrategyColumns:
        """The distinct values of a factor as strategies."""
        # Rows of other data degrees share these: no rank is fuller than the mean.
        rows = self.expert_rows if experts else self.dense_rows
        grid = self.grid.take(rows)
        if experts and self.ways is not None:
            grid = grid.in_ways(self.ways, alone=True)
        columns = replace(grid.strategies(self.workload, self.sections), data_ranks=None)
        if columns.ep_overlap is not None:
            # What runs beside an exchange stands in the other factor: as much as can hide it.
            columns = replace(columns, ep_overlap=np.where(columns.ep_overlap > 0, BEST_OVERLAP, 0))
        return columns

    def seconds(self, work: LayerWork, *, quantised: bool, experts: bool) -> WorkSeconds:
        """What a layer kind or edge takes as far as it depends on one factor; of experts, or of all else."""
        key = work, quantised, experts
        if key not in self._priced:
            if experts not in self._strategies:
                columns = self.columns(experts=experts)
                self._strategies[experts] = columns, Groups(columns, self.hardware)
            columns, groups = self._strategies[experts]
            ops = tuple(op for op in work.ops if (op.module in EXPERT_MODULES) == experts)
            self._priced[key] = price_work(
                replace(work, ops=ops, kept=()),
                columns,
                self.hardware,
                self.workload,
                quantised=quantised,
                groups=groups,
            )
        return self._priced[key]

    def _price(self, work: LayerWork, *, quantised: bool, experts: bool) -> list[Float[np.ndarray, "distinct"]]:
        """The fields of `PartCosts` for distinct values."""
        seconds = self.seconds(work, quantised=quantised, experts=experts)
        sides = [side.compute_s + side.tp_s + side.cp_s + side.ep_s for side in (seconds.forward, seconds.backward)]
        found = [
            *sides,
            seconds.dense_parameters,
            seconds.expert_parameters,
            seconds.frozen_dense_bytes,
            seconds.frozen_expert_bytes,
        ]
        if experts and self.ways is not None:
            found = [value.reshape(-1, len(self.ways)).min(axis=1) for value in found]
        return found


def _joined(parts: list[PartCosts]) -> PartCosts:
    """The sum of parts."""
    once = [1.0] * len(parts)
    return PartCosts(*(_summed(once, [getattr(part, f.name) for part in parts]) for f in fields(PartCosts)))


class RowBounds:
    """What bounds every plan of a row, over all its schedules, chunks, recompute modes and shardings.

    Time: each worker runs m micro-batches, so a step takes at least m times the mean work of the workers; and at least
    what the last worker waits for (the first forwards upstream), its own work, and the last backwards upstream; least
    over the chunk counts. Memory: states sharded over every rank that can share them, mean over workers, no more.
    """

    def __init__(
        self,
        grid: Grid,
        model: ModelSpec,
        hardware: Hardware,
        workload: Workload,
        *,
        any_order: bool = False,
        chunked: bool = True,
        each_chunked: bool = True,
        ways: Int[np.ndarray, "ways"] | None = None,
    ) -> None:
        """The bounds of rows.

        Args:
            grid: rows.
            model: the model.
            hardware: the device and its links.
            workload: the step.
            any_order: whether they hold, too, for schedules whose last worker waits for less: without a flush, with
                sections of micro-batches, in both directions, or with the last stage elsewhere.
            chunked: whether they hold, too, for schedules of several chunks per worker.
            each_chunked: look at each number of chunks by itself, which takes a pass over the rows for each.
            ways: the ways that each row with experts on several ranks stands for.
        """
        self.model, self.hardware, self.any_order, self.chunked = model, hardware, any_order, chunked
        self.each_chunked = each_chunked
        self.factored = factored = Factored(grid, hardware, workload, ways=ways)
        kinds = model.kinds()
        self.parts = [factored.part(work_of(model, kind, workload.attention_kernel)) for kind in kinds]
        self.counts = [model.kind_counts()[kind] for kind in kinds]
        self.embedding = _joined([factored.part(work, quantised=False) for work in edge_works(model, "embedding")])
        self.head = factored.part(edge_work(model, "head"), quantised=False)

    @cached_property
    def time_s(self) -> PerRow:
        """Seconds per row."""
        model, factored, head = self.model, self.factored, self.head
        head_work_s = head.forward_s + head.backward_s
        if model.mtp_layers:
            last = factored.part(work_of(model, model.mtp_kind, factored.workload.attention_kernel))
            head_work_s = head_work_s + (head_work_s + last.forward_s + last.backward_s) * model.mtp_layers
        work_s = [part.forward_s + part.backward_s for part in self.parts]
        training = 1.0 if factored.workload.training else 0.0
        if not training:
            work_s = [part.forward_s for part in self.parts]
            head_work_s = head.forward_s
        embedding_s = self.embedding.forward_s + self.embedding.backward_s * training
        total_s = _summed(self.counts, work_s) + head_work_s + embedding_s
        time_s = factored.grid.m * factored.per_row(total_s) / factored.grid.pp
        if not self.any_order:
            chunks = {"chunked": self.chunked, "each_chunked": self.each_chunked}
            time_s = np.maximum(time_s, _last_worker_s(factored, model, work_s, head_work_s, **chunks))
        return time_s + self.host_update_s

    @cached_property
    def host_update_s(self) -> PerRow | float:
        """What every worker waits for behind its pipeline where optimizers run on the host, mean over workers."""
        factored, workload = self.factored, self.factored.workload
        away = offload_of(factored.grid.offload)
        if not away.optimizer or away.delayed_update or not workload.training:
            return 0.0
        updated = _shared_per_stage(factored, self._everything, "dense_parameters", "expert_parameters")
        return away.optimizer * updated * updated_bytes(workload) / self.hardware.host_update_bytes_per_s

    @property
    def _everything(self) -> list[tuple[int, PartCosts]]:
        """Each part of the model, and how many there are."""
        edges = [(1, self.head), (0 if self.model.tied_embeddings else 1, self.embedding)]
        return [*zip(self.counts, self.parts, strict=True), *edges]

    @cached_property
    def peak_bytes(self) -> PerRow:
        """Bytes per row."""
        model, software = self.model, self.hardware.software
        fixed_bytes = self.hardware.efficiency.context_bytes + software.engine_bytes
        states = _least_states(self.factored, model, self._everything)
        return states * (1.0 + software.fragmentation) + fixed_bytes


def _least_states(factored: Factored, model: ModelSpec, every: list[tuple[int, PartCosts]]) -> PerRow:
    """Bytes of weights, gradients and optimizer states sharded over every rank that can share them, mean over workers.

    Args:
        factored: the rows, priced.
        model: says whether parts are frozen.
        every: each part of the model, and how many there are.
    """
    grid = factored.grid
    here = 1.0 - offload_of(grid.offload).weights if grid.offload else 1.0
    states = least_state_bytes(factored) * _shared_per_stage(factored, every, "dense_parameters", "expert_parameters")
    if model.tuning is not None:
        states = states + here * _shared_per_stage(factored, every, "frozen_dense_bytes", "frozen_expert_bytes")
    return states


def least_state_bytes(factored: Factored) -> float:
    """The fewest bytes of a parameter's weight, gradient and optimizer states on all ranks that share them."""
    grid, workload = factored.grid, factored.workload
    precision = workload.precision
    if grid.offload:
        return precision.bytes_of("weights") * (1.0 - offload_of(grid.offload).weights)
    if not workload.training:
        return precision.bytes_of("weights")
    kind = workload.update
    moments = 0.0 if kind.paged else kind.least_bytes(precision.bytes_of("moments"))
    main = max(precision.bytes_of("master"), precision.bytes_of("weights"))
    return min(2 * main, precision.bytes_of("weights") + precision.bytes_of("gradients") + main) + moments


def _shared_per_stage(factored: Factored, every: list[tuple[int, PartCosts]], dense: str, experts: str) -> PerRow:
    """Two fields of parts that every rank of a stage shares which can, mean over stages.

    Args:
        factored: the rows, priced.
        every: each part of the model, and how many there are.
        dense: name of the field that data and context ranks share.
        experts: name of the field of experts that they share.
    """
    grid = factored.grid
    counts, parts = zip(*every, strict=True)
    dense_sum, expert_sum = (
        factored.per_row(_summed(counts, [getattr(part, name) for part in parts])) for name in (dense, experts)
    )
    shards = np.maximum(grid.tp * grid.cp * grid.dp // (grid.ep * grid.etp), 1)
    return (dense_sum / (grid.cp * grid.dp) + expert_sum / shards) / grid.pp


def _last_worker_s(
    factored: Factored,
    model: ModelSpec,
    work_s: list[Factors],
    head_work_s: Factors,
    *,
    chunked: bool,
    each_chunked: bool,
) -> PerRow:
    """Upstream once, m times the last worker's own work; the least over the numbers of chunks a pipeline may have, or
    with the fewest layers of each kind over all of them in either place."""
    grid = factored.grid
    layout = ModelLayout.of(model, factored.workload.seq_len)
    bound = np.zeros(grid.rows)
    for pp in np.flatnonzero(np.bincount(grid.pp)).tolist():
        if pp == 1:
            continue
        before, own = [], []
        for chunks in range(1, model.most_stages // pp + 1 if chunked else 2):
            ranges = np.array(layout.ranges(pp, chunks))
            before.append(layout.kinds_before[ranges[-1, 0, 0]])
            own.append(layout.counts(ranges[-1, :, 0], ranges[-1, :, 1] + 1).sum(axis=0))
        here = grid.pp == pp
        # Chunks beyond one need at least as many micro-batches as workers.
        short = here & (grid.m < pp)
        for rows, options in ((np.flatnonzero(short), 1), (np.flatnonzero(here & ~short), len(own))):
            if not len(rows):
                continue
            places = list(zip(before[:options], own[:options], strict=True))
            if not each_chunked:
                places = [(np.min(before[:options], axis=0), np.min(own[:options], axis=0))]
            least = np.full(len(rows), np.inf)
            for once, each in places:
                once_s = factored.per_row(_summed(once.tolist(), work_s), rows)
                each_s = factored.per_row(_summed(each.tolist(), work_s) + head_work_s, rows)
                least = np.minimum(least, once_s + grid.m[rows] * each_s)
            bound[rows] = least
    return bound
