"""Whether a loss is a mean or a sum over its batch, read from its equations.

The same program is read for a micro-batch and for a batch of as many. How a value would change if every sample were
there that many times is a power of their number: 0 for what belongs to one sample or to none, 1 for a sum over samples,
and one less for every division by a number that grows with the batch. A mean ends at 0, a sum at 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.extend import core

from meshwright.compiler.source_line import line_of
from meshwright.errors import InputError, Problem

CLOSE = 0.02
"""Powers nearer than this to a half number are that number: small types round 1/3."""
INSIDE = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
          "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}  # fmt: skip
PASS = (
    "neg", "abs", "convert_element_type", "copy", "copy_p", "broadcast_in_dim", "reshape", "transpose", "squeeze",
    "expand_dims", "stop_gradient", "reduce_precision", "reduce_max", "reduce_min", "real", "imag", "rev",
    "optimization_barrier", "layer_boundary", "reduce_and", "reduce_or", "name",
)  # fmt: skip
"""Results scale as the operand does."""
ALIKE = ("add", "add_any", "sub", "max", "min", "select_n", "concatenate", "pad", "clamp")
"""Operands must scale alike; results do too."""


@dataclass(frozen=True, slots=True)
class Power:
    """How a value scales with the number of times that each sample is there."""

    of: float = 0.0
    """The power; not a number where it is none."""
    zero: bool = False
    """Whether the value is zero, which scales as it is needed."""
    data: bool = False
    """Whether the samples have a part in it."""
    weighted: bool = False
    """Whether it was divided by a number made of the samples of the batch, as a mean over those of weight is."""

    def made_of(self, *others: Power) -> Power:
        """The same power of a value that is linear in others."""
        return replace(self, data=any(one.data for one in others), weighted=any(one.weighted for one in others))


NONE = Power(math.nan)


def is_mean(part: core.ClosedJaxpr, whole: core.ClosedJaxpr, parts: int) -> bool:
    """Whether the first result of a program is a mean over the batch; else it is a sum.

    Args:
        part: the program on a micro-batch.
        whole: the same on the batch.
        parts: micro-batches in a batch.

    Raises:
        InputError: it is neither, as far as its equations show.
    """
    pairs = zip(part.jaxpr.invars, whole.jaxpr.invars, strict=True)
    given = [Power(data=one.aval.shape != other.aval.shape) for one, other in pairs]
    found = _Reading(parts).results(part.jaxpr, whole.jaxpr, given)[0]
    if found.of in (0.0, 1.0) and not found.weighted:
        return found.of == 0.0
    raise InputError(
        Problem(
            what="the loss is neither a mean nor a sum over the batch, as far as its equations show" + _at(part.jaxpr),
            why="gradients of micro-batches are averaged for a mean and added for a sum; a loss divided by a number"
            " that depends on the data (weights, masks) is neither, nor is a sum plus something that is none",
            fix='say which is meant: loss="mean" or loss="sum"',
            field="loss",
        )
    )


def _at(jaxpr: core.Jaxpr) -> str:
    made = next((eqn for eqn in reversed(jaxpr.eqns) if jaxpr.outvars[0] in eqn.outvars), None)
    line = line_of(made) if made is not None else ""
    return f": {line}" if line else ""


class _Reading:
    def __init__(self, parts: int) -> None:
        self.parts = parts

    def results(self, part: core.Jaxpr, whole: core.Jaxpr, given: Sequence[Power]) -> list[Power]:
        """Powers of the results of a program.

        Args:
            part: on a micro-batch.
            whole: the same on the batch.
            given: powers of its operands.
        """
        known: dict[Any, Power] = dict(zip(part.invars, given, strict=True))
        alike = [eqn.primitive for eqn in part.eqns] == [eqn.primitive for eqn in whole.eqns]
        if not alike:
            return [NONE] * len(part.outvars)
        for one, other in zip(part.eqns, whole.eqns, strict=True):
            powers = [self._power(a, b, known) for a, b in zip(one.invars, other.invars, strict=True)]
            known.update(zip(one.outvars, self._made(one, other, powers), strict=True))
        return [self._power(a, b, known) for a, b in zip(part.outvars, whole.outvars, strict=True)]

    def _power(self, one: Any, other: Any, known: Mapping[Any, Power]) -> Power:
        if not isinstance(one, core.Literal):
            return known.get(one, Power())
        small, large = (float(np.real(atom.val)) if np.size(atom.val) == 1 else 1.0 for atom in (one, other))
        if small == large or (math.isnan(small) and math.isnan(large)):
            # So does NaN: `jnp.var` of nothing.
            return Power(zero=small == 0.0 or math.isnan(small))
        if not small * large > 0:
            return NONE
        return Power(_rounded(math.log(large / small) / math.log(self.parts)))

    def _made(self, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> list[Power]:
        name = one.primitive.name
        if name in INSIDE:
            inner = [_jaxpr(eqn.params[INSIDE[name]]) for eqn in (one, other)]
            return self.results(inner[0], inner[1], powers[: len(inner[0].invars)])
        if name == "scan":
            return self._loop(one, other, powers)
        if name == "cond":
            branches = zip(one.params["branches"], other.params["branches"], strict=True)
            ways = [self.results(_jaxpr(a), _jaxpr(b), powers[1:]) for a, b in branches]
            return [_same(way) for way in zip(*ways, strict=True)]
        found = _RULES.get(name, _any)(self, one, other, powers)
        return [found] * len(one.outvars)

    def _loop(self, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> list[Power]:
        consts, carried = one.params["num_consts"], one.params["num_carry"]
        inner, outer = _jaxpr(one.params["jaxpr"]), _jaxpr(other.params["jaxpr"])
        state = list(powers[consts : consts + carried])
        if one.params["length"] != other.params["length"]:
            state = [NONE if power.data or power.of else power for power in state]
        for _ in range(carried + 1):
            made = self.results(inner, outer, [*powers[:consts], *state, *powers[consts + carried :]])
            after = [_same(pair) for pair in zip(state, made[:carried], strict=True)]
            if after == state:
                break
            state = after
        return [*state, *made[carried:]]

    def grown(self, small: Sequence[int], large: Sequence[int]) -> list[int]:
        """Axes that are longer in the whole batch."""
        return [axis for axis, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]


def _jaxpr(held: Any) -> core.Jaxpr:
    return held.jaxpr if isinstance(held, core.ClosedJaxpr) else held


def _rounded(power: float) -> float:
    half = round(2.0 * power) / 2.0
    return half if abs(half - power) < CLOSE else math.nan


def _same(powers: Sequence[Power]) -> Power:
    """The power that all have, zeros aside."""
    some = [power for power in powers if not power.zero]
    if not some:
        return Power(zero=True)
    if len({power.of for power in some}) > 1 or math.isnan(some[0].of):
        return NONE
    return Power(some[0].of).made_of(*powers)


def _any(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    """What is not linear keeps what belongs to one sample with that sample, and gives up on what is summed."""
    shrinks = any(
        reading.grown(a.aval.shape, b.aval.shape) for a, b in zip(one.invars, other.invars, strict=True)
    ) and (bool(one.outvars) and one.outvars[0].aval.shape == other.outvars[0].aval.shape)
    if shrinks or any(not power.zero and power.of != 0.0 for power in powers):
        return NONE
    return Power(data=any(power.data for power in powers))


def _pass(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    return powers[0]


def _alike(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    return _same(powers[1:] if one.primitive.name in ("select_n", "clamp") else powers)


def _product(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    if any(power.zero for power in powers):
        return Power(zero=True)
    return Power(sum(power.of for power in powers)).made_of(*powers)


def _quotient(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    above, below = powers
    if above.zero:
        return above
    summed = below.data and one.invars[1].aval.shape == other.invars[1].aval.shape
    found = Power(above.of - below.of).made_of(above, below)
    return replace(found, weighted=found.weighted or summed)


def _sum(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    over = set(reading.grown(one.invars[0].aval.shape, other.invars[0].aval.shape)) & set(one.params["axes"])
    return powers[0] if powers[0].zero else replace(powers[0], of=powers[0].of + len(over))


def _contraction(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    (contracted, _), _ = one.params["dimension_numbers"]
    over = set(reading.grown(one.invars[0].aval.shape, other.invars[0].aval.shape)) & set(contracted)
    if any(power.zero for power in powers):
        return Power(zero=True)
    # A mean over samples of weight inside the model, such as a norm over the batch, says nothing about the loss.
    return Power(sum(power.of for power in powers) + len(over), data=any(power.data for power in powers))


def _to_the(exponent: Callable[[core.JaxprEqn], float]) -> Callable[..., Power]:
    def rule(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
        return replace(powers[0], of=powers[0].of * exponent(one))

    return rule


def _added(reading: _Reading, one: core.JaxprEqn, other: core.JaxprEqn, powers: Sequence[Power]) -> Power:
    """Rows added up at places: a sum where there are more rows and no more places."""
    rows = bool(reading.grown(one.invars[2].aval.shape, other.invars[2].aval.shape))
    places = bool(reading.grown(one.outvars[0].aval.shape, other.outvars[0].aval.shape))
    added = powers[2] if powers[2].zero or places or not rows else replace(powers[2], of=powers[2].of + 1)
    return _same([powers[0], added])


_RULES: dict[str, Callable[[_Reading, core.JaxprEqn, core.JaxprEqn, Sequence[Power]], Power]] = {
    **dict.fromkeys(PASS, _pass),
    **dict.fromkeys(ALIKE, _alike),
    "mul": _product,
    "div": _quotient,
    "reduce_sum": _sum,
    "dot_general": _contraction,
    "scatter-add": _added,
    "integer_pow": _to_the(lambda eqn: float(eqn.params["y"])),
    "square": _to_the(lambda eqn: 2.0),
    "sqrt": _to_the(lambda eqn: 0.5),
    "rsqrt": _to_the(lambda eqn: -0.5),
}
