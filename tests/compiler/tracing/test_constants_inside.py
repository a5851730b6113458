"""Constants of a step that its loss reads are known inside of the loss, too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.tracing.trace import trace_step
from tests.compiler.tracing.test_trace import BATCH, WEIGHTS


def picked(weights: jax.Array, batch: jax.Array, first: int = 0) -> Any:
    rows, labels = jnp.arange(len(batch)), jnp.argmax(batch, -1)
    rows = rows if first == 0 else rows - first
    loss, grads = jax.value_and_grad(lambda w: (batch @ w)[rows, labels].mean())(weights)
    return weights - grads, loss


def test_rows_numbered_outside_of_the_loss() -> None:
    traced = trace_step(picked, (WEIGHTS, BATCH), micro_batches=4)
    assert traced.micro_batches == 4
    assert any(eqn.primitive.name == "iota" for eqn in traced.loss.eqns)


def test_rows_of_other_samples_are_picked_for_all_samples_at_once() -> None:
    traced = trace_step(lambda w, b: picked(w, b, 1), (WEIGHTS, BATCH), micro_batches=4)
    assert "samples meet" in traced.meeting


def test_what_reads_the_batch_stays_outside() -> None:
    def step(weights: jax.Array, batch: jax.Array) -> Any:
        shifted = jnp.arange(3.0) + batch
        loss, grads = jax.value_and_grad(lambda w: (shifted @ w).mean())(weights)
        return weights - grads, loss

    traced = trace_step(step, (WEIGHTS, BATCH), micro_batches=4)
    assert not any(eqn.primitive.name == "iota" for eqn in traced.loss.eqns)


def test_complex_weights_have_gradients() -> None:
    weights = WEIGHTS * (1 + 2j)

    def step(weights: jax.Array, batch: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda w: (jnp.abs(batch @ w) ** 2).mean())(weights)
        return weights - 0.1 * grads.conj(), loss

    traced = trace_step(step, (weights, BATCH))
    found, loss = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(traced.jaxpr, traced.consts))(weights, BATCH)
    expected, expected_loss = step(weights, BATCH)
    assert jax.device_get(found) == pytest.approx(jax.device_get(expected), rel=1e-6)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
