"""Calls of a step by keywords and with static arguments, and steps of which a call runs nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import meshwright as mw
from meshwright.compiler.tracing.calls import CallForm
from meshwright.errors import InputError
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


def yields(params: Any, batch: Any) -> Any:
    yield sgd(params, params)


async def awaits(params: Any, batch: Any) -> Any:
    return sgd(params, params)


async def does_both(params: Any, batch: Any) -> Any:
    yield sgd(params, params)


def hands_on(params: Any, batch: Any) -> Any:
    return yields(params, batch)


@pytest.mark.parametrize(
    ("step", "said", "fix"),
    [
        (yields, "yields at .* returns a generator", "in place of yield"),
        (awaits, "awaits at .* returns a coroutine", "def in place of async def"),
        (does_both, "does_both at .* returns a generator", "in place of yield"),
        (hands_on, "hands_on at .* returns a generator", "in place of yield"),
    ],
)
def test_a_step_of_which_a_call_runs_nothing_is_refused(step: Any, said: str, fix: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        mw.parallelize(step, method=mw.DataParallel())(mlp(*CLASSIFIER), classified())
    assert fix in error.value.problems[0].fix


def test_modules_are_found_wherever_they_are_in_an_argument() -> None:
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    form = CallForm(fun=lambda *given: given)
    for state, found in ((model, True), ({"a": [model, 1.0]}, True), (mlp(*CLASSIFIER), False), (2.0, False)):
        assert bool(form.call((state, classified()), {}).objects) is found
