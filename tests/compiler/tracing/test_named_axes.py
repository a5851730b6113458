"""A step written for `pmap` computes with the whole batch what it computes there with one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.tracing.trace import trace_step
from meshwright.errors import InputError
from tests.compiler.tracing.test_trace import BATCH, WEIGHTS


def step(weights: jax.Array, batch: jax.Array) -> Any:
    def loss(w: jax.Array) -> Any:
        out = batch @ w
        centred = out - jax.lax.stop_gradient(jax.lax.pmean(out.sum(), "batch"))
        return jax.lax.psum((centred**2).sum(), "batch") / jax.lax.psum(jnp.float32(out.size), "batch"), out.max()

    (value, largest), grads = jax.value_and_grad(loss, has_aux=True)(weights)
    grads, value = jax.lax.pmean((grads, value), axis_name="batch")
    share = jax.lax.psum_scatter(value[None], "batch", tiled=True)[0]
    others = jax.lax.all_gather(value, "batch")
    key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("batch"))
    kept = jax.random.bernoulli(key, 0.5, grads.shape)
    most = jax.lax.pmax(largest, "batch")

    def moved(w: jax.Array, _: None) -> tuple[jax.Array, None]:
        return w - 0.1 * jax.lax.pmean(grads * kept, "batch"), None

    return jax.lax.scan(moved, weights, None, length=2)[0], (share, others, most)


def test_collectives_over_an_axis_of_one() -> None:
    (expected, reports) = jax.pmap(step, axis_name="batch", devices=jax.devices()[:1])(WEIGHTS[None], BATCH[None])
    traced = trace_step(step, (WEIGHTS, BATCH))
    assert "psum" not in str(traced.jaxpr)
    found = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(traced.jaxpr, traced.consts))(WEIGHTS, BATCH)
    for one, other in zip(found, jax.tree.leaves((expected, reports)), strict=True):
        assert one == pytest.approx(jax.device_get(other[0]), rel=1e-6)


def test_an_axis_that_has_no_meaning_with_one_member() -> None:
    def shifted(weights: jax.Array, batch: jax.Array) -> Any:
        grads = jax.grad(lambda w: (batch @ w).mean())(weights)
        return weights - jax.lax.ppermute(grads, "batch", [(0, 1), (1, 0)])

    with pytest.raises(InputError, match=r"ppermute over an axis of jax.pmap: .*tracing/test_named_axes.py:\d+"):
        trace_step(shifted, (WEIGHTS, BATCH))
