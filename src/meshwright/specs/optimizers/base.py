"""What an optimizer keeps of each parameter, and what an update computes: the record that every optimizer fills in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.shapes import Float, Int

Column = float | int | Float[np.ndarray, "..."] | Int[np.ndarray, "..."]
"""One number, or one per row."""

FP32_BYTES = 4.0
LAYERWISE = "layerwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix, as one rank has it and whole."""

    rows: Column
    columns: Column
    whole_rows: Column
    whole_columns: Column

    @property
    def elements(self) -> Column:
        """Elements of the matrix on the rank."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """Matrix products of an update, [m, k] by [k, n]."""

    m: Column
    n: Column
    k: Column
    times: float = 1.0
    """Executions per step; below 1 where it is not done every step."""
    fp32: bool = False
    """Whether it runs in fp32 outside of the tensor cores; else in the format of activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer; its fields are its settings."""

    layerwise: int = 0
    """1 where a layer is updated as soon as backward has its gradient, which is freed then."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    own_formats: ClassVar[bool] = False
    """Whether it says itself in which format states are kept."""
    paged: ClassVar[bool] = False
    """Whether states live in host memory and come to the device for the update."""
    on_host: ClassVar[bool] = True
    """Whether its update may run on the host."""
    matrices: ClassVar[bool] = False
    """Whether matrices of layers have other states than `each_bytes` says, or products in their update."""
    edges: ClassVar[bool] = False
    """Whether it treats embedding and head as such matrices, too."""
    early: ClassVar[bool] = True
    """Whether a layer may be updated before backward has ended."""
    fills: ClassVar[bool] = False
    """Whether `statistics` and `refresh` run where the workers of a pipeline wait."""
    whole: ClassVar[bool] = False
    """Whether the update of a matrix needs all of it, so that tensor ranks and shards of it exchange theirs."""

    def each_bytes(self, moment_bytes: float) -> float:
        """Bytes of states per parameter.

        Args:
            moment_bytes: the moment bytes of one number, in the format stated for moments.
        """
        raise NotImplementedError

    def table_bytes(self, moment_bytes: float) -> float:
        """The same of lookup tables."""
        return self.each_bytes(moment_bytes)

    def least_bytes(self, moment_bytes: float) -> float:
        """Lower bound of the moment bytes of any parameter."""
        return self.each_bytes(moment_bytes)

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """Bytes of all states of one matrix on a rank."""
        return self.each_bytes(moment_bytes) * matrix.elements

    def moved_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """Bytes that element-wise passes over one matrix's states move, products apart: each read and written."""
        return 2 * self.matrix_bytes(matrix, moment_bytes)

    def products(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Matrix products of one update of one matrix."""
        return ()

    def statistics(self, matrix: Matrix, tokens: Column) -> tuple[MatrixProduct, ...]:
        """Matrix products of one micro-batch, beside its forward and backward.

        Args:
            matrix: the matrix that takes part in them.
            tokens: the tokens of the micro-batch that it has on the rank.
        """
        return ()

    def statistics_bytes(self, matrix: Matrix) -> Column:
        """Bytes of statistics of one matrix that data ranks sum in a step, as each takes those of its own tokens."""
        return 0.0

    def refresh(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Work of a step of which no update waits for the result, as matrix products of as many FLOP."""
        return ()

    def decomposition_flop(self, matrix: Matrix) -> Column:
        """FLOP of eigenvalue and singular-value decompositions per step, those done rarely spread over their period."""
        return 0.0

    def describe(self) -> str:
        """Name of the optimizer with its settings."""
        own = [one.name for one in fields(self) if one.name != LAYERWISE]
        held = [f"{name.replace('_', ' ')} {getattr(self, name)}" for name in own]
        held += ["layer by layer"] if self.layerwise else []
        return f"{self.name} ({', '.join(held)})" if held else self.name

    @classmethod
    def read(cls, text: str, given: Mapping[str, str]) -> Optimizer:
        """The optimizer with settings as text.

        Args:
            text: the text as the user wrote it all.
            given: text by name of a setting.

        Raises:
            InputError: unknown settings, or values that are no whole number above 0.
        """
        known = [*(one.name for one in fields(cls) if one.name != LAYERWISE), *([LAYERWISE] if cls.early else [])]
        usual = {LAYERWISE: "1"}
        why = (
            f"settings of {cls.name} are whole numbers from 1 on: {', '.join(known)}"
            if known
            else f"{cls.name} has none"
        )
        fix = f"for example {cls.name}:{known[0]}={usual.get(known[0], '128')}" if known else f"use {cls.name}"
        problems = [
            Problem(what=f"optimizer {text[:60]!r}: {name}={value}", why=why, fix=fix, field="optimizer")
            for name, value in given.items()
            if name not in known or not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) < 10**8
        ]
        if not problems and int(given.get(LAYERWISE, "1")) != 1:
            why = "each layer is updated as its gradient comes (1), or all at the end of the step"
            what, fix = (
                f"optimizer {text[:60]!r}: {LAYERWISE}={given[LAYERWISE]}",
                f"say {LAYERWISE}=1, or leave it out",
            )
            problems.append(Problem(what=what, why=why, fix=fix, field="optimizer"))
        if problems:
            raise InputError(problems, code="MW404")
        return cls(**{name: int(value) for name, value in given.items()})
