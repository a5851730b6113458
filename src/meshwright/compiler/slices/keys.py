"""What a slice holds where tokens meet: keys up to its last token, and what is known of those behind a query."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.pointwise import POINTWISE
from meshwright.compiler.samples.known import Known
from meshwright.compiler.samples.placements import WHOLE, NotShared
from meshwright.compiler.samples.values import RankValue
from meshwright.compiler.sharding.rules import Dims
from meshwright.compiler.slices.facts import LOW, STRUCTURAL, Facts, entry_of, facts_of_constant


class NotSlicedError(NotShared):
    """Why a loss cannot be computed slice by slice, and the line of the user's code where."""

    def __init__(self, why: str, line: str = "") -> None:
        super().__init__(why)
        self.line = line


class NotCausalError(NotSlicedError):
    """Tokens meet, and with these as queries and those as keys it is not so that queries read earlier keys alone."""

    def __init__(self, why: str, place: Hashable, line: str = "") -> None:
        super().__init__(why, line)
        self.place = place


@dataclass(frozen=True, eq=False, slots=True)
class KeySpan:
    """Keys that a value holds whose queries are a slice's: those of all tokens up to the slice's last."""

    dimension: int
    future: Any
    """The one number of all its entries whose key is behind their query; None if nobody knows one."""
    place: Hashable
    """Where queries and keys met."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """A value that counts samples and tokens along one dimension: a slice holds its tokens of every sample."""

    samples: int


def known_numbers(value: RankValue, atom: Any) -> RankValue:
    """A value whose entries are one number, as the rules of sorting know it.

    Args:
        value: any.
        atom: the variable or literal that stands for it.
    """
    facts = value.known
    if value.placement != WHOLE or not isinstance(facts, Facts) or facts.every is None or facts.samples:
        return value
    shape, dtype = atom.aval.shape, atom.aval.dtype
    known = Known(None, (), lambda: np.broadcast_to(np.asarray(facts.every, dtype), shape))
    return replace(value, uniform=True, known=known)


def known_facts(value: RankValue) -> Facts:
    """What is known of a value; a number of the program is looked at.

    Args:
        value: any.
    """
    if isinstance(value.known, Facts):
        return value.known
    if isinstance(value.value, jax.core.Tracer):
        return Facts()
    return facts_of_constant(value.value)


def future_entry(value: RankValue, dims: Dims, query: int, key: int) -> Any:
    """The one number of an operand's entries whose key is behind their query; None if nobody knows one.

    Args:
        value: the operand.
        dims: its factors.
        query: factor of queries.
        key: factor of keys.
    """
    if isinstance(value.order, KeySpan):
        return value.order.future
    if value.placement != WHOLE or value.moves:
        return None
    facts = known_facts(value)
    if query in dims and key in dims:
        return facts.before.get((dims.index(query), dims.index(key)), facts.every)
    return facts.every


def kept_future(eqn: core.JaxprEqn, entries: Sequence[Any]) -> Any:
    """The same of the result of an equation that keeps keys apart.

    Args:
        eqn: any.
        entries: the entries of its operands, as `future_entry`.
    """
    name = eqn.primitive.name
    if name in STRUCTURAL:
        return entries[0]
    if name in POINTWISE:
        return entry_of(eqn, entries)
    return entries[0] if name == "reduce_sum" and entries[0] is not None and entries[0] == 0 else None


def sees_the_past(eqn: core.JaxprEqn, entries: Sequence[Any]) -> bool:
    """Whether what a query does not read adds nothing to what an equation makes of all keys.

    Args:
        eqn: any.
        entries: the entries of its operands, as `future_entry`.
    """
    name, first = eqn.primitive.name, entries[0]
    if name == "dot_general":
        return any(one is not None and one == 0 for one in entries)
    if first is None:
        return False
    return {
        "reduce_sum": first == 0,
        "reduce_max": first <= LOW,
        "reduce_and": bool(first),
        "reduce_or": not first,
    }.get(name, False)


def reshaped_group(old: Sequence[int], new: Sequence[int], place: int) -> tuple[list[int], list[int]]:
    """Dimensions that a reshape makes of each other, those with one dimension among them: before and behind it.

    Args:
        old: sizes before.
        new: sizes behind it.
        place: the place of the one dimension, before.
    """
    i = j = 0
    while i < len(old) and j < len(new):
        own, made = [i], [j]
        left, right = old[i], new[j]
        while left != right:
            if left < right:
                own.append(own[-1] + 1)
                left *= old[own[-1]]
            else:
                made.append(made[-1] + 1)
                right *= new[made[-1]]
        if place in own:
            return own, made
        i, j = own[-1] + 1, made[-1] + 1
    return [], []
