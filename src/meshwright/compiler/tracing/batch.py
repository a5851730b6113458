"""The samples of a step: which arguments hold them, and whether they split into micro-batches and their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshwright.compiler.tracing.unplaced import NotSplit, NotStaged
from meshwright.errors import InputError, Problem


def batch_places(arguments: Sequence[Any], batch_argnums: Sequence[int]) -> tuple[int, ...]:
    """Leaves of the arguments that are split.

    Args:
        arguments: the arguments of a step.
        batch_argnums: those that hold samples.

    Raises:
        InputError: there are no such arguments, no arrays in them, or no samples in any of these.
    """
    if not batch_argnums:
        return ()
    absent = [place for place in batch_argnums if not -len(arguments) <= place < len(arguments)]
    if absent or not jax.tree.leaves([arguments[place] for place in batch_argnums]):
        raise InputError(
            what=f"no samples in arguments {tuple(batch_argnums)} of {len(arguments)}",
            why="the arrays of batch arguments are split into micro-batches and over devices",
            fix="pass the batch as the second argument, or name the batch arguments (batch_argnums)",
            field="batch_argnums",
        )
    sizes = [jax.tree.structure(argument).num_leaves for argument in arguments]
    ends = np.cumsum(sizes)
    leaves = jax.tree.leaves(tuple(arguments))
    places = [leaf for place in batch_argnums for leaf in range(ends[place] - sizes[place], ends[place])]
    axes = [np.shape(leaves[place])[0] for place in places if np.shape(leaves[place])]
    if axes and not any(axes):
        raise InputError(
            what="a batch of 0 samples",
            why="a mean over no samples is no number, and no device would have one",
            fix="leave this call out where the loader has nothing left",
            field="batch_argnums",
        )
    return tuple(place for place in places if not _of_all_samples(leaves[place], axes))


def _of_all_samples(leaf: Any, axes: Sequence[int]) -> bool:
    """Whether a leaf of a batch argument belongs to all samples at once.

    It does if it is a number, a key of random numbers or an array of no rows, or if its first axis is no multiple of
    the most frequent one: nodes beside edges, times that all samples share.

    Args:
        leaf: the leaf of a batch argument.
        axes: first axes of all leaves.
    """
    shape, dtype = np.shape(leaf), jax.dtypes.result_type(leaf)
    if not shape or not shape[0] or (shape == (2,) and dtype == np.uint32 and len(set(axes)) > 1):
        return True
    least, most = max(min(axes), 1), max(set(axes), key=lambda size: (axes.count(size), size))
    return any(size % least for size in axes) and bool(shape[0] % most)


def check_parts(arguments: Sequence[Any], batch_argnums: Sequence[int], micro_batches: int, parts: int) -> None:
    """Whether the samples of each micro-batch can be shared out evenly once more.

    Args:
        arguments: the arguments of a step.
        batch_argnums: those that hold samples.
        micro_batches: the number of micro-batches into which a batch is split.
        parts: the number of parts of each micro-batch.

    Raises:
        InputError: they cannot.
    """
    leaves = jax.tree.leaves(tuple(arguments))
    for samples in sorted({np.shape(leaves[place])[0] for place in batch_places(arguments, batch_argnums)}):
        if samples % (micro_batches * parts):
            fits = [n for n in range(1, samples // parts + 1) if not samples % (n * parts)]
            near = f"num_micro_batches={min(fits, key=lambda n: abs(n - micro_batches))}, or " if fits else ""
            raise InputError(
                Problem(
                    what=f"a batch of {samples} in {micro_batches} micro-batches of {parts} parts each",
                    why="parts of a micro-batch are samples, as many in each",
                    field="num_micro_batches",
                    fix=f"{near}a batch of {-(-samples // (micro_batches * parts)) * micro_batches * parts}",
                )
            )


def check_shared_out(shapes: Sequence[jax.ShapeDtypeStruct], micro_batches: int) -> None:
    """Whether samples can be shared out evenly.

    Args:
        shapes: the shapes of what holds samples.
        micro_batches: parts.

    Raises:
        NotSplit: they cannot.
    """
    problems = []
    for shape in shapes:
        if shape.shape[0] % micro_batches:
            nearest = [n for n in range(1, shape.shape[0] + 1) if shape.shape[0] % n == 0]
            best = min(nearest, key=lambda n: abs(n - micro_batches))
            more = -(-shape.shape[0] // micro_batches) * micro_batches
            problems.append(
                Problem(
                    what=f"a batch of {shape.shape[0]} does not split into {micro_batches} micro-batches",
                    why=f"all micro-batches have one size, and the first axis of {shape.shape} counts samples",
                    fix=f"num_micro_batches={best}, a batch of {more} (drop or pad the last one), or samples put first",
                    field="num_micro_batches",
                )
            )
    if not shapes and micro_batches > 1:
        raise NotStaged(
            Problem(
                what=f"no samples to split into {micro_batches} micro-batches",
                why="the arrays of batch arguments hold one sample per entry of their first axis",
                fix="name the batch arguments (batch_argnums)",
                field="batch_argnums",
            )
        )
    if problems:
        raise NotSplit(problems[:1] if len({p.what for p in problems}) == 1 else problems)


def batch_part(shape: jax.ShapeDtypeStruct, parts: int) -> jax.ShapeDtypeStruct:
    """Shape of one of equal parts of some samples.

    Args:
        shape: the shape of all.
        parts: how many.
    """
    return jax.ShapeDtypeStruct((shape.shape[0] // parts, *shape.shape[1:]), shape.dtype, weak_type=shape.weak_type)
