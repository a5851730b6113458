"""Programs written on parts of their operands compute what they compute on the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.leading_axis import Parting, scaled_partition, spans, spread_partition

BOUNDS = (0, 1, 4, 6)
DRAWN = np.random.RandomState(0)
X, Y = (jnp.asarray(DRAWN.randn(6, 4), jnp.float32) for _ in range(2))

CARRIED: dict[str, Callable[..., Any]] = {
    "entry by entry": lambda x, y: jnp.tanh(x) * 0.9 + y,
    "norm": lambda x, y: x / jnp.sqrt((x**2).sum()),
    "clipped": lambda x, y: jnp.where(jnp.abs(x).max() > 1.0, x / 2.0, jnp.zeros_like(x)) + y,
    "norm of each layer": lambda x, y: x / jnp.sqrt((x**2).mean(axis=1, keepdims=True)),
    "ratio of the stack": lambda x, y: x * jnp.where((x**2).sum(keepdims=True) > 0, 0.5, 1.0),
    "rows made flat": lambda x, y: jnp.vdot(x, y) * y.reshape(-1).reshape(6, 2, 2).transpose(0, 2, 1).reshape(6, 4),
    "products layer by layer": lambda x, y: jnp.einsum("la,la->l", x, y) + jnp.concatenate([x, y], axis=1).sum(axis=1),
}
GATHERED: dict[str, Callable[..., Any]] = {
    "sorted": lambda x, y: jnp.sort(x, axis=0) + y,
    "across the stack": lambda x, y: x @ y.T @ x,
    "turned": lambda x, y: x[::-1] + y,
}


def parted(fun: Callable[..., Any]) -> tuple[core.ClosedJaxpr, core.ClosedJaxpr]:
    whole = flat_jaxpr(lambda *given: [fun(*given)], [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in (X, Y)])
    jaxpr = whole.jaxpr
    known = {jaxpr.invars[0]: BOUNDS}
    spread_partition(jaxpr.eqns, known)
    writing = Parting(known)
    invars = [var for own in jaxpr.invars for var in (writing.operand(own) if own in known else (own,))]
    for place, eqn in enumerate(jaxpr.eqns):
        writing.write(eqn, place)
    outvars = [writing.whole(atom, jaxpr.eqns[-1], len(jaxpr.eqns)) for atom in jaxpr.outvars]
    names = jaxpr.debug_info.with_unknown_names()
    assert len(writing.origins) == len(writing.eqns)
    written = jaxpr.replace(invars=invars, outvars=outvars, eqns=writing.eqns, debug_info=names)
    return whole, core.ClosedJaxpr(written, whole.consts)


@pytest.mark.parametrize("name", [*CARRIED, *GATHERED])
def test_parts_compute_what_the_whole_computes(name: str) -> None:
    whole, parts = parted({**CARRIED, **GATHERED}[name])
    given = [value[low:high] for value in (X, Y) for low, high in spans(BOUNDS)]
    if len(parts.jaxpr.invars) == 4:  # nothing ties the other operand to the parts
        given = [*given[:3], Y]
    (expected,), (found,) = core.jaxpr_as_fun(whole)(X, Y), core.jaxpr_as_fun(parts)(*given)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    # The result is put together for the comparison; nothing else is, where every operation goes by parts.
    joined = [
        eqn
        for eqn in parts.jaxpr.eqns
        if eqn.primitive.name == "concatenate"
        and eqn.params["dimension"] == 0
        and eqn.outvars[0] is not parts.jaxpr.outvars[0]
    ]
    assert bool(joined) == (name in GATHERED)


def test_a_partition_of_another_axis_cuts_no_entry() -> None:
    assert scaled_partition((0, 1, 4, 6), 12) == (0, 2, 8, 12)
    assert scaled_partition((0, 2, 6), 3) == (0, 1, 3)
    assert scaled_partition((0, 1, 6), 3) is None
