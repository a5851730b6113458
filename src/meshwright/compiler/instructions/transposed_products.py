"""Products whose result is transposed, as products of their operands in the other order.

JAX computes the gradient of a weight as (slopes, samples) and transposes it into (samples, slopes). On several devices
XLA makes of both one product of two transposed matrices, for which its fast loops have no form: on CPUs the gradients
of a decoder then take twice the time. The product of samples and slopes is the same sums and transposes nothing.
"""

from __future__ import annotations

from collections import Counter

from jax.extend import core

from meshwright.compiler.inline import with_programs


def without_transposed_products(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A program that computes the same without transposing the results of its products.

    Args:
        closed: the program; those inside of its loops, branches and ranks are rewritten, too.
    """
    return core.ClosedJaxpr(_rewritten(closed.jaxpr), closed.consts)


def _rewritten(jaxpr: core.Jaxpr) -> core.Jaxpr:
    reads = Counter(atom for eqn in jaxpr.eqns for atom in eqn.invars if isinstance(atom, core.Var))
    reads.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    made = {var: eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general" for var in eqn.outvars}
    instead: dict[int, core.JaxprEqn | None] = {}
    for eqn in jaxpr.eqns:
        product = made.get(eqn.invars[0]) if eqn.primitive.name == "transpose" else None
        if product is not None and reads[eqn.invars[0]] == 1 and _is_transposed(product, eqn):
            instead |= {id(eqn): _swapped(product, eqn), id(product): None}
    kept = [one for eqn in jaxpr.eqns if (one := instead.get(id(eqn), eqn)) is not None]
    return jaxpr.replace(
        eqns=[
            eqn.replace(params={key: with_programs(held, _within) for key, held in eqn.params.items()}) for eqn in kept
        ]
    )


def _within(program: core.ClosedJaxpr | core.Jaxpr) -> core.ClosedJaxpr | core.Jaxpr:
    closed = isinstance(program, core.ClosedJaxpr)
    return without_transposed_products(program) if closed else _rewritten(program)


def _is_transposed(product: core.JaxprEqn, transpose: core.JaxprEqn) -> bool:
    """Whether a transpose swaps the axes of a product's operands, the first's with the second's, and no others."""
    (first, second), (batch, _) = product.params["dimension_numbers"]
    precision = product.params["precision"]
    if product.params.get("out_sharding") is not None or not (precision is None or isinstance(precision, tuple)):
        return False
    shared = len(batch)
    ours = len(product.invars[0].aval.shape) - len(first) - shared
    theirs = len(product.invars[1].aval.shape) - len(second) - shared
    behind = range(shared + ours, shared + ours + theirs)
    return tuple(transpose.params["permutation"]) == (*range(shared), *behind, *range(shared, shared + ours))


def _swapped(product: core.JaxprEqn, transpose: core.JaxprEqn) -> core.JaxprEqn:
    sums, batch = product.params["dimension_numbers"]
    precision = product.params["precision"]
    params = {
        **product.params,
        "dimension_numbers": (sums[::-1], batch[::-1]),
        "precision": precision if precision is None else precision[::-1],
    }
    return product.replace(invars=product.invars[::-1], outvars=transpose.outvars, params=params)
