"""Pallas kernels whose grid walks along the samples, written for a part of them: as many rounds less along that axis.

A kernel is a program of its own on blocks, so it has to be seen that no block of one sample depends on another: every
operand and result has blocks of one sample, at the place of the grid, and the kernel does not ask for its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core

from meshwright.compiler.inline import programs_of
from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement

KERNEL = "pallas_call"
NUMBERS = ("program_id", "num_programs")
"""Equations inside a kernel that read where in the grid it is."""


def kernel_placements(
    eqn: core.JaxprEqn, placements: Sequence[Placement], ranks: int
) -> tuple[list[Placement], list[Placement], core.JaxprEqn]:
    """What a kernel needs of each operand and what it makes, and the kernel for one part of the samples.

    Args:
        eqn: a `pallas_call` for all samples.
        placements: the placements of its operands; none is a sum.
        ranks: the number of ranks that share the samples.

    Raises:
        NotShared: blocks of it mix samples, or may do so.
    """
    grid = eqn.params["grid_mapping"]
    axis = _axis_of_samples(grid, placements)
    if grid.grid[axis] % ranks or not _apart(eqn, axis):
        raise NotShared(f"{KERNEL} mixes samples")
    along = [_along(block, axis) for block in grid.block_mappings]
    wanted, made = along[: grid.num_inputs], along[grid.num_inputs :]
    met = any(placement >= 0 and placement != want for placement, want in zip(placements, wanted, strict=True))
    if met or WHOLE in made:
        raise NotShared(f"{KERNEL} mixes samples")
    blocks = tuple(
        block if at == WHOLE else block.replace(array_aval=_part(block.array_aval, at, ranks))
        for block, at in zip(grid.block_mappings, along, strict=True)
    )
    rounds = tuple(size // ranks if place == axis else size for place, size in enumerate(grid.grid))
    results = tuple(_part(aval, at, ranks) for aval, at in zip(eqn.params["out_avals"], made, strict=True))
    part = {"grid_mapping": grid.replace(grid=rounds, block_mappings=blocks), "out_avals": results}
    return wanted, made, eqn.replace(params={**eqn.params, **part})


def _axis_of_samples(grid: Any, placements: Sequence[Placement]) -> int:
    """The axis of the grid that walks along the samples of every operand that has some."""
    axes = set()
    # Sizes and places that are computed come first among the operands, and places of blocks depend on them.
    if grid.num_dynamic_grid_bounds or grid.num_index_operands or len(placements) != grid.num_inputs:
        raise NotShared(f"{KERNEL} mixes samples")
    for block, placement in zip(grid.block_mappings, placements, strict=False):
        if placement >= 0:
            axes |= {axis for axis in range(len(grid.grid)) if _along(block, axis) == placement} or {-1}
    if len(axes) != 1 or -1 in axes:
        raise NotShared(f"{KERNEL} mixes samples")
    return axes.pop()


def _along(block: Any, axis: int) -> Placement:
    """The dimension of an operand along which its blocks, of one entry, follow an axis of the grid."""
    places = block.index_map_jaxpr.jaxpr
    number = places.invars[axis]
    if any(number is atom for eqn in places.eqns for atom in eqn.invars):
        raise NotShared(f"{KERNEL} mixes samples")
    found = [place for place, atom in enumerate(places.outvars) if atom is number]
    if not found:
        return WHOLE
    if len(found) > 1 or not _is_one(block.block_shape[found[0]]):
        raise NotShared(f"{KERNEL} mixes samples")
    return found[0]


def _is_one(size: Any) -> bool:
    """Whether a block has one entry along a dimension, with or without that dimension."""
    return type(size).__name__ == "Squeezed" or (type(size).__name__ == "Blocked" and size.block_size == 1)


def _apart(eqn: core.JaxprEqn, axis: int) -> bool:
    """Whether rounds along an axis of the grid neither know their number nor hand anything on."""
    grid = eqn.params["grid_mapping"]
    seen = [place for place in range(len(grid.grid)) if place not in grid.vmapped_dims]
    if any(seen[asked] == axis for asked in _numbers_asked(eqn.params["jaxpr"])):
        return False
    if eqn.params["input_output_aliases"] or eqn.params.get("mesh") is not None:
        return False
    # Memory of a core stays from round to round, unless the user says that rounds may run beside each other.
    semantics = getattr(eqn.params["compiler_params"], "dimension_semantics", None) or ()
    beside = len(semantics) == len(grid.grid) and str(getattr(semantics[axis], "value", semantics[axis])) == "parallel"
    return beside or not grid.num_scratch_operands


def _numbers_asked(kernel: core.Jaxpr) -> Iterator[int]:
    for eqn in kernel.eqns:
        if eqn.primitive.name in NUMBERS:
            yield eqn.params["axis"]
        for inner in programs_of(eqn):
            yield from _numbers_asked(inner)


def _part(aval: Any, at: int, ranks: int) -> Any:
    return aval.update(shape=tuple(size // ranks if place == at else size for place, size in enumerate(aval.shape)))
