"""Loops written round by round compute what they computed, and let micro-batches through in phases."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

import meshwright as mw
from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.micro_batches.rounds import meets_in_rounds, round_by_round
from tests.virtual_devices import eight_devices

eight_devices()
LAYERS, WIDTH = 3, 4


def normed(x: jax.Array) -> jax.Array:
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.1)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_loop_computes_stays(reverse: bool) -> None:
    def looped(x: jax.Array, weights: jax.Array, scale: jax.Array) -> list[Any]:
        def layer(carry: Any, weight: jax.Array) -> Any:
            x, count = carry
            x = jnp.tanh(normed(x @ weight)) * scale
            return (x, count + 1), (x.sum(), 2.0, weight)

        (x, count), (sums, twos, rows) = lax.scan(layer, (x, 0), weights, reverse=reverse)
        return [x, count, sums, twos, rows]

    rng = np.random.RandomState(0)
    given = [jnp.asarray(rng.randn(*shape)) for shape in ((8, WIDTH), (LAYERS, WIDTH, WIDTH), ())]
    closed = flat_jaxpr(looped, [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in given])
    (loop,) = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert meets_in_rounds(loop)
    written = round_by_round(closed.jaxpr, [loop])
    assert not any(eqn.primitive.name == "scan" for eqn in written.eqns)
    found = core.jaxpr_as_fun(core.ClosedJaxpr(written, closed.consts))(*given)
    for one, other in zip(found, looped(*given), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_batch_norm_in_stacked_layers_goes_in_phases() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weight: jax.Array) -> Any:
            x = jax.nn.relu(normed(x @ weight))
            return x, None

        return ((lax.scan(layer, x, params["layers"])[0] @ params["head"]) ** 2).mean()

    def step(params: Any, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    rng = np.random.RandomState(0)
    params = {
        "layers": jnp.asarray(rng.randn(LAYERS, WIDTH, WIDTH), jnp.float32),
        "head": jnp.asarray(rng.randn(WIDTH, 2), jnp.float32),
    }
    x = jnp.asarray(rng.randn(16, WIDTH), jnp.float32)
    parallel = mw.parallelize(step, method=mw.DataParallel(num_micro_batches=2, devices=jax.devices()[:2]))
    for one, other in zip(jax.tree.leaves(parallel(params, x)), jax.tree.leaves(step(params, x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert "go through the loss in phases" in parallel.compiled().explain()
