"""Steps that depend on Python between their calls: refused with the line, in a microsecond where they do not."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright.errors import InputError

WEIGHTS, BATCH = jnp.ones((3, 2)), jnp.ones((8, 3))


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return (x @ w).mean()


def test_a_rate_of_python_that_changes_between_calls_is_refused() -> None:
    settings = SimpleNamespace(rate=0.1, name="first")

    @mw.parallelize(method=mw.DataParallel())  # type: ignore[untyped-decorator]
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - settings.rate * jax.grad(loss)(w, x)

    after = step(WEIGHTS, BATCH)
    settings.name = "second"
    step(after, BATCH)
    settings.rate = 0.01
    with pytest.raises(InputError, match=r"settings.rate was 0.1 and is 0.01: .*test_python_effects.py:\d+ \(step\)"):
        step(after, BATCH)
    settings.rate = 0.1
    step(after, BATCH)


def test_a_state_that_grows_with_each_call_is_refused_with_the_line_that_makes_it() -> None:
    @mw.parallelize(method=mw.DataParallel())  # type: ignore[untyped-decorator]
    def step(state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        w, history = state
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - gradient, jnp.concatenate([history, value[None]])

    state = step(step((WEIGHTS, jnp.zeros(1)), BATCH), BATCH)
    with pytest.raises(InputError, match=r"state\[1\] of shape \(1,\), then \(2,\), then \(3,\): .*effects.py:\d+"):
        step(state, BATCH)


def test_states_of_other_sizes_that_no_call_has_returned_are_compiled() -> None:
    @mw.parallelize(method=mw.DataParallel())  # type: ignore[untyped-decorator]
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jax.grad(loss)(w, x)

    for size in (2, 4, 6, 8):
        assert step(jnp.ones((3, size)), BATCH).shape == (3, size)
    for rows in (8, 16, 24, 32):
        step(WEIGHTS, jnp.ones((rows, 3)))


def test_several_arguments_that_can_be_the_batch_do_not_hide_what_is_printed() -> None:
    @mw.parallelize(method=mw.DataParallel())  # type: ignore[untyped-decorator]
    def step(w: jax.Array, moments: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        print("loss", loss(w, x))
        return w - moments.sum() * jax.grad(loss)(w, x), moments

    with pytest.raises(InputError, match=r"step at .* prints \(loss"):
        step(WEIGHTS, jnp.ones(8), BATCH)
