"""Steps that depend on Python between their calls: refused with the line, in a microsecond where they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import checkify, io_callback

import meshwright as mw
from meshwright.compiler.python_effects.lost_state import LostStateWarning
from meshwright.errors import InputError

WEIGHTS, BATCH = jnp.ones((3, 2)), jnp.ones((8, 3))
HALVES = mw.DataParallel(num_micro_batches=2, devices=jax.devices()[:4])


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


def test_arrays_around_a_step_that_are_others_by_now_are_refused() -> None:
    held = {"shift": jnp.ones((8, 3)), "unread": jnp.ones(2)}
    settings = SimpleNamespace(mean=np.float32([1, 2, 3]))
    step = mw.parallelize(
        lambda w, x: w - jax.grad(loss)(w, x + held["shift"] - settings.mean), method=mw.DataParallel()
    )
    step(WEIGHTS, BATCH)
    held = {"shift": held["shift"] + 0, "unread": jnp.zeros(2)}
    settings.mean = np.float32([1, 2, 3])
    step(WEIGHTS, BATCH)
    settings.mean = np.float32([1, 2, 4])
    with pytest.raises(InputError, match=r"settings.mean holds other arrays than then: .*effects.py:\d+"):
        step(WEIGHTS, BATCH)
    settings.mean = np.float32([1, 2, 3])
    held = {"shift": held["shift"] * 2, "unread": jnp.ones(2)}
    with pytest.raises(InputError, match=r"held holds other arrays than then: .*effects.py:\d+"):
        step(WEIGHTS, BATCH)


def test_names_of_samples_in_the_batch_are_refused_once_every_call_has_compiled() -> None:
    step = mw.parallelize(lambda w, batch: w - jax.grad(loss)(w, batch["x"]), method=mw.DataParallel())
    for number in range(7):
        step(WEIGHTS, {"x": BATCH, "file": f"{number}.png"})
    with pytest.raises(InputError, match=r"arguments\[1\]\['file'\] = '7.png'"):
        step(WEIGHTS, {"x": BATCH, "file": "7.png"})


def test_moments_that_do_not_come_back_are_said() -> None:
    optimizer = optax.adam(0.1)

    def step(w: jax.Array, moments: Any, x: jax.Array) -> Any:
        updates, moments = optimizer.update(jax.grad(loss)(w, x), moments)
        return optax.apply_updates(w, updates)

    run = mw.parallelize(step, method=mw.DataParallel(), batch_argnums=2)
    with pytest.warns(LostStateWarning, match="takes ScaleByAdamState of an optimizer and does not return it"):
        run(WEIGHTS, optimizer.init(WEIGHTS), BATCH)


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


def test_a_step_that_a_class_declares_takes_its_object() -> None:
    class Trainer:
        rate = 0.5

        @mw.parallelize(method=mw.DataParallel())  # type: ignore[untyped-decorator]
        def step(self, w: jax.Array, x: jax.Array) -> jax.Array:
            return w - self.rate * jax.grad(loss)(w, x)

    np.testing.assert_allclose(Trainer().step(WEIGHTS, BATCH), WEIGHTS - 0.5 * jax.grad(loss)(WEIGHTS, BATCH))


def test_what_is_written_without_an_answer_is_written_once_for_the_whole_batch() -> None:
    seen: list[float] = []

    def told(w: jax.Array, x: jax.Array) -> jax.Array:
        io_callback(lambda value: seen.append(float(value)), None, value := loss(w, x), ordered=True)
        return value

    step = mw.parallelize(lambda w, x: w - jax.grad(told)(w, x), method=HALVES)
    step(WEIGHTS, jnp.arange(24.0).reshape(8, 3))
    assert seen == [34.5]


def test_what_python_answers_in_a_step_is_asked_for_elsewhere() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        drawn = io_callback(np.random.rand, jax.ShapeDtypeStruct((), x.dtype))
        return w - drawn * jax.grad(loss)(w, x)

    with pytest.raises(InputError, match=r"does more than compute \(io_callback\): .*effects.py:\d+") as error:
        mw.parallelize(step, method=HALVES)(WEIGHTS, BATCH)
    assert "jax.pure_callback" in error.value.problems[0].fix


@pytest.mark.filterwarnings("ignore::meshwright.compiler.lowering.whole.WholeStepWarning")
@pytest.mark.parametrize("inside", [False, True])
def test_errors_that_are_checked_for_are_those_of_one_device(inside: bool) -> None:
    def small(w: jax.Array, x: jax.Array) -> jax.Array:
        value = loss(w, x)
        if inside:
            checkify.check(value < 1, "a loss of {value}", value=value)
        return value

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        value, gradient = jax.value_and_grad(small)(w, x)
        if not inside:
            checkify.check(value < 1, "a loss of {value}", value=value)
        return w - gradient

    errors, _ = mw.parallelize(checkify.checkify(step), method=HALVES)(WEIGHTS, BATCH)
    assert errors.get().startswith("a loss of 3.0")


@pytest.mark.parametrize("method", [mw.ShardParallel(), mw.PipeshardParallel(num_stages=2)], ids=["shard", "pipeline"])
def test_python_is_called_with_whole_values(method: Any) -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        form = jax.ShapeDtypeStruct(x.shape[:1], x.dtype)
        weights = jax.pure_callback(lambda x: np.asarray(x).sum(1), form, x, vmap_method="expand_dims")
        return w - jax.grad(lambda w: ((x @ w).mean(1) * weights).mean())(w)

    rows = jnp.arange(24.0).reshape(8, 3) / 24
    np.testing.assert_allclose(mw.parallelize(step, method=method)(WEIGHTS, rows), step(WEIGHTS, rows), rtol=1e-5)


@pytest.mark.parametrize("around", [jax.jit, jax.grad, lambda fun: mw.parallelize(fun, method=mw.DataParallel())])
def test_a_step_inside_of_what_jax_traces_is_told_to_stand_outside(around: Any) -> None:
    step = mw.parallelize(loss, method=mw.DataParallel())
    with pytest.raises(InputError, match=r"loss at .*effects.py:\d+ is called inside of a function that JAX traces"):
        around(lambda w, x: step(w, x))(WEIGHTS, BATCH)


def test_what_is_no_function_is_no_step() -> None:
    with pytest.raises(InputError, match="parallelize is given 3"):
        mw.parallelize(3)
