"""Operations and bytes of equations, in closed form: no lowering, no compiler, loops multiplied by their trip count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from jax.extend import core

FREE = frozenset(
    (
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "copy",
        "copy_p",
        "convert_element_type",
        "bitcast_convert_type",
        "iota",
        "slice",
        "dynamic_slice",
        "concatenate",
        "pad",
        "rev",
        "gather",
        "stop_gradient",
        "layer_boundary",
        "optimization_barrier",
        "split",
        "stack",
        "unstack",
        "random_wrap",
        "random_unwrap",
    )
)
"""Move or make values without arithmetic."""
PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
"""Products of matrices; of ragged ones every group of rows has a matrix of its own."""
REDUCTIONS = ("reduce_", "argm", "cum")
TRANSCENDENTAL_FLOP = {
    "exp": 1,
    "log": 1,
    "tanh": 1,
    "logistic": 4,
    "erf": 8,
    "rsqrt": 2,
    "sqrt": 1,
    "pow": 1,
    "sin": 1,
}
"""Counted as XLA counts the parts of what it expands; one where it calls the hardware."""


def eqns_flop(eqns: Iterable[core.JaxprEqn]) -> float:
    """Floating-point operations of equations.

    Args:
        eqns: the equations in any order.
    """
    return sum(eqn_flop(eqn) for eqn in eqns)


def eqn_flop(eqn: core.JaxprEqn) -> float:
    """Floating-point operations of one equation: 2 x multiply-adds for products, one per element for the rest.

    Args:
        eqn: any; loops count their body times the trip count (`while` once), branches their longest.
    """
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2.0 * size_of(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracted)
    if name == "ragged_dot_general":
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        (contracted, _), _ = numbers.dot_dimension_numbers
        shape, ragged = eqn.invars[0].aval.shape, numbers.lhs_ragged_dimensions[0]
        # Of contracted rows every group has its own part.
        groups = eqn.invars[2].aval.shape[-1] if ragged in contracted else 1
        return 2.0 * size_of(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracted) / groups
    if name == "conv_general_dilated":
        kernel, numbers = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
        return 2.0 * size_of(eqn.outvars[0]) * math.prod(kernel) / kernel[numbers.rhs_spec[0]]
    if name == "scan":
        return eqn.params["length"] * eqns_flop(eqn.params["jaxpr"].jaxpr.eqns)
    if name == "cond":
        return max(eqns_flop(branch.jaxpr.eqns) for branch in eqn.params["branches"])
    inner = [_open(value) for value in eqn.params.values() if isinstance(value, core.ClosedJaxpr | core.Jaxpr)]
    if inner:
        return sum(eqns_flop(jaxpr.eqns) for jaxpr in inner)
    if name in FREE:
        return 0.0
    if name.startswith(REDUCTIONS):
        return float(sum(size_of(atom) for atom in eqn.invars))
    return float(TRANSCENDENTAL_FLOP.get(name, 1) * sum(size_of(var) for var in eqn.outvars))


def is_heavy(eqn: core.JaxprEqn) -> bool:
    """Whether an equation holds a product of matrices, at any depth.

    Args:
        eqn: any.
    """
    if eqn.primitive.name in PRODUCTS:
        return True
    return any(
        is_heavy(one)
        for value in eqn.params.values()
        for jaxpr in (value if isinstance(value, tuple | list) else (value,))
        if isinstance(jaxpr, core.ClosedJaxpr | core.Jaxpr)
        for one in _open(jaxpr).eqns
    )


def size_of(atom: Any) -> int:
    """Elements of a variable or literal.

    Args:
        atom: a variable or literal with a shape.
    """
    return math.prod(atom.aval.shape)


def bytes_of(atom: Any) -> int:
    """Bytes of a variable or literal.

    Args:
        atom: a variable or literal with a shape and a type.
    """
    return aval_bytes(atom.aval)


def aval_bytes(aval: Any) -> int:
    """Bytes of a value of a shape and a type.

    Args:
        aval: shape and type.
    """
    return math.prod(aval.shape) * int(aval.dtype.itemsize)


def _open(jaxpr: Any) -> core.Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
