"""What results of micro-batches become together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import Any

import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import mlir


class How(Enum):
    """Ways to make one value of one per micro-batch."""

    SAME = "same"
    """The value is the same in all micro-batches."""
    JOINED = "joined"
    """Arrays of samples, one behind the other."""
    ADDED = "added"
    AVERAGED = "averaged"
    """What the user has called a mean."""
    LARGEST = "largest"
    SMALLEST = "smallest"
    ALL = "all"
    ANY = "any"
    MULTIPLIED = "multiplied"


_TWO: dict[How, Callable[[Any, Any], Any]] = {
    How.ADDED: jnp.add, How.AVERAGED: jnp.add, How.LARGEST: jnp.maximum, How.SMALLEST: jnp.minimum,
    How.ALL: jnp.bitwise_and, How.ANY: jnp.bitwise_or, How.MULTIPLIED: jnp.multiply,
}  # fmt: skip
COMBINES = {
    "reduce_max": How.LARGEST, "reduce_min": How.SMALLEST, "reduce_and": How.ALL, "reduce_or": How.ANY,
    "reduce_prod": How.MULTIPLIED,
}  # fmt: skip
"""Equations other than sums whose results of parts are combined to that of the whole."""


@dataclass(frozen=True, slots=True)
class Join:
    """How results of micro-batches become one."""

    how: How
    dimension: int = 0
    """Dimension of the joined value that counts samples."""
    updates: int = 1
    """Updates in one call, whose values are averaged."""
    apart: int = 0
    """Updates in one call whose values are kept apart, along a new first axis; 0 makes one value of all."""

    def __call__(self, given: Sequence[Any]) -> Any:
        """The one value.

        Args:
            given: the values of the micro-batches, in order.
        """
        if self.apart:
            one, each = replace(self, apart=0, updates=1), len(given) // self.apart
            return jnp.stack([one(given[first : first + each]) for first in range(0, len(given), each)])
        if self.how is How.SAME:
            return given[0]
        if self.how is How.JOINED:
            return jnp.concatenate(given, axis=self.dimension) if len(given) > 1 else given[0]
        whole = reduce(_TWO[self.how], given)
        count = len(given) if self.how is How.AVERAGED else self.updates
        return whole / count if count > 1 else whole

    def shape(self, aval: Any, count: int) -> tuple[int, ...]:
        """Shape of the one value.

        Args:
            aval: the abstract value of the result of one micro-batch.
            count: micro-batches.
        """
        if self.apart:
            return (self.apart, *replace(self, apart=0).shape(aval, count // self.apart))
        if self.how is not How.JOINED:
            return tuple(aval.shape)
        return tuple(size * count if at == self.dimension else size for at, size in enumerate(aval.shape))


total_p = core.Primitive("batch_total")
"""The value of the whole batch, of what the micro-batches have of it: parameter `how`; of samples that are joined also
`dimension` and `parts`. Stands in programs only until they are cut there."""


def _total_aval(value: Any, *, how: How, dimension: int = 0, parts: int = 1) -> Any:
    return value.update(shape=Join(how, dimension).shape(value, parts))


total_p.def_abstract_eval(_total_aval)

joint_p = core.Primitive("batch_joint")
"""What is made of all samples together: `program` of whole operands; results whose entry in `follows` is the place of
an operand are shared out by samples as it is. Stands before a mark alone, and is run once for all micro-batches; where
`slope` is the place of an operand, the one from which its backward starts, micro-batches go through it in phases."""

phase_p = core.Primitive("batch_phase")
"""What a micro-batch computes by itself between two values of the whole batch: `program`. Its results are kept."""


def _program_run(*given: Any, program: core.ClosedJaxpr, **_: Any) -> list[Any]:
    return core.jaxpr_as_fun(program)(*given)


for _own in (joint_p, phase_p):
    _own.multiple_results = True
    _own.def_abstract_eval(lambda *given, program, **_: program.out_avals)
    _own.def_impl(_program_run)
    mlir.register_lowering(_own, mlir.lower_fun(_program_run, multiple_results=True))
