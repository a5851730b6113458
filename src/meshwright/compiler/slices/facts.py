"""What is known of values that no weight enters: masks by the places of queries and keys, positions, constants.

A mask is not looked at entry by entry, which for long sequences nobody could: positions are linear in the places they
stand at, a comparison of two of them is decided for all pairs of places at once, and what is made of it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.pointwise import POINTWISE

LOW = -1e4
"""A score of at most this counts as none: its exponential beside that of a score of a query's own token is 0."""
MOST = 1 << 24
"""Entries of a constant that is looked at."""
STRUCTURAL = ("broadcast_in_dim", "transpose", "reshape", "squeeze", "expand_dims")
"""Equations of one operand that move its entries, and do nothing else."""
COMPARISONS = ("ge", "gt", "le", "lt", "eq", "ne")


@dataclass(frozen=True, eq=False, slots=True)
class Facts:
    """Facts about one value."""

    samples: bool = False
    """Whether it depends on the batch."""
    first: float | None = None
    """The first entry, where entries are linear in their places."""
    steps: Mapping[int, float] = field(default_factory=dict)
    """Growth of the entries from one place to the next, by dimension."""
    before: Mapping[tuple[int, int], Any] = field(default_factory=dict)
    """The one number of all entries whose place along dimension i is before that along j, by (i, j)."""

    @property
    def every(self) -> Any:
        """The one number of all entries; None if they differ or nobody knows."""
        return self.first if not any(self.steps.values()) else None


def facts_of_constant(value: Any) -> Facts:
    """What is known of numbers.

    Args:
        value: an array, or one number.
    """
    shape = np.shape(value)
    if np.prod(shape) > MOST or np.asarray(value).dtype.kind not in "biuf":
        return Facts()
    entries = np.asarray(value)
    if entries.size and np.all(entries == entries.flat[0]):
        return Facts(first=entries.flat[0])
    long = [at for at, size in enumerate(shape) if size > 1]
    if len(long) == 1 and np.issubdtype(entries.dtype, np.integer):
        steps = np.diff(entries.reshape(-1))
        return Facts(first=entries.flat[0], steps={long[0]: steps[0]}) if np.all(steps == steps[0]) else Facts()
    before = {}
    for i in long:
        for j in long:
            if i != j and shape[i] == shape[j]:
                own = np.moveaxis(entries, (i, j), (0, 1))[np.triu_indices(shape[i], 1)]
                if np.all(own == own.flat[0]):
                    before[i, j] = own.flat[0]
    return Facts(before=before)


def result_facts(eqn: core.JaxprEqn, given: Sequence[Facts]) -> list[Facts]:
    """What is known of the results of an equation.

    Args:
        eqn: any.
        given: what is known of its operands.
    """
    samples = any(one.samples for one in given)
    name = eqn.primitive.name
    found = Facts()
    if name == "iota":
        found = Facts(first=0, steps={eqn.params["dimension"]: 1})
    elif name in STRUCTURAL:
        found = _moved(eqn, given[0])
    elif name == "slice":
        found = _cut(eqn, given[0])
    elif name == "dynamic_slice":
        found = _cut_somewhere(eqn, given[0])
    elif name in POINTWISE:
        found = _pointwise(eqn, given)
    return [Facts(samples, found.first, found.steps, found.before)] * len(eqn.outvars)


def entry_of(eqn: core.JaxprEqn, entries: Sequence[Any]) -> Any:
    """What a pointwise equation makes of one entry of each operand; None if nobody knows.

    Args:
        eqn: pointwise.
        entries: the entries of its operands; None for unknown ones.
    """
    name = eqn.primitive.name
    known = [one for one in entries if one is not None]
    if name == "select_n":
        which, *cases = entries
        if which is not None:
            return cases[int(which)]
        return cases[0] if all(one is not None and one == cases[0] for one in cases) else None
    if name in ("and", "or") and eqn.outvars[0].aval.dtype == np.bool_:
        decides = name == "or"
        if any(bool(one) == decides for one in known):
            return np.bool_(decides)
    if name == "mul" and any(one == 0 for one in known):
        return np.zeros((), eqn.outvars[0].aval.dtype)[()]
    if name == "div" and entries[0] is not None and entries[0] == 0:
        return entries[0]
    if len(known) < len(entries):
        # What is far below every score stays there, whatever score is added to it.
        low = [one for one in (known if name in ("add", "add_any") else entries[:1]) if one is not None and one <= LOW]
        return low[0] if low and name in ("add", "add_any", "sub") else None
    return _evaluated(eqn, entries)


def _evaluated(eqn: core.JaxprEqn, entries: Sequence[Any]) -> Any:
    dtypes = [atom.aval.dtype for atom in eqn.invars]
    try:
        with jax.ensure_compile_time_eval():
            made = eqn.primitive.bind(
                *(jnp.asarray(one, dtype) for one, dtype in zip(entries, dtypes, strict=True)), **eqn.params
            )
    except (TypeError, ValueError):
        return None
    return np.asarray(made)[()]


def _pointwise(eqn: core.JaxprEqn, given: Sequence[Facts]) -> Facts:
    name = eqn.primitive.name
    before = {}
    for key in dict.fromkeys(key for one in given for key in one.before):
        made = entry_of(eqn, [one.before.get(key, one.every) for one in given])
        if made is not None:
            before[key] = made
    if all(one.every is not None for one in given):
        return Facts(first=entry_of(eqn, [one.every for one in given]))
    linear = [one for one in given if one.first is not None]
    if len(linear) < len(given):
        return Facts(before=before)
    if name in COMPARISONS:
        return Facts(before=before | _compared(name, *given))
    return _linear(eqn, given) or Facts(before=before)


def _linear(eqn: core.JaxprEqn, given: Sequence[Facts]) -> Facts | None:
    """Sums, differences and multiples of what is linear in its places."""
    name, places = eqn.primitive.name, dict.fromkeys(at for one in given for at in one.steps)
    first = [one.first for one in given if one.first is not None]
    if name in ("add", "sub"):
        sign = 1 if name == "add" else -1
        steps = {at: given[0].steps.get(at, 0) + sign * given[1].steps.get(at, 0) for at in places}
        return Facts(first=first[0] + sign * first[1], steps=steps)
    if name == "mul" and any(one.every is not None for one in given):
        factor, other = (first[0], given[1]) if given[0].every is not None else (first[1], given[0])
        return Facts(first=first[0] * first[1], steps={at: factor * step for at, step in other.steps.items()})
    if name == "neg":
        return Facts(first=-first[0], steps={at: -step for at, step in given[0].steps.items()})
    if name in ("convert_element_type", "copy", "copy_p") and eqn.outvars[0].aval.dtype != np.bool_:
        return Facts(first=first[0], steps=given[0].steps)
    return None


def _compared(name: str, left: Facts, right: Facts) -> dict[tuple[int, int], Any]:
    """Facts from comparing two values linear in places: what holds wherever one place is before another."""
    steps = {at: left.steps.get(at, 0) - right.steps.get(at, 0) for at in (*left.steps, *right.steps)}
    steps = {at: step for at, step in steps.items() if step}
    if len(steps) != 2 or sum(steps.values(), 0.0) or left.first is None or right.first is None:
        return {}
    i, j = sorted(steps, key=lambda at: -steps[at])
    step, first = steps[i], left.first - right.first
    # The difference is first + step (place along i - place along j): at most `high` where i is before j.
    high, low = first - step, first + step
    found: dict[tuple[int, int], Any] = {}
    for key, sure, never in (
        ((i, j), {"le": high <= 0, "lt": high < 0, "ne": high < 0}, {"ge": high < 0, "gt": high <= 0, "eq": high < 0}),
        ((j, i), {"ge": low >= 0, "gt": low > 0, "ne": low > 0}, {"le": low > 0, "lt": low >= 0, "eq": low > 0}),
    ):
        if sure.get(name):
            found[key] = np.bool_(True)
        elif never.get(name):
            found[key] = np.bool_(False)
    return found


def _moved(eqn: core.JaxprEqn, given: Facts) -> Facts:
    """Where entries are that were elsewhere."""
    if given.every is not None:
        return Facts(first=given.every)
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    match eqn.primitive.name:
        case "broadcast_in_dim":
            places = dict(enumerate(eqn.params["broadcast_dimensions"]))
        case "transpose":
            places = {at: place for place, at in enumerate(eqn.params["permutation"])}
        case _:
            here, there = ([at for at, size in enumerate(shape) if size > 1] for shape in (old, new))
            if [old[at] for at in here] != [new[at] for at in there]:
                return Facts()
            places = dict(zip(here, there, strict=True))
    # Along a dimension of one entry every place is the first.
    places = {at: place for at, place in places.items() if old[at] > 1 and old[at] == new[place]}
    return Facts(
        first=given.first,
        steps={places[at]: step for at, step in given.steps.items() if at in places},
        before={(places[i], places[j]): one for (i, j), one in given.before.items() if i in places and j in places},
    )


def _cut(eqn: core.JaxprEqn, given: Facts) -> Facts:
    """A slice: places are counted from its start."""
    starts, strides = eqn.params["start_indices"], eqn.params["strides"] or (1,) * len(eqn.params["start_indices"])
    first = None if given.first is None else given.first + sum(given.steps[at] * starts[at] for at in given.steps)
    return Facts(
        first=first,
        steps={at: step * strides[at] for at, step in given.steps.items()},
        before={
            (i, j): one for (i, j), one in given.before.items() if starts[i] == starts[j] and strides[i] == strides[j]
        },
    )


def _cut_somewhere(eqn: core.JaxprEqn, given: Facts) -> Facts:
    """A slice that starts nobody knows where, along the dimensions that it cuts."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    whole = {at for at, size in enumerate(old) if size == new[at]}
    cut = any(step and at not in whole for at, step in given.steps.items())
    return Facts(
        first=None if cut else given.first,
        steps={} if cut else given.steps,
        before={pair: one for pair, one in given.before.items() if whole.issuperset(pair)},
    )
