"""What whole numbers of a program are functions of: places of rows that a sort returns, and choices of every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.pointwise import POINTWISE
from meshwright.compiler.samples.values import RankValue

CONSTANT = ("iota", "broadcast_in_dim", "reshape", "slice", *POINTWISE)
"""Equations whose results are evaluated where all that they read is known."""
MOST = 1 << 22
"""Entries of a constant that is evaluated."""


@dataclass(frozen=True, eq=False, slots=True)
class Choices:
    """Whole numbers below a bound, one or more of each row."""

    bound: int


@dataclass(frozen=True, eq=False, slots=True)
class SortedRows:
    """Rows as a sort has left them."""

    rows: int
    choices: Choices | None
    """Choices by which the rows are sorted; None where they are sorted by something else."""
    samples: int = 1
    """Samples that stand beside one another in them, each with rows of every part; 1 where parts have whole samples."""


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Places of rows, counted in the part of this rank: good for pointing at rows and for nothing else."""

    into: SortedRows | None
    """Order of the rows that the places point at; None as in the batch."""


@dataclass(frozen=True, eq=False)
class Known:
    """Entries that are a function of something else."""

    source: Choices | Places | None
    """What the entries are a function of; None for constants."""
    lead: tuple[int, ...]
    """First dimensions, along which entries of the source are counted; the others are those of the function."""
    make: Callable[[], np.ndarray]

    @cached_property
    def table(self) -> np.ndarray:
        """Values of a function for all entries of its source, the first dimension; the entries of a constant."""
        return self.make()


@dataclass(frozen=True, eq=False, slots=True)
class Counts:
    """How many of the choices are 0, 1, 2 and so on."""

    choices: Choices


def facts_of(eqn: core.JaxprEqn, given: Sequence[RankValue], known: Any) -> list[Any]:
    """What is known of the results of an equation whose operands are in the order of the batch.

    Args:
        eqn: any.
        given: its operands.
        known: what its only result is a function of, where it is.
    """
    name = eqn.primitive.name
    if name == "top_k":
        return [None, _choices(eqn.outvars[1].aval.shape, eqn.invars[0].aval.shape[eqn.params["axis"]])]
    if name in ("argmax", "argmin") and len(eqn.params["axes"]) == 1:
        return [_choices(eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape[eqn.params["axes"][0]])]
    if name == "select_n" and known is None and (bound := _bound_of_cases(eqn, given)):
        return [_choices(eqn.outvars[0].aval.shape, bound)]
    first = given[0].known if given else None
    if name == "reduce_sum" and isinstance(first, Known) and isinstance(first.source, Choices):
        over = tuple(sorted(eqn.params["axes"])) == tuple(range(len(first.lead)))
        if over and np.array_equal(first.table, np.eye(*first.table.shape[:2]) if first.table.ndim == 2 else ()):
            return [Counts(first.source) if first.table.shape[0] <= first.table.shape[1] else None]
    return [known] if len(eqn.outvars) == 1 else [None] * len(eqn.outvars)


def _bound_of_cases(eqn: core.JaxprEqn, given: Sequence[RankValue]) -> int | None:
    """Below which the choices are that something else chooses between; None where one of them is unknown."""
    cases = [_known_operand(atom, value) for atom, value in zip(eqn.invars[1:], given[1:], strict=True)]
    if not np.issubdtype(eqn.outvars[0].aval.dtype, np.integer) or all(
        one is None or one.source is None for one in cases
    ):
        return None
    if any(one is None or isinstance(one.source, Places) or one.table.min() < 0 for one in cases):
        return None
    return 1 + max(int(one.table.max()) for one in cases if one is not None)


def _choices(shape: Sequence[int], bound: int) -> Known:
    return Known(Choices(bound), tuple(shape), lambda: np.arange(bound))


def known_of(eqn: core.JaxprEqn, given: Sequence[RankValue]) -> Known | None:
    """What the result of an equation is a function of, where it is known.

    Args:
        eqn: any.
        given: its operands.
    """
    name = eqn.primitive.name
    if name not in CONSTANT or len(eqn.outvars) != 1:
        return None
    shape = eqn.outvars[0].aval.shape
    found = [_known_operand(atom, value) for atom, value in zip(eqn.invars, given, strict=True)]
    if any(one is None for one in found):
        return None
    operands = [one for one in found if one is not None]
    sources = {one.source for one in operands} - {None}
    if not sources:
        return Known(None, (), lambda: _bound(eqn, [one.table for one in operands])) if np.prod(shape) <= MOST else None
    if len(sources) > 1:
        return None
    if name == "reshape":
        return _reshaped(operands[0], shape)
    if name == "broadcast_in_dim":
        return _broadcast(eqn, operands[0])
    return _pointwise(eqn, operands) if name in POINTWISE else None


def _pointwise(eqn: core.JaxprEqn, operands: Sequence[Known]) -> Known | None:
    """A function of each entry alone, of operands that are functions of one source or constants."""
    shape = eqn.outvars[0].aval.shape
    source, lead = next((one.source, one.lead) for one in operands if one.source is not None)
    rest = shape[len(lead) :]
    if shape[: len(lead)] != lead:
        return None
    if any(one.source is not None and one.lead != lead for one in operands):
        return None
    if not all(one.source is not None or _same_for_all(one.table, len(lead), len(shape)) for one in operands):
        return None

    def evaluated() -> np.ndarray:
        count = len(next(one.table for one in operands if one.source is not None))
        tables = [
            one.table if one.source is not None else one.table[(0,) * len(lead)] if one.table.ndim else one.table
            for one in operands
        ]
        return _bound(eqn, [np.broadcast_to(table, (count, *rest)) for table in tables])

    return Known(source, lead, evaluated)


def _known_operand(atom: Any, value: RankValue) -> Known | None:
    if isinstance(value.known, Known):
        return value.known
    if isinstance(atom, core.Literal) or (isinstance(value.value, (int, float, bool, np.generic, np.ndarray))):
        constant = np.asarray(value.value)
        return Known(None, (), lambda: constant)
    return None


def _broadcast(eqn: core.JaxprEqn, known: Known) -> Known | None:
    """The dimensions of the source stay the first ones."""
    shape, lead = eqn.outvars[0].aval.shape, known.lead
    ahead = tuple(eqn.params["broadcast_dimensions"])[: len(lead)] == tuple(range(len(lead)))
    if not ahead or shape[: len(lead)] != lead:
        return None
    rest = shape[len(lead) :]
    places = [place - len(lead) for place in eqn.params["broadcast_dimensions"][len(lead) :]]

    def spread() -> np.ndarray:
        table = known.table
        sizes = [1] * len(rest)
        for place, size in zip(places, table.shape[1:], strict=True):
            sizes[place] = size
        return np.broadcast_to(table.reshape(len(table), *sizes), (len(table), *rest))

    return Known(known.source, lead, spread)


def _reshaped(known: Known, shape: Sequence[int]) -> Known | None:
    """Entries of the source stay in their order, and the dimensions of the function are its last ones."""
    count, width = int(np.prod(known.lead)), known.table.shape[1:]
    at = next((at for at in range(1, len(shape) + 1) if np.prod(shape[:at]) == count), None)
    if at is None or (width and tuple(shape[at:]) != width) or np.prod(shape[at:]) != np.prod(width):
        return None
    rest = tuple(shape[at:])
    return Known(known.source, tuple(shape[:at]), lambda: known.table.reshape(len(known.table), *rest))


def _same_for_all(table: np.ndarray, lead: int, dimensions: int) -> bool:
    """Whether a constant has the same entries along the first dimensions."""
    if not table.ndim:
        return True
    return table.ndim == dimensions and bool(np.all(table == table[(slice(0, 1),) * lead]))


def _bound(eqn: core.JaxprEqn, tables: Sequence[np.ndarray]) -> np.ndarray:
    """An equation evaluated for numbers."""
    dtypes = [atom.aval.dtype for atom in eqn.invars]
    with jax.ensure_compile_time_eval():
        made = eqn.primitive.bind(
            *(jax.numpy.asarray(one, dtype) for one, dtype in zip(tables, dtypes, strict=True)), **eqn.params
        )
    return np.asarray(made)


def points(value: RankValue) -> bool:
    """Whether a value counts places of rows.

    Args:
        value: any.
    """
    return isinstance(value.known, Known) and isinstance(value.known.source, Places)


def is_identity(known: Known, rows: int) -> bool:
    """Whether a function of as many entries makes of each what it is.

    Args:
        known: the function.
        rows: entries.
    """
    table = known.table
    return table.size == rows and bool(np.array_equal(table.reshape(-1), np.arange(rows)))


def ascends(key: RankValue) -> bool:
    """Whether rows sorted by a value are sorted by the choices it is made of.

    Args:
        key: the value.
    """
    known = key.known
    if not isinstance(known, Known) or not isinstance(known.source, Choices) or len(known.lead) != 1:
        return False
    return known.table.ndim == 1 and bool(np.all(np.diff(known.table.astype(np.int64)) > 0))


def is_all(value: RankValue, number: int) -> bool:
    """Whether a value is known to be one number everywhere.

    Args:
        value: any.
        number: the number that it may be.
    """
    return isinstance(value.known, Known) and value.known.source is None and bool(np.all(value.known.table == number))
