"""Which dimension of a value counts samples: what an equation makes of values that ranks share out by samples."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.sharding.rules import NO_FACTOR, SplitRule, rule_of

Placement = int
"""The dimension that counts samples, of which each rank holds its own; or one of the following."""
WHOLE = -1
"""Every rank holds all of the value."""
SUM = -2
"""The value is the sum of what the ranks hold."""
OWN = -3
"""Every rank holds something of its own: what it saves for its backward, its number."""

SCATTERS = ("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min", "scatter_min",
            "scatter-max", "scatter_max")  # fmt: skip
ADDING = ("scatter-add", "scatter_add")
"""Equations that add to their first operand, which is a sum where what they add is."""
SUMMING = ("reduce_sum", "dot_general", "conv_general_dilated", *ADDING)
"""Equations that add up what they have no dimension for in their result."""
LINEAR = (
    "neg", "reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "reduce_sum", "copy",
    "copy_p", "real", "imag", "cumsum", "rev", "sharding_constraint", "split", "unstack",
)  # fmt: skip
"""Equations of one operand whose result of a sum is the sum of their results."""
JOINING = ("add", "add_any", "sub", "concatenate", "stack")
"""Operators that join several operands, all of which are sums."""
SIZES = {
    "broadcast_in_dim": ("shape", True), "reshape": ("new_sizes", True), "slice": ("limit_indices", False),
    "dynamic_slice": ("slice_sizes", False), "gather": ("slice_sizes", False),
}  # fmt: skip
"""Equations with sizes among their parameters: which, and whether of the result or of the first operand."""


class NotShared(Exception):
    """Why the work of a loss cannot be shared out by samples."""

    @property
    def placed(self) -> str:
        """The reason, and where it lies as far as that is known."""
        return str(self)


def sample_placements(
    eqn: core.JaxprEqn, placements: Sequence[Placement], ranks: int
) -> tuple[list[Placement], list[Placement]]:
    """What an equation needs of each operand, and what it makes, where some operand is shared out by samples.

    Args:
        eqn: the equation as it reads for all samples.
        placements: the placements of its operands; none is a sum.
        ranks: the number of ranks that share the samples.

    Raises:
        NotShared: it mixes samples other than by adding them up.
    """
    rule = _scattered(eqn) if eqn.primitive.name in SCATTERS else rule_of(eqn)
    factors = {dims[placement] for dims, placement in zip(rule.operands, placements, strict=True) if placement >= 0}
    factor = factors.pop()
    if factors or factor == NO_FACTOR or rule.sizes[factor] % ranks:
        raise NotShared(f"{eqn.primitive.name} mixes samples")
    wanted = [dims.index(factor) if factor in dims else WHOLE for dims in rule.operands]
    if any(placement >= 0 and placement != want for placement, want in zip(placements, wanted, strict=True)):
        raise NotShared(f"{eqn.primitive.name} mixes samples")
    made = [dims.index(factor) if factor in dims else SUM for dims in rule.results]
    if SUM in made and eqn.primitive.name not in SUMMING:
        raise NotShared(f"{eqn.primitive.name} over samples is no sum")
    return wanted, made


def _scattered(eqn: core.JaxprEqn) -> SplitRule:
    """Places side by side, windows that are as wide as what they are put into, and updates that are added up."""
    numbers = eqn.params["dimension_numbers"]
    table, indices, updates = (atom.aval.shape for atom in eqn.invars)
    sizes: list[int] = []

    def new(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1 if size > 1 else NO_FACTOR

    table_dims, index_dims, update_dims = ([NO_FACTOR] * len(shape) for shape in (table, indices, updates))
    inserted = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [place for place in range(len(table)) if place not in inserted]
    for place, own in zip(windows, numbers.update_window_dims, strict=True):
        if table[place] == updates[own] and place not in numbers.scatter_dims_to_operand_dims:
            table_dims[place] = update_dims[own] = new(table[place])
    walked = [place for place in range(len(updates)) if place not in numbers.update_window_dims]
    batching = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    for place, own in enumerate(walked):
        index_dims[place] = update_dims[own] = new(indices[place])
        if place in batching:
            table_dims[batching[place]] = index_dims[place]
    return SplitRule(
        sizes=tuple(sizes),
        operands=(tuple(table_dims), tuple(index_dims), tuple(update_dims)),
        results=(tuple(table_dims),),
    )


def keeps_sums(eqn: core.JaxprEqn, placements: Sequence[Placement]) -> bool:
    """Whether an equation of sums and whole values makes a sum of what it makes of their terms.

    Args:
        eqn: any.
        placements: the placements of its operands; none counts samples, some are sums.
    """
    name = eqn.primitive.name
    if name in LINEAR:
        return placements[0] == SUM
    if name == "convert_element_type":
        old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
        whole = jnp.issubdtype(old, jnp.integer) and jnp.issubdtype(new, jnp.integer)
        return bool(jnp.issubdtype(new, jnp.inexact) or whole)
    if name == "select_n":
        return placements[0] == WHOLE
    if name == "div":
        return list(placements) == [SUM, WHOLE] and bool(jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact))
    if name in ("mul", "dot_general"):
        return list(placements).count(SUM) == 1
    return name in JOINING


def joins_sums(eqn: core.JaxprEqn) -> list[bool]:
    """Which operands of an equation that keeps sums have to be sums if any is.

    Args:
        eqn: any.
    """
    if eqn.primitive.name == "select_n":
        return [False, *(True for _ in eqn.invars[1:])]
    return [eqn.primitive.name in JOINING] * len(eqn.invars)


def for_rank(eqn: core.JaxprEqn, wanted: Sequence[Placement], made: Sequence[Placement], ranks: int) -> core.JaxprEqn:
    """An equation as it reads for the samples of one rank.

    Args:
        eqn: the equation as it reads for all samples.
        wanted: placements of its operands.
        made: placements of its results.
        ranks: the number of ranks that share the samples.
    """
    name = eqn.primitive.name
    if name not in SIZES:
        return eqn
    key, of_result = SIZES[name]
    placement = made[0] if of_result else wanted[0]
    # Of samples that a gather goes through side by side, it takes one at a time.
    sizes = [size // ranks if at == placement and size > 1 else size for at, size in enumerate(eqn.params[key])]
    return eqn.replace(params={**eqn.params, key: tuple(sizes)})
