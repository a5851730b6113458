"""The axes that a pin can hold a slice's strategies to, read from a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.specs.shardings import sharding_of
from meshwright.specs.strategy import LayerStrategy

Reader = Callable[[LayerStrategy, int], tuple[object, ...]]
"""Values of an axis, from a strategy and the sequences of a micro-batch over all data ranks; none where it has none."""

RECOMPUTE = {"none": ("none",), "selective": ("sel",), "full": ("full",)}
BLOCK = ("none", "full")
"""Recompute of the layers of a slice of which some are recomputed: `block`."""


def _sharding(strategy: LayerStrategy, _: int) -> tuple[object, ...]:
    return (sharding_of(strategy.data).name,)


AXES: Mapping[str, Reader] = {
    "tp": lambda strategy, _: (strategy.tp,),
    "cp": lambda strategy, _: (strategy.cp,),
    "cp_kind": lambda strategy, _: tuple(level.name for level in strategy.context if level.degree > 1) or ("none",),
    "ep": lambda strategy, _: (strategy.expert.ep,),
    "etp": lambda strategy, _: (strategy.expert.etp,),
    "dp": lambda strategy, _: (strategy.dp,),
    "mbs": lambda strategy, global_micro_batch: (global_micro_batch // strategy.dp,),
    "sharding": _sharding,
    "recompute": lambda strategy, _: RECOMPUTE.get(strategy.recompute.kind, (strategy.recompute.kind,)),
}
"""Readers of the axes by name; the number of stages and the schedule are of whole pipelines."""
