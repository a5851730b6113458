"""Executions in columns: one array per key of Calculon's execution file, one row per execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshwright.calculon.inputs import CHOICES, Execution
from meshwright.search.table import Table
from meshwright.shapes import Bool, Int

COUNTS = (
    "num_procs", "tensor_par", "pipeline_par", "data_par", "tensor_par_net", "pipeline_par_net", "data_par_net",
    "batch_size", "microbatch_size", "pipeline_interleaving",
)  # fmt: skip
"""Keys whose values are whole numbers."""

FLAGS = (
    "fused_activation", "optimizer_sharding", "seq_par_ag_redo", "data_par_overlap", "weight_offload",
    "activations_offload", "optimizer_offload", "training",
)  # fmt: skip
"""Keys whose values are true or false."""

UNKNOWN = -1
"""Code of a choice that nobody knows; the row is rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionColumns(Table):
    """Many executions, one array per key.

    Counts are int64. Choices are int8 codes: positions in `CHOICES[key]`, -1 for a value that is not there.
    """

    num_procs: Int[np.ndarray, "rows"]
    tensor_par: Int[np.ndarray, "rows"]
    pipeline_par: Int[np.ndarray, "rows"]
    data_par: Int[np.ndarray, "rows"]
    tensor_par_net: Int[np.ndarray, "rows"]
    pipeline_par_net: Int[np.ndarray, "rows"]
    data_par_net: Int[np.ndarray, "rows"]
    batch_size: Int[np.ndarray, "rows"]
    microbatch_size: Int[np.ndarray, "rows"]
    datatype: Int[np.ndarray, "rows"]
    fused_activation: Bool[np.ndarray, "rows"]
    attention_type: Int[np.ndarray, "rows"]
    activation_recompute: Int[np.ndarray, "rows"]
    pipeline_interleaving: Int[np.ndarray, "rows"]
    optimizer_sharding: Bool[np.ndarray, "rows"]
    tensor_par_comm_type: Int[np.ndarray, "rows"]
    tensor_par_overlap: Int[np.ndarray, "rows"]
    seq_par_ag_redo: Bool[np.ndarray, "rows"]
    data_par_overlap: Bool[np.ndarray, "rows"]
    weight_offload: Bool[np.ndarray, "rows"]
    activations_offload: Bool[np.ndarray, "rows"]
    optimizer_offload: Bool[np.ndarray, "rows"]
    training: Bool[np.ndarray, "rows"]

    @classmethod
    def from_executions(cls, executions: Iterable[Execution]) -> ExecutionColumns:
        """One row per execution, in order."""
        rows = list(executions)
        return cls.of({name: [getattr(row, name) for row in rows] for name in KEYS})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ExecutionColumns:
        """Executions from one value or one sequence per key, broadcast against each other.

        Args:
            values: all 23 keys; choices as names or as codes.
        """
        columns = [_column(name, values[name]) for name in KEYS]
        return cls(**dict(zip(KEYS, np.broadcast_arrays(*columns), strict=True)))

    def row(self, index: int) -> Execution:
        """One row as an execution."""
        values: dict[str, Any] = {}
        for name in KEYS:
            value = getattr(self, name)[index]
            if name in CHOICES:
                values[name] = CHOICES[name][int(value)] if value >= 0 else ""
            else:
                values[name] = bool(value) if name in FLAGS else int(value)
        return Execution(**values)


KEYS = tuple(field.name for field in fields(ExecutionColumns))
"""The 23 keys of an execution, in the order of Calculon's files."""


def _column(name: str, value: Any) -> np.ndarray:
    if name in FLAGS:
        return np.atleast_1d(np.asarray(value, dtype=np.bool_))
    if name in COUNTS:
        return np.atleast_1d(np.asarray(value, dtype=np.int64))
    codes = {choice: code for code, choice in enumerate(CHOICES[name])}
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return np.atleast_1d(value.astype(np.int8))
    given = [value] if isinstance(value, str | int) else list(value)
    return np.asarray([codes.get(one, UNKNOWN) if isinstance(one, str) else one for one in given], dtype=np.int8)
