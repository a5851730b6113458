"""Layers of a loss: the repeated part found by its period, cut where it is narrowest."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend import core

from meshwright.compiler.cost import eqn_flop
from meshwright.compiler.cuts.cut import Body, CutStage, marked_ends
from meshwright.compiler.cuts.layers import crossing_bytes, layer_ends
from meshwright.shapes import Float, Int

MOST_LAYERS = 16
"""Most layers of a loss without repeated layers."""
HEAVY_PER_LAYER = 3
"""Products of matrices in one such layer, about."""
REPEATED_SHARE = 0.5
"""Least share of the work in repeated layers for their period to say where layers end."""


def find_layers(body: Body) -> tuple[int, ...]:
    """Position behind the last spine equation of each layer.

    Where layers end by hand (`layer_boundary`), these are the ends. Else repeated layers are cut once per period, where
    the fewest bytes cross; what stands before and behind them is a layer of its own. A loss without them is cut into
    layers of equal work.

    Args:
        body: the body of a loss.
    """
    by_hand = marked_ends(body)
    if by_hand:
        return by_hand
    flop = np.array([eqn_flop(eqn) for eqn in body.spine])
    period = _period(_labels(body.spine), flop)
    if period is None:
        heavy = int((flop > flop.max(initial=0.0) / 100).sum())
        return layer_ends(body, max(1, min(MOST_LAYERS, heavy // HEAVY_PER_LAYER, len(body.spine))))
    start, length, size = period
    crossing = crossing_bytes(body)
    # The first layer may lack an equation of the others: a cut may stand up to a period before the repeated part.
    narrow = crossing <= crossing[start : start + size].min()
    both = narrow[: len(narrow) - size] & narrow[size:]
    first = max(0, start - size) + int(np.argmax(both[max(0, start - size) : start + size]))
    ends = [end + 1 for end in range(first, start + length, size) if end + 1 < len(body.spine)]
    return (*ends, len(body.spine))


def _labels(spine: Sequence[core.JaxprEqn]) -> Int[np.ndarray, " eqns"]:
    """A number per equation, equal for those that do the same to the same shapes."""
    numbers: dict[Hashable, int] = {}
    keys = [(eqn.primitive.name, *((a.aval.shape, a.aval.dtype) for a in [*eqn.invars, *eqn.outvars])) for eqn in spine]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _period(labels: Int[np.ndarray, " eqns"], flop: Float[np.ndarray, " eqns"]) -> tuple[int, int, int] | None:
    """Start, length and period of the run that repeats itself and holds the most work; the shortest such period."""
    done = np.append(0.0, np.cumsum(flop))
    best: tuple[float, int, int, int] | None = None
    for size in range(1, len(labels) // 2 + 1):
        same = np.flatnonzero(np.diff(np.concatenate([[0], labels[:-size] == labels[size:], [0]])))
        if not len(same):
            continue
        starts, ends = same[::2], same[1::2] + size
        work = np.where(ends - starts >= 2 * size, done[ends] - done[starts], 0.0)
        most = int(np.argmax(work))
        if work[most] > REPEATED_SHARE * done[-1] and (best is None or work[most] > 1.01 * best[0]):
            best = float(work[most]), int(starts[most]), int(ends[most] - starts[most]), size
    return None if best is None else best[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a layer computes, wherever it stands: equal layers are priced once."""

    key: Hashable
    number: int
    """Hash of the key, taken once."""

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.number == other.number and self.key == other.key


def layer_content(stage: CutStage) -> Content:
    """The content of a layer.

    Args:
        stage: a loss cut at its layers gives these.
    """
    counts = len(stage.parameters), len(stage.carried_in), len(stage.others), len(stage.carried_out)
    key = counts, _program_key(stage.program.jaxpr)
    return Content(key, hash(key))


def _program_key(jaxpr: core.Jaxpr) -> Hashable:
    numbers: dict[Any, int] = {}

    def of(atom: Any) -> Hashable:
        if isinstance(atom, core.Literal):
            return "literal", str(atom.val) if np.size(atom.val) == 1 else id(atom.val)
        return numbers.setdefault(atom, len(numbers))

    invars = tuple((of(var), var.aval.shape, var.aval.dtype) for var in [*jaxpr.constvars, *jaxpr.invars])
    eqns = tuple(
        (
            eqn.primitive.name,
            tuple(of(atom) for atom in eqn.invars),
            tuple((of(var), var.aval.shape, var.aval.dtype) for var in eqn.outvars),
            _parameters_key(eqn.params),
        )
        for eqn in jaxpr.eqns
    )
    return invars, eqns, tuple(of(atom) for atom in jaxpr.outvars)


def _parameters_key(params: dict[str, Any]) -> Hashable:
    """Parameters that say what an equation computes; functions (derivative rules) are left out."""
    found: list[Hashable] = []
    for name, value in sorted(params.items()):
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
            found.append((name, _program_key(getattr(value, "jaxpr", value))))
        elif isinstance(value, int | float | str | bool | tuple | frozenset | type(None)) and "0x" not in repr(value):
            found.append((name, repr(value)))
    return tuple(found)
