"""Executions as pairs of a layout and a setting, so that what reads few keys is found once per combination of them.

    layout     the counts of an execution: degrees, interleaving, batch, micro-batch
    setting    its choices, flags and networks

A space has far fewer of either than executions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.calculon.executions import KEYS, ExecutionColumns
from meshwright.search.distinct import distinct
from meshwright.search.parts import in_parts
from meshwright.shapes import Int

LAYOUT_KEYS = (
    "num_procs", "tensor_par", "pipeline_par", "data_par", "batch_size", "microbatch_size", "pipeline_interleaving",
)  # fmt: skip
SETTING_KEYS = tuple(key for key in KEYS if key not in LAYOUT_KEYS)

SHARED = 8
"""Executions per layout and per setting from which on looking at each of them once is worth it."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Combinations of some keys."""

    columns: ExecutionColumns
    """An execution of each; of keys that were not asked for it has any value."""
    start: Int[np.ndarray, "layouts"]
    turn: Int[np.ndarray, "settings"]
    number: Int[np.ndarray, "possible"] | None
    """Where only combinations that occur are kept: the number of each."""

    def of(self, rows: FactoredRows) -> Int[np.ndarray, "rows"]:
        """Which one each row has."""
        code = self.start[rows.layout] + self.turn[rows.setting]
        return code if self.number is None else self.number[code]


@dataclass(frozen=True)
class FactoredRows:
    """Executions by layout and setting."""

    layouts: ExecutionColumns
    """One row per layout; only LAYOUT_KEYS are read."""
    settings: ExecutionColumns
    """One row per setting; only SETTING_KEYS are read."""
    layout: Int[np.ndarray, "rows"]
    setting: Int[np.ndarray, "rows"]

    @classmethod
    def of(cls, columns: ExecutionColumns) -> FactoredRows | None:
        """The layouts and settings of executions; none where few executions share one."""
        most = columns.rows // SHARED
        if not most:
            return None
        layout = distinct([getattr(columns, key) for key in LAYOUT_KEYS])
        setting = distinct([getattr(columns, key) for key in SETTING_KEYS])
        if max(len(layout.example), len(setting.example)) > most:
            return None
        return cls(columns.take(layout.example), columns.take(setting.example), layout.index, setting.index)

    @property
    def rows(self) -> int:
        """Number of executions."""
        return len(self.layout)

    @cached_property
    def own(self) -> Int[np.ndarray, "layouts"]:
        """A key that tells layouts apart."""
        return np.arange(self.layouts.rows)

    def take(self, index: Int[np.ndarray, "chosen"] | slice) -> FactoredRows:
        """The executions of an index or a slice."""
        return FactoredRows(self.layouts, self.settings, self.layout[index], self.setting[index])

    def column(self, key: str) -> np.ndarray:
        """One of the executions' columns."""
        if key in LAYOUT_KEYS:
            return getattr(self.layouts, key).take(self.layout)
        return getattr(self.settings, key).take(self.setting)

    def pairs(self, layout: Int[np.ndarray, "pairs"], setting: Int[np.ndarray, "pairs"]) -> ExecutionColumns:
        """Executions of these layouts and settings."""
        of_layouts = {key: getattr(self.layouts, key)[layout] for key in LAYOUT_KEYS}
        of_settings = {key: getattr(self.settings, key)[setting] for key in SETTING_KEYS}
        return ExecutionColumns(**of_layouts, **of_settings)

    def combine(self, of_layouts: Sequence[np.ndarray], of_settings: Sequence[np.ndarray]) -> Combined:
        """Combinations of keys: those among the executions, or all where there are few.

        Args:
            of_layouts: columns of `layouts`, or made of them.
            of_settings: columns of `settings`, or made of them.
        """
        outer, inner = distinct(of_layouts), distinct(of_settings)
        ways = len(inner.example)
        start, possible = outer.index * ways, len(outer.example) * ways
        number = None
        used = np.arange(possible)
        if possible > self.rows // 2:
            occurs = np.zeros(possible, dtype=np.bool_)

            def look(part: slice) -> None:
                occurs[start[self.layout[part]] + inner.index[self.setting[part]]] = True

            in_parts(self.rows, look)
            number, used = np.cumsum(occurs) - 1, np.flatnonzero(occurs)
        first, second = np.divmod(used, ways)
        return Combined(self.pairs(outer.example[first], inner.example[second]), start, inner.index, number)
