"""Calls of a step by keywords and with static arguments."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import meshwright as mw
from tests.corpus.case import CLASSIFIER, classified, cross_entropy, mlp, sgd
from tests.corpus.table import arrays, difference


@partial(jax.jit, static_argnames="depth")
def jitted(params: Any, batch: Any, *, depth: int) -> Any:
    def loss(params: Any) -> Any:
        x = batch["x"]
        for layer in params[:depth]:
            x = jnp.tanh(x @ layer["w"])
        return cross_entropy(x[:, :4], batch["y"])

    value, grads = jax.value_and_grad(loss)(params)
    return sgd(params, grads), value


def test_what_jit_above_the_step_holds_static_is_static() -> None:
    params, batch = mlp(*CLASSIFIER), classified()
    step = mw.parallelize(jitted, method=mw.DataParallel(num_micro_batches=2))
    for depth in (1, 2):
        assert difference(arrays(step(params, batch, depth=depth)), arrays(jitted(params, batch, depth=depth))) < 1e-5
