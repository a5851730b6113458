"""Degrees and batches of a space: every (tensor, pipeline, data, interleaving, batch, micro-batch) its rules allow.

    degrees    one (tensor, pipeline, data), with its interleavings
    cells      one micro-batch size and a range of micro-batch counts that need the same memory

Memory depends on the number of micro-batches only through min(micro-batches, pipeline degree), so all counts from
the pipeline degree up are one cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.calculon.axes import EVERY, Axes, Divides, Value, quantity_of
from meshwright.calculon.inputs import Application
from meshwright.search.table import Table, divisors
from meshwright.shapes import Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """One split of the processors."""

    tensor_par: int
    pipeline_par: int
    data_par: int
    interleavings: tuple[int, ...]
    batches: tuple[int, ...] | None
    """Batch sizes, ascending; none for every multiple of the data degree up to the batch."""
    batch: int
    """The given batch."""
    microbatches: tuple[int, ...] | None
    """Micro-batch sizes allowed; none for all."""

    @property
    def above_one(self) -> tuple[bool, bool, bool]:
        """Which degrees are above 1: all that the settings ask of them."""
        return self.tensor_par > 1, self.pipeline_par > 1, self.data_par > 1

    @property
    def layouts(self) -> int:
        """Number of (interleaving, batch, micro-batch)."""
        low, high = self.counts()[1:]
        return len(self.interleavings) * int((high - low + 1).sum())

    def counts(self) -> tuple[Int[np.ndarray, "cells"], Int[np.ndarray, "cells"], Int[np.ndarray, "cells"]]:
        """Micro-batch size, and the lowest and highest micro-batch count, of every cell."""
        if self.batches is None:
            return self._every()
        sizes, numbers = [], []
        for batch in self.batches:
            per_replica = batch // self.data_par
            held = [size for size in divisors(per_replica) if self.microbatches is None or size in self.microbatches]
            sizes += held
            numbers += [per_replica // size for size in held]
        number = np.array(numbers, dtype=np.int64)
        return np.array(sizes, dtype=np.int64), number, number

    def _every(self) -> tuple[Int[np.ndarray, "cells"], Int[np.ndarray, "cells"], Int[np.ndarray, "cells"]]:
        """Cells of every batch: per micro-batch size, counts below the pipeline degree singly, the others together."""
        most = self.batch // self.data_par
        size = np.arange(1, most + 1)
        if self.microbatches is not None:
            size = size[np.isin(size, np.array(self.microbatches))]
        highest = most // size
        cells = np.minimum(highest, self.pipeline_par)
        owner = np.repeat(np.arange(len(size)), cells)
        low = np.arange(len(owner)) - np.repeat(np.cumsum(cells) - cells, cells) + 1
        high = np.where(low == self.pipeline_par, highest[owner], low)
        return size[owner], low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells(Table):
    """Layouts of equal memory, one row per range of micro-batch counts."""

    tensor_par: Int[np.ndarray, "cells"]
    pipeline_par: Int[np.ndarray, "cells"]
    data_par: Int[np.ndarray, "cells"]
    interleaving: Int[np.ndarray, "cells"]
    microbatch: Int[np.ndarray, "cells"]
    low: Int[np.ndarray, "cells"]
    """Least number of micro-batches."""
    high: Int[np.ndarray, "cells"]
    first: Int[np.ndarray, "cells"]
    """Position in the space of the first execution of the first layout."""

    @property
    def layouts(self) -> Int[np.ndarray, "cells"]:
        """Number of layouts in each."""
        return self.high - self.low + 1


def cells_of(degrees: Degrees, first: int, settings: int) -> Cells:
    """All cells of one split.

    Args:
        degrees: the split.
        first: position in the space of its first execution.
        settings: executions of one layout.
    """
    size, low, high = degrees.counts()
    number = high - low + 1
    before = np.cumsum(number) - number
    ways = len(degrees.interleavings)
    per_way = int(number.sum())
    position = (np.arange(ways)[:, None] * per_way + before).reshape(-1)

    def every(value: int) -> Int[np.ndarray, "cells"]:
        return np.full(len(position), value)

    return Cells(
        tensor_par=every(degrees.tensor_par),
        pipeline_par=every(degrees.pipeline_par),
        data_par=every(degrees.data_par),
        interleaving=np.repeat(np.array(degrees.interleavings), len(size)),
        microbatch=np.tile(size, ways),
        low=np.tile(low, ways),
        high=np.tile(high, ways),
        first=first + position * settings,
    )


@dataclass(frozen=True)
class DegreeTable:
    """Every split of the processors that the rules of a space allow."""

    app: Application
    axes: Axes
    num_procs: int
    batch: int

    @cached_property
    def rows(self) -> tuple[Degrees, ...]:
        """The splits, by tensor, then pipeline degree."""
        return tuple(self._rows())

    def _rows(self) -> Iterator[Degrees]:
        for tensor_par in self.tensor_degrees():
            for pipeline_par in self.pipeline_degrees(tensor_par):
                data_par = self.num_procs // tensor_par // pipeline_par
                if not self._held("data_par", data_par):
                    continue
                batches = self.batches(data_par)
                interleavings = self.interleavings(pipeline_par)
                if (batches is not None and not batches) or self.batch < data_par or not interleavings:
                    continue
                microbatches = self.axes.pinned("microbatch_size")
                degrees = Degrees(
                    tensor_par=tensor_par,
                    pipeline_par=pipeline_par,
                    data_par=data_par,
                    interleavings=tuple(interleavings),
                    batches=batches,
                    batch=self.batch,
                    microbatches=whole_degrees(microbatches) if microbatches is not None else None,
                )
                if degrees.layouts:
                    yield degrees

    def tensor_degrees(self) -> list[int]:
        """Tensor degrees."""
        return [degree for degree in divisors(self.num_procs) if self._allowed("tensor_par", degree, {})]

    def pipeline_degrees(self, tensor_par: int) -> list[int]:
        """Pipeline degrees beside a tensor degree."""
        return [d for d in divisors(self.num_procs // tensor_par) if self._allowed("pipeline_par", d, {})]

    def interleavings(self, pipeline_par: int) -> list[int]:
        """Chunks per stage: 1 where there is one stage."""
        blocks = -(-self.app.num_blocks // pipeline_par)
        ways = divisors(blocks) if pipeline_par > 1 else [1]
        return [way for way in ways if self._allowed("pipeline_interleaving", way, {"stage_blocks": blocks})]

    def batches(self, data_par: int) -> tuple[int, ...] | None:
        """Batch sizes of a data degree; none for every multiple up to the batch."""
        pinned = self.axes.pinned("batch_size")
        if pinned is not None:
            if self.axes.batches == EVERY:
                return tuple(sorted(b for b in set(whole_degrees(pinned)) if b % data_par == 0 and 0 < b <= self.batch))
            largest = self.batch // data_par * data_par
            return (largest,) if largest and largest in pinned else ()
        if self.axes.batches == EVERY:
            return None
        largest = self.batch // data_par * data_par
        return (largest,) if largest else ()

    def _allowed(self, key: str, degree: int, quantities: dict[str, int]) -> bool:
        """Whether the rules and pins allow a degree."""
        known = {"num_procs": self.num_procs, **quantities}
        for rule in self.axes.degrees:
            if rule.key != key:
                continue
            quantity = known[rule.quantity] if rule.quantity in known else quantity_of(self.app, rule.quantity)
            broken = quantity % degree if isinstance(rule, Divides) else degree > quantity
            if broken:
                return False
        return self._held(key, degree)

    def _held(self, key: str, degree: int) -> bool:
        pinned = self.axes.pinned(key)
        return pinned is None or degree in pinned

    def what_empties(self) -> tuple[str, str]:
        """The key and the constraint that leave no split, for a table without rows."""
        tensor = self.tensor_degrees()
        if not tensor:
            return "tensor_par", self._binding("tensor_par")
        pipelines = [(t, p) for t in tensor for p in self.pipeline_degrees(t)]
        if not pipelines:
            return "pipeline_par", self._binding("pipeline_par")
        splits = [(p, self.num_procs // t // p) for t, p in pipelines]
        splits = [(p, d) for p, d in splits if self._held("data_par", d)]
        if not splits:
            return "data_par", self._binding("data_par")
        splits = [(p, d) for p, d in splits if self.interleavings(p)]
        if not splits:
            return "pipeline_interleaving", self._binding("pipeline_interleaving")
        fewest = min(d for _, d in splits)
        if fewest > self.batch:
            return "batch_size", f"a batch of {self.batch} is less than the data degree, which is at least {fewest}"
        if all(self.batches(d) == () for _, d in splits):
            return "batch_size", self._binding("batch_size")
        return "microbatch_size", self._binding("microbatch_size")

    def _binding(self, key: str) -> str:
        rules = [rule.text() for rule in self.axes.degrees if rule.key == key]
        pinned = self.axes.pinned(key)
        held = [f"{key} is {' or '.join(map(str, pinned))}"] if pinned is not None else []
        product = ["tensor_par * pipeline_par * data_par = num_procs"] if key in ("data_par", "pipeline_par") else []
        return " and ".join((*product, *rules, *held))


def whole_degrees(values: tuple[Value, ...]) -> tuple[int, ...]:
    """Values of a degree as whole numbers."""
    return tuple(int(value) for value in values)
