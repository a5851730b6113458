"""A `shard_map` over the data ranks of a stage: what each of them runs stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement
from meshwright.compiler.samples.values import RankValue, Reader

MAP = "shard_map"


def of_one_rank(
    reader: Reader, axes: tuple[str, ...], eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue]:
    """Results of what a `shard_map` over the data ranks says of one of them.

    Args:
        reader: the reader of the program in which it stands.
        axes: the axes of the mesh of the data ranks.
        eqn: the `shard_map`.
        given: its operands; none is a sum.

    Raises:
        NotShared: it is written for other ranks, or makes something of all samples.
    """
    if eqn.params["newly_manual_axes"] != frozenset(axes):
        raise NotShared(f"{MAP} is written for other ranks")
    wanted = [_placement(spec, axes) for spec in eqn.params["in_specs"]]
    made = [_placement(spec, axes) for spec in eqn.params["out_specs"]]
    if WHOLE in made:
        raise NotShared(f"{MAP} makes something of all samples")
    own = [reader.own(value, want).value for value, want in zip(given, wanted, strict=True)]
    results = core.jaxpr_as_fun(core.ClosedJaxpr(eqn.params["jaxpr"], ()))(*own)
    return [RankValue(value, placement) for value, placement in zip(results, made, strict=True)]


def _placement(spec: Any, axes: tuple[str, ...]) -> Placement:
    """The dimension that data ranks split."""
    split = [at for at, entry in enumerate(spec) if entry]
    if len(split) > 1 or any(spec[at] not in (axes, *axes[: len(axes) == 1]) for at in split):
        raise NotShared(f"{MAP} splits samples another way")
    return split[0] if split else WHOLE
