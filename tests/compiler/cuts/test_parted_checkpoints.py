"""Checkpoints around whole models in pipelines: parted between stages, with the numbers of one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.cost import is_heavy
from meshwright.compiler.cuts.parted_checkpoints import checkpoints_parted
from meshwright.compiler.inline import CHECKPOINTS
from meshwright.compiler.tracing.trace import trace_step
from tests.runtime.one_device import on_one_device

WEIGHTS = {"deep": jax.random.normal(jax.random.key(0), (6, 8, 8)) / 3, "head": jnp.eye(8)}
BATCH = jax.random.normal(jax.random.key(1), (8, 8))


def layered(w: Any, x: jax.Array) -> jax.Array:
    for layer in w["deep"]:
        x = jnp.tanh(x @ layer) * (1 + 0.1 * jnp.arange(8.0))
    return x @ w["head"]


def scanned(w: Any, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer), None), jnp.tanh(x @ w["head"]), w["deep"])
    return x @ w["head"].T


def two_results(w: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = layered(w, x)
    return y, (w["head"] ** 2).sum()


@cache
def step_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(w: Any, x: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda one, change: one - change, w, gradient), value

    return step


LOSSES = {
    "model": lambda w, x: (jax.checkpoint(layered)(w, x) ** 2).mean(),
    "loss": jax.checkpoint(lambda w, x: (layered(w, x) ** 2).mean()),
    "policy": lambda w, x: (jax.checkpoint(layered, policy=jax.checkpoint_policies.dots_saveable)(w, x) ** 2).mean(),
    "loop": lambda w, x: (jax.checkpoint(scanned)(w, x) ** 2).mean(),
    "results": lambda w, x: (jax.checkpoint(two_results)(w, x)[0] ** 2).mean() + jax.checkpoint(two_results)(w, x)[1],
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_share_the_work_and_return_what_one_device_does(name: str, stages: int) -> None:
    step = step_of(LOSSES[name])
    method = mw.PipeshardParallel(num_stages=stages, num_micro_batches=2)
    parallel = mw.parallelize(step, method=method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = parallel(WEIGHTS, BATCH)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(on_one_device(step, WEIGHTS, BATCH)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["model", "loss", "policy"])
def test_every_product_runs_again_as_it_did(name: str) -> None:
    step = trace_step(step_of(LOSSES[name]), (WEIGHTS, BATCH))
    parted = checkpoints_parted(step, 3)
    heavy = [eqn for eqn in parted.loss.eqns if is_heavy(eqn)]
    assert len(heavy) == 3
    assert {eqn.primitive.name for eqn in heavy} <= set(CHECKPOINTS)
    (before,) = (eqn for eqn in step.loss.eqns if eqn.primitive.name in CHECKPOINTS)
    assert all(eqn.params["policy"] is before.params["policy"] for eqn in heavy)


def test_rounds_of_a_loop_run_again_one_by_one() -> None:
    step = trace_step(step_of(LOSSES["loop"]), (WEIGHTS, BATCH))
    (loop,) = (eqn for eqn in checkpoints_parted(step, 2).loss.eqns if eqn.primitive.name == "scan")
    assert [eqn.primitive.name in CHECKPOINTS for eqn in loop.params["jaxpr"].jaxpr.eqns] == [True]


def test_checkpoints_of_layers_and_single_stages_stay() -> None:
    def by_layer(w: Any, x: jax.Array) -> jax.Array:
        for layer in w["deep"]:
            x = jax.checkpoint(lambda layer, x: jnp.tanh(x @ layer))(layer, x)
        return (x**2).mean()

    step = trace_step(step_of(by_layer), (WEIGHTS, BATCH))
    assert checkpoints_parted(step, 2) is step
    whole = trace_step(step_of(LOSSES["model"]), (WEIGHTS, BATCH))
    assert checkpoints_parted(whole, 1) is whole
