"""Products of several operators that read one value: its gradient is added up on each device, and summed once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from meshwright.compiler.sharding.copies import Copies, product_of_copies
from tests.compiler.sharding.test_plan_quality import SLOW, compiled, priced_bytes, sent_bytes, shapes

CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], Copies]] = {
    "columns": ("bsh,hnd->bsnd", (2, 3, 8), (8, 4, 5), Copies(operand=0, axes=(0,), split={1: (2,)})),
    "columns of the left": ("nh,bh->nb", (4, 8), (3, 8), Copies(operand=1, axes=(0,), split={0: (4,)})),
    "a batch": ("gsh,ghf->gsf", (2, 3, 8), (2, 8, 6), Copies(operand=0, axes=(0,), split={2: (3,)})),
    "two axes, one dimension": ("sh,hf->sf", (3, 8), (8, 12), Copies(operand=0, axes=(0, 1), split={1: (2, 3)})),
    "two axes, two dimensions": (
        "sh,hnd->snd", (3, 8), (8, 4, 6), Copies(operand=0, axes=(1, 0), split={1: (2,), 2: (3,)}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_product_of_copies_is_the_product(name: str) -> None:
    spelled, *sizes, copies = CASES[name]
    values = [jax.random.normal(jax.random.key(place), size) for place, size in enumerate(sizes)]
    (eqn,) = _products(jax.make_jaxpr(lambda *own: jnp.einsum(spelled, *own))(*values).jaxpr)
    lead = [size for own in copies.split.values() for size in own]
    place = copies.operand if eqn.invars[0].aval.shape == sizes[0] else 1 - copies.operand
    given = values if eqn.invars[0].aval.shape == sizes[0] else values[::-1]
    own = Copies(operand=place, axes=copies.axes, split=copies.split)
    read = [jnp.broadcast_to(one, (*lead, *one.shape)) if at == place else one for at, one in enumerate(given)]
    want = eqn.primitive.bind(*given, **eqn.params)
    np.testing.assert_allclose(product_of_copies(eqn, own, read), want, rtol=1e-5, atol=1e-5)


def _products(jaxpr: core.Jaxpr) -> list[core.JaxprEqn]:
    found = []
    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr")
        found += _products(inner.jaxpr) if inner is not None else [eqn] if eqn.primitive.name == "dot_general" else []
    return found


def gated(weights: Any, x: jax.Array) -> jax.Array:
    for layer in weights:
        x = x + (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]
    return jnp.mean(x**2)


def test_a_gated_network_sums_the_gradient_of_its_input_once_a_layer() -> None:
    layers, hidden = 2, 64
    one = {"gate": (hidden, 4 * hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    found, sharding = compiled(gated, shapes([one] * layers), shapes((12, hidden)), SLOW)
    # The input of the first layer has no gradient.
    assert found.count == {"all-reduce": 2 * layers - 1}
    assert found.result_bytes == {"all-reduce": (2 * layers - 1) * 12 * hidden * 4}
    assert sent_bytes(found) == pytest.approx(priced_bytes(sharding), rel=0.01)
