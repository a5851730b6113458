"""Results beside a loss that need all samples at once: exact under micro-batches, with nothing computed twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.tracing.trace import trace_step
from meshwright.errors import InputError
from tests.runtime.one_device import on_one_device

WEIGHTS = {"w": jax.random.normal(jax.random.key(0), (4, 8)), "v": jax.random.normal(jax.random.key(1), (8, 4))}
STATE = {**WEIGHTS, "average": jnp.ones(4)}
BATCH = jax.random.normal(jax.random.key(2), (16, 4))


def model(own: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ own["w"]) @ own["v"]


def deviations(own: Any, x: jax.Array, made: jax.Array) -> Any:
    return {
        "all": made.std(),
        "by entry": made.std(0),
        "correlated": jnp.corrcoef(made.T)[0, 1],
        "of samples": x.std(),
        "of weights": own["w"].std(),
        "each": made,
        "mean": made.mean(),
    }


def ordered(own: Any, x: jax.Array, made: jax.Array) -> Any:
    return {"median": jnp.sort(made.sum(-1))[8], "worst": jnp.argmax((made**2).sum(-1))}


def averaged(own: Any, x: jax.Array, made: jax.Array) -> Any:
    return 0.9 * own["average"] + 0.1 * made.var(0)


@cache
def step_of(beside: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def loss(own: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        made = model(own, x)
        return ((made - x) ** 2).mean(), beside(own, x, made)

    def step(own: Any, x: jax.Array) -> Any:
        (value, said), slopes = jax.value_and_grad(loss, has_aux=True)(own, x)
        after = jax.tree.map(lambda one, slope: one - 0.1 * slope, own, slopes)
        return after, value, said, jax.tree.map(lambda one: one * 2, said)

    return step


@pytest.mark.parametrize("beside", [deviations, ordered, averaged])
@pytest.mark.parametrize(
    "method",
    [
        mw.DataParallel(num_micro_batches=2),
        mw.Zero2Parallel(num_micro_batches=2),
        mw.PipeshardParallel(num_stages=2, num_micro_batches=4),
    ],
    ids=["data", "zero2", "pipeline"],
)
def test_they_are_those_of_the_whole_batch(beside: Any, method: Any) -> None:
    step = step_of(beside)
    found = mw.parallelize(step, method=method)(STATE, BATCH)
    expected = on_one_device(step, STATE, BATCH)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nothing_runs_twice() -> None:
    step = trace_step(step_of(deviations), (STATE, BATCH), micro_batches=2)
    assert step.meeting == ""
    products = [eqn for eqn in step.before if eqn.primitive.name == "dot_general"]
    assert not products


def test_a_loss_that_meets_late_beside_such_results_is_met_as_ever() -> None:
    def loss(own: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        made = model(own, x)
        return ((made - x) ** 2).mean() + made.std(), made.std()

    def step(own: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(own, x)

    traced = trace_step(step, (WEIGHTS, BATCH), micro_batches=2)
    assert "computed twice" in traced.meeting


def test_most_of_the_work_for_all_samples_is_refused() -> None:
    def beside(own: Any, x: jax.Array, made: jax.Array) -> Any:
        centered = made - made.mean(0)
        return model(own, jnp.tanh(centered)) @ model(own, jnp.tanh(centered)).T

    with pytest.raises(InputError, match="statistics of the batch are used with its samples"):
        trace_step(step_of(beside), (STATE, BATCH), micro_batches=2)
