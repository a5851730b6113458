"""Prints and callbacks of a step show what one device shows, once, in the order of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw

SEEN: list[Any] = []
KEYS = jax.random.split(jax.random.key(0), 8)
STATE = (
    {
        "layers": [jax.random.normal(KEYS[at], (8, 8)) / 2 for at in range(4)],
        "stack": jax.random.normal(KEYS[5], (4, 8, 8)) / 2,
    },
    0,
)
BATCH = (jax.random.normal(KEYS[6], (16, 8)), jax.random.normal(KEYS[7], (16, 8)))


def see(*values: Any, **named: Any) -> None:
    SEEN.append(({name: float(value) for name, value in named.items()}, [np.array(value) for value in values]))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    x = jnp.tanh(x @ w)
    jax.debug.callback(see, x.mean(), number=1)
    return x


def rows(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    x = jnp.tanh(x @ w)
    jax.debug.callback(see, jnp.abs(x).max(), x[0], ordered=True)
    return x, None


def step_of(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in p["layers"]:
            x = checkpoint(layer)(x, w)
        x, _ = jax.lax.scan(rows, x, p["stack"], reverse=True)
        jax.debug.callback(see, x, p["layers"][0], 3)
        return jnp.mean((x - y) ** 2)

    def step(state: Any, batch: Any) -> Any:
        weights, count = state
        jax.debug.callback(see, count)
        value, gradient = jax.value_and_grad(loss)(weights, *batch)
        jax.debug.print("loss {:.3f}", value)
        norm = jnp.sqrt(sum(jnp.sum(one**2) for one in jax.tree.leaves(gradient)))
        jax.lax.cond(norm > 0.5, lambda: jax.debug.callback(see, norm), lambda: jax.debug.callback(see, -1))
        return (jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), count + 1), value

    return step


def seen(run: Callable[..., Any]) -> list[Any]:
    SEEN.clear()
    state = STATE
    for _ in range(2):
        state, value = run(state, BATCH)
    float(value)
    return list(SEEN)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """One device, line by line: with a checkpoint, JAX prints once more what it computes once more."""
    return seen(step_of(lambda fun: fun))


@pytest.mark.parametrize(
    ("method", "backend"),
    [
        (mw.DataParallel(num_micro_batches=4), "local"),
        (mw.PipeshardParallel(num_stages=2, num_micro_batches=4), "local"),
        (mw.ShardParallel(), "local"),
        (mw.PipeshardParallel(num_stages=2, num_micro_batches=2), "processes"),
    ],
    ids=["samples", "stages", "operators", "processes"],
)
@pytest.mark.filterwarnings("ignore::meshwright.compiler.idle_devices.IdleDevicesWarning")
def test_what_is_seen_is_what_one_device_shows(
    method: Any, backend: str, expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = mw.parallelize(step_of(jax.checkpoint), method=method, backend=backend)
    found = seen(run)
    run.close()
    assert [named for named, _ in found] == [named for named, _ in expected]
    for (_, own), (_, other) in zip(found, expected, strict=True):
        for one, two in zip(own, other, strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    printed = capsys.readouterr().out.split("loss ")[1:]
    assert len(printed) == 2
    assert float(printed[1]) < float(printed[0])


def test_a_step_in_one_piece_and_a_function_that_follows_show_it_too() -> None:
    def update(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.debug.callback(see, (x @ w).sum())
        return w * 0.5

    def evaluate(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.debug.callback(see, (x @ w).std())
        return x @ w

    SEEN.clear()
    whole = mw.parallelize(update, method=mw.DataParallel())
    weights = whole(STATE[0]["layers"][0], BATCH[0])
    follows = mw.parallelize(evaluate, method=mw.FollowParallel(whole, reads=lambda w, x: w))
    follows(weights, BATCH[0])
    own, other = (float(values[0]) for _, values in SEEN)
    assert own == pytest.approx(float((BATCH[0] @ STATE[0]["layers"][0]).sum()), rel=1e-5)
    assert other == pytest.approx(float((BATCH[0] @ weights).std()), rel=1e-5)


def test_what_no_sum_of_micro_batches_makes_is_made_of_the_whole_batch() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.debug.callback(see, jnp.median(jnp.tanh(x @ w)))
        return (x @ w).mean()

    SEEN.clear()
    weights, x = STATE[0]["layers"][0], BATCH[0]
    step = mw.parallelize(
        lambda w, x: w - jax.grad(loss)(w, x), method=mw.PipeshardParallel(num_stages=2, num_micro_batches=4)
    )
    made = step(weights, x)
    ((_, (found,)),) = SEEN
    assert float(found) == pytest.approx(float(jnp.median(jnp.tanh(x @ weights))), rel=1e-5)
    np.testing.assert_allclose(made, weights - jax.grad(lambda w: (x @ w).mean())(weights), rtol=0, atol=1e-6)
