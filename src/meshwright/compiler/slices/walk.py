"""Equations of a loss evaluated for one slice of every sequence: what slices make adds up to what whole ones make.

Tokens are shared out as samples are among data ranks, but for one thing: where the tokens of two values meet, such as
queries and keys in attention, a slice needs the keys of all tokens up to its last. Those of earlier slices are handed
to it; its own ones are kept for later slices. That a query reads no later key has to follow from the program: what it
does not read is set to one number (a score far below all others), and adds nothing to what is summed over keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.inline import CALLS, CHECKPOINTS
from meshwright.compiler.samples.placements import SIZES, SUM, WHOLE, NotShared, Placement
from meshwright.compiler.samples.sorting import NESTED, by_order
from meshwright.compiler.samples.values import RankValue
from meshwright.compiler.samples.walk import RULED, Walk
from meshwright.compiler.sharding.rules import NO_FACTOR, Dims, SplitRule, rule_of
from meshwright.compiler.slices.facts import result_facts
from meshwright.compiler.slices.keys import (
    KeySpan,
    NotCausalError,
    NotSlicedError,
    TokenRows,
    future_entry,
    kept_future,
    known_facts,
    known_numbers,
    reshaped_group,
    sees_the_past,
)
from meshwright.compiler.source_line import line_of

RULE = (
    "a function with a derivative of its own, and nothing says that its rule gives earlier tokens the sum of what "
    "slices would"
)
"""Why tokens cannot meet inside of such a function."""


@dataclass(eq=False, slots=True)
class Found:
    """What is found out about a loss on the way, the same for all of its stages and slices."""

    turned: set[Hashable] = field(default_factory=set)
    """Where queries are the second of the values that meet."""
    sorts: bool = False
    """Whether any stage sorts tokens, so that what earlier ones choose by has to be known."""
    tokens: int = 0
    """Tokens of a sequence; 0 as long as none was met."""


class SliceWalk(Walk):
    """Equations of a program for whole sequences, evaluated for the tokens of one slice."""

    def __init__(self, parts: int, number: int, found: Found, earlier: Sequence[Sequence[Any]] = ()) -> None:
        """Nothing is evaluated yet.

        Args:
            parts: slices of a sequence.
            number: the number of this one.
            found: what was found so far; grows.
            earlier: what earlier slices kept: of each value one array per slice.
        """
        super().__init__((), parts)
        self.sorts = found.sorts
        self.number, self.found, self.earlier = number, found, earlier
        self.kept: list[Any] = []
        """Values of this slice that later ones read."""
        self._keeps_not = ""
        """Why nothing can be kept; empty where it can."""

    # ---- equations

    def _equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        try:
            made = self._sliced(program, eqn, given)
        except NotShared as why:
            if isinstance(why, NotSlicedError) and why.line:
                raise
            line = line_of(eqn) or ""
            if isinstance(why, NotCausalError):
                raise NotCausalError(str(why), why.place, line) from None
            # Rules for shares of samples are those for slices of tokens.
            raise NotSlicedError(str(why).replace("samples", "tokens"), line) from None
        moves = any(value.moves for value in given)
        return [replace(value, moves=moves or value.moves) for value in made]

    def _sliced(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        name = eqn.primitive.name
        if name in CALLS:
            return self.inside(eqn, given)
        if all(value.placement == WHOLE for value in given) and not any(value.moves for value in given):
            facts = result_facts(eqn, [known_facts(value) for value in given])
            made = super().placed_equation(program, eqn, given)
            return [replace(value, known=one) for value, one in zip(made, facts, strict=True)]
        given = self._started(given)
        if self.sorts and not any(isinstance(value.order, KeySpan) for value in given):
            return self._by_order(program, eqn, given)
        return self.placed_equation(program, eqn, given)

    def _by_order(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of an equation of a program that sorts tokens, such as by their experts."""
        given = [known_numbers(value, atom) for value, atom in zip(given, eqn.invars, strict=True)]
        samples = {value.order.samples if value.order else 1 for value in given if value.placement >= 0}
        if len(samples) != 1 or eqn.primitive.name in (*RULED, *CHECKPOINTS, *NESTED):
            return by_order(self, program, eqn, given)
        before, (self.samples,) = self.samples, samples
        try:
            made = by_order(self, program, eqn, given)
            if eqn.primitive.name == "reshape" or self.samples == 1:
                return made
            rows = TokenRows(self.samples)
            return [replace(one, order=rows) if one.placement >= 0 and one.order is None else one for one in made]
        finally:
            self.samples = before

    def placed_equation(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of an equation, and which of their dimensions count tokens.

        Args:
            program: the program in which it stands.
            eqn: any.
            given: its operands; some depend on weights, or count tokens.
        """
        name = eqn.primitive.name
        keys = any(isinstance(value.order, KeySpan) for value in given)
        if name in RULED:
            if name == "custom_vjp_call" and any(value.order for value in given):
                raise NotShared("a function with a backward of its own reads scores, or tokens beside samples")
            return super().placed_equation(program, eqn, given)
        if keys and name not in ("scan", "cond", "while", *CHECKPOINTS):
            return self._met(program, eqn, given)
        if name == "reshape" and given[0].placement >= 0:
            return [self._reshaped(eqn, given[0])]
        rows = {value.order for value in given if value.placement >= 0}
        if rows - {None}:
            return self._in_rows(program, eqn, given, rows)
        rule = rule_of(eqn)
        met = {dims[one.placement] for dims, one in zip(rule.operands, given, strict=False) if one.placement >= 0}
        if len(met) == 2 and len(rule.operands) == len(given) and NO_FACTOR not in met:
            return self._met(program, eqn, given)
        return super().placed_equation(program, eqn, given)

    def _in_rows(
        self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue], rows: set[Any]
    ) -> list[RankValue]:
        """Results of an equation whose operands count samples and tokens along one dimension."""
        if len(rows) > 1 or eqn.primitive.name in ("scan", "cond", "while", *CHECKPOINTS):
            raise NotShared(f"{eqn.primitive.name} mixes tokens, which stand beside samples,")
        (order,) = rows
        before, self.samples = self.samples, order.samples
        try:
            made = super().placed_equation(program, eqn, given)
        finally:
            self.samples = before
        return [replace(value, order=order if value.placement >= 0 else None) for value in made]

    def _rows_of_own(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> RankValue | None:
        # Numbers of rows that count samples and tokens are those of whole sequences.
        return None if self.samples > 1 else super()._rows_of_own(program, eqn, given)

    def _reshaped(self, eqn: core.JaxprEqn, value: RankValue) -> RankValue:
        """Tokens put beside samples along one dimension, or taken apart; other dimensions as they like."""
        old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        own, made = reshaped_group(old, new, value.placement)
        # Entries stay in their order: of so many samples, one after the other, the slices.
        samples = int(np.prod([old[at] for at in own if at < value.placement]))
        samples *= value.order.samples if value.order else 1
        ahead, place = 1, -1
        for at in made:
            rest, left = divmod(samples, ahead)
            if not left and new[at] > 1 and new[at] % (rest * self.ranks) == 0:
                place, order = at, TokenRows(rest) if rest > 1 else None
            ahead *= new[at]
        if place < 0:
            raise NotShared("reshape mixes tokens")
        shape = tuple(size // self.ranks if at == place else size for at, size in enumerate(new))
        return RankValue(jnp.reshape(value.value, shape), place, order=order)

    def _started(self, given: list[RankValue]) -> list[RankValue]:
        """Operands where weights first meet samples, whose second dimension counts tokens."""
        if any(value.placement != WHOLE for value in given) or not any(value.moves for value in given):
            return given
        for at, value in enumerate(given):
            shape = np.shape(value.value)
            if value.moves or len(shape) < 2 or not known_facts(value).samples:
                continue
            tokens = self.found.tokens or shape[1]
            if tokens == shape[1] and tokens > 1:
                if tokens % self.ranks:
                    raise NotShared(f"sequences of {tokens} tokens do not split into {self.ranks} equal slices")
                self.found.tokens = tokens
                return [*given[:at], self.own(value, 1), *given[at + 1 :]]
        return given

    # ---- queries and keys

    def _met(self, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
        """Results of an equation whose operands hold tokens along two dimensions, queries and keys."""
        rule = rule_of(eqn)
        query, key, place = self._factors(eqn, rule, given)
        values = [
            self._extent(value, dims, query, key, place) for value, dims in zip(given, rule.operands, strict=True)
        ]
        entries = [future_entry(value, dims, query, key) for value, dims in zip(given, rule.operands, strict=True)]
        held = [replace(one, value=value) for one, value in zip(given, values, strict=True)]
        read = self.evaluated(program, self._resized(eqn, rule, query, key), held)
        made = []
        for value, dims in zip(read, rule.results, strict=True):
            if query not in dims:
                raise NotCausalError(f"{eqn.primitive.name} mixes tokens", place)
            order = None
            if key in dims:
                order = KeySpan(dims.index(key), kept_future(eqn, entries), place)
            elif not sees_the_past(eqn, entries):
                raise NotCausalError("it does not follow from the program that tokens read earlier ones alone", place)
            made.append(RankValue(value, dims.index(query), order=order))
        return made

    def _factors(self, eqn: core.JaxprEqn, rule: SplitRule, given: Sequence[RankValue]) -> tuple[int, int, Hashable]:
        """The factors of queries and of keys, and where they met."""
        pairs = {
            (dims[one.placement], dims[one.order.dimension]): one.order.place
            for dims, one in zip(rule.operands, given, strict=True)
            if isinstance(one.order, KeySpan)
        }
        if not pairs:
            met: Hashable = line_of(eqn), eqn.primitive, tuple(atom.aval.shape for atom in eqn.invars)
            found = list(
                dict.fromkeys(
                    dims[one.placement] for dims, one in zip(rule.operands, given, strict=True) if one.placement >= 0
                )
            )
            query, key = reversed(found) if met in self.found.turned else found
            return query, key, met
        (query, key), place = next(iter(pairs.items()))
        if len(pairs) > 1 or NO_FACTOR in (query, key):
            raise NotCausalError(f"{eqn.primitive.name} mixes tokens", place)
        return query, key, place

    def _extent(self, value: RankValue, dims: Dims, query: int, key: int, place: Hashable) -> Any:
        """What the slice needs of an operand: its own tokens along queries, all up to its last along keys."""
        own = dims.index(query) if query in dims else None
        upto = dims.index(key) if key in dims else None
        if isinstance(value.order, KeySpan):
            return value.value
        if value.order:
            raise NotCausalError("tokens that stand beside samples meet others", place)
        held = self.total(value).value
        if value.placement >= 0:
            if value.placement not in (own, upto):
                raise NotCausalError("tokens meet along more than two dimensions", place)
            if value.placement == upto:
                held = self._with_earlier(held, upto)
        if own is not None and value.placement != own:
            held = self._part(held, own)
        if upto is not None and value.placement != upto:
            held = jax.lax.slice_in_dim(held, 0, held.shape[upto] // self.ranks * (self.number + 1), axis=upto)
        return held

    def _with_earlier(self, own: Any, dimension: int) -> Any:
        """A value of this slice behind those of earlier ones; it is kept for later ones."""
        if self._keeps_not:
            raise NotShared(f"tokens read earlier ones inside of {self._keeps_not}")
        at = next((at for at, one in enumerate(self.kept) if one is own), len(self.kept))
        if at == len(self.kept):
            self.kept.append(own)
        before = self.earlier[at] if self.number else ()
        return jnp.concatenate([*before, own], axis=dimension)

    def _resized(self, eqn: core.JaxprEqn, rule: SplitRule, query: int, key: int) -> core.JaxprEqn:
        if eqn.primitive.name not in SIZES:
            return eqn
        name, of_result = SIZES[eqn.primitive.name]
        dims = rule.results[0] if of_result else rule.operands[0]
        shares = {query: 1, key: self.number + 1}
        sizes = [
            size // self.ranks * shares[dim] if dim in shares else size
            for size, dim in zip(eqn.params[name], dims, strict=True)
        ]
        return eqn.replace(params={**eqn.params, name: tuple(sizes)})

    # ---- from one placement to another

    def _part(self, value: Any, dimension: int) -> Any:
        shape, value = np.shape(value), jnp.asarray(value)
        if self.samples > 1:
            apart = (*shape[:dimension], self.samples, shape[dimension] // self.samples, *shape[dimension + 1 :])
            value, dimension = value.reshape(apart), dimension + 1
        size = value.shape[dimension] // self.ranks
        own = jax.lax.slice_in_dim(value, self.number * size, (self.number + 1) * size, axis=dimension)
        if self.samples > 1:
            return own.reshape(*shape[: dimension - 1], self.samples * size, *shape[dimension:])
        return own

    def own(self, value: RankValue, dimension: Placement) -> RankValue:
        """A value of which the part for the tokens of this slice is wanted.

        Args:
            value: any.
            dimension: the dimension that counts tokens.
        """
        if dimension == WHOLE or value.placement == dimension:
            return value
        if value.placement != WHOLE:
            raise NotShared("tokens meet along two dimensions")
        return replace(value, value=self._part(value.value, dimension), placement=dimension, known=None)

    def total(self, value: RankValue) -> RankValue:
        """Sums over all tokens are known behind the last slice, and to nobody before.

        Args:
            value: any but such a sum.
        """
        if value.placement == SUM:
            raise NotShared("something else than a sum is made of a sum over all tokens")
        return value

    def summand(self, value: RankValue) -> RankValue:
        """A value that all slices have as a sum: the first one's share is all of it.

        Args:
            value: any.
        """
        if value.placement != WHOLE:
            return value
        return replace(value, value=jnp.zeros_like(value.value) if self.number else value.value, placement=SUM)

    def _number(self) -> Any:
        return self.number

    # ---- equations inside equations

    @contextmanager
    def nested(self) -> Iterator[None]:
        """While equations inside of an equation are read, from which nothing can be kept."""
        before, self._keeps_not = self._keeps_not, self._keeps_not or "a loop, whose rounds cannot hand keys on"
        try:
            yield
        finally:
            self._keeps_not = before

    def elsewhere(self, number: Any = None) -> SliceWalk:
        """The same inside of a function that is read later.

        Args:
            number: not needed, as the slice is known.
        """
        walk = SliceWalk(self.ranks, self.number, self.found)
        walk.samples = self.samples
        walk._keeps_not = RULE
        return walk

    def _checkpoint(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """What is computed again keeps what later slices read, too."""
        first = len(self.kept)
        made: list[RankValue] = []

        def run(*values: Any) -> tuple[list[Any], list[Any]]:
            del self.kept[first:]
            made[:] = self.inside(eqn, [replace(one, value=value) for one, value in zip(given, values, strict=True)])
            return [value.value for value in made], self.kept[first:]

        again = jax.checkpoint(run, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])
        results, self.kept[first:] = again(*(one.value for one in given))
        return [replace(one, value=value) for one, value in zip(made, results, strict=True)]

    def _scan(self, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
        """A loop over layers is written out where its layers keep something for later slices."""
        try:
            return super()._scan(eqn, given)
        except NotShared:
            if self._keeps_not:
                raise
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        held, carry, rows = given[:consts], list(given[consts : consts + carried]), given[consts + carried :]
        if any(row.placement == 0 for row in rows):
            raise NotShared("a loop over tokens")
        rounds = range(eqn.params["length"])
        stacked: list[list[RankValue]] = []
        for at in reversed(rounds) if eqn.params["reverse"] else rounds:
            own = [
                replace(row, value=row.value[at], placement=max(row.placement - 1, WHOLE), known=None) for row in rows
            ]
            made = self.inside(eqn, [*held, *carry, *own])
            carry = made[:carried]
            stacked.append(made[carried:])
        if eqn.params["reverse"]:
            stacked.reverse()
        results = []
        for ways in zip(*stacked, strict=True):
            if len({one.placement for one in ways}) > 1 or any(one.order for one in ways):
                raise NotShared("a loop returns tokens along several dimensions")
            placement = ways[0].placement
            results.append(
                RankValue(jnp.stack([one.value for one in ways]), placement + 1 if placement >= 0 else placement)
            )
        return [*carry, *results]
