"""Steps on eight devices end where the same steps on one device end."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from meshwright.app.step_timeline import timeline
from meshwright.compiler.idle_devices import IdleDevicesWarning
from meshwright.compiler.lowering.whole import WholeStepWarning
from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.methods.data import DataParallel, Zero2Parallel, Zero3Parallel
from meshwright.compiler.methods.method import Method
from meshwright.compiler.methods.pipeshard import LocalPipeline, PipeshardParallel
from meshwright.errors import InputError
from meshwright.runtime.parallelize import parallelize
from tests.compiler.models import accumulated, initial, largest_difference, step, tokens

STEPS, SAMPLES = 3, 16


@cache
def expected(micro_batches: int) -> tuple[Any, Any, Any]:
    run = jax.jit(accumulated, static_argnums=2)
    state = initial()
    for _ in range(STEPS):
        state, value, extra = run(state, tokens(SAMPLES), micro_batches)
    return state, value, extra


METHODS = [
    DataParallel(num_micro_batches=2),
    Zero2Parallel(num_micro_batches=2),
    Zero3Parallel(),
    LocalPipeline(num_stages=4, num_micro_batches=4),
    PipeshardParallel(num_stages=4, num_micro_batches=4),
    PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="interleaved", zero=2),
    PipeshardParallel(num_stages=4, num_micro_batches=8, schedule="zb-h1"),
    PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="dualpipev"),
    PipeshardParallel(num_stages=4, num_micro_batches=4, schedule="chimera"),
]


@cache
def parallel(method: Method) -> Any:
    """The step under a method, compiled once for all tests."""
    return parallelize(step, method=method)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{type(method).__name__}-{method.pipeline[0]}")
def test_parameters_after_some_steps_are_those_of_one_device(method: Method) -> None:
    run = parallel(method)
    state, batch = initial(), tokens(SAMPLES)
    for _ in range(STEPS):
        state, value, extra = run(state, batch)
    reached, expected_value, expected_extra = expected(method.num_micro_batches)
    assert abs(float(value) - float(expected_value)) < 1e-5
    assert largest_difference(state, reached) < 1e-5
    assert int(extra["right"]) == int(expected_extra["right"])
    assert extra["logits"].shape == expected_extra["logits"].shape


def test_zero_3_holds_no_parameter_whole() -> None:
    run = parallel(Zero3Parallel())
    (weights, _), _, _ = run(initial(), tokens(SAMPLES))
    for leaf in jax.tree.leaves(weights):
        assert leaf.addressable_shards[0].data.size * 8 == leaf.size


def test_stages_lie_on_their_own_devices() -> None:
    run = parallel(PipeshardParallel(num_stages=4, num_micro_batches=4))
    (weights, _), _, _ = run(initial(), tokens(SAMPLES))
    for number, layer in enumerate(weights["layers"]):
        devices = {device.id for leaf in jax.tree.leaves(layer) for device in leaf.devices()}
        assert devices == {2 * number, 2 * number + 1}


def test_compiling_runs_nothing_and_says_what_will_run() -> None:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (initial(), tokens(SAMPLES)))
    compiled = parallelize(step, method=PipeshardParallel(num_micro_batches=4)).lower(*shapes)
    text = str(compiled.program)
    assert "RUN  F0.0" in text
    assert "SEND SEND_F0.0  to mesh 1" in text
    assert compiled.verified.messages > 8
    assert len(compiled.verified.peak_bytes) == 2


def test_methods_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="num_stages=2"):
        parallelize(step, method=PipeshardParallel(num_stages=3, num_micro_batches=4))(initial(), tokens(SAMPLES))


def test_a_batch_that_does_not_split_stays_in_one_piece() -> None:
    run = parallelize(lambda w, x: w - jax.grad(lambda w: (x @ w).mean())(w), method=DataParallel(num_micro_batches=2))
    words = "without its 2 micro-batches: a batch of 5 does not split .*num_micro_batches=1, a batch of 6"
    with pytest.warns(WholeStepWarning, match=words), pytest.warns(IdleDevicesWarning):
        run(jnp.ones((3, 2)), jnp.ones((5, 3)))


def test_numbers_of_python_leave_the_types_of_arrays_as_they_are() -> None:
    def descent(state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: (x @ w).mean())(state["w"])
        return {"w": state["w"] - state["rate"] * gradient, "rate": state["rate"] * 0.5}

    run, state = parallelize(descent, method=DataParallel()), {"w": jnp.ones((3, 2), jnp.bfloat16), "rate": 0.1}
    batch = jnp.ones((8, 3), jnp.bfloat16)
    for _ in range(2):
        state = run(state, batch)
    assert state["w"].dtype == jnp.bfloat16
    assert state["rate"].weak_type
    assert float(state["rate"]) == pytest.approx(0.025)
    assert len(run._compiled) == 1


def test_the_batch_may_change_its_size() -> None:
    run = parallelize(step, method=DataParallel())
    state, small, _ = run(initial(), tokens(8))
    _, large, _ = run(state, tokens(16))
    assert np.isfinite([float(small), float(large)]).all()


def dropout_loss(layers: Any, batch: Any, key: jax.Array) -> jax.Array:
    x, wanted = batch
    for number, layer in enumerate(layers):
        x = jnp.tanh(x @ layer["w"] + layer["b"])
        kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.8, x.shape)
        x = jnp.where(kept, x / 0.8, 0.0)
    return ((x - wanted) ** 2).sum()


MOMENTUM = optax.sgd(0.01, momentum=0.9)


def noisy_step(state: Any, batch: Any, gradients_of: Any = None) -> tuple[Any, jax.Array]:
    """A sum as loss, dropout with a key of the state, weights that are made of the state's, and a counter."""
    layers, optimizer, key, count = state
    key, now = jax.random.split(key)
    scaled = jax.tree.map(lambda array: array * 1.5, layers)
    value, gradients = (gradients_of or value_and_grad(dropout_loss))(scaled, batch, now)
    changes, optimizer = MOMENTUM.update(gradients, optimizer, layers)
    return (optax.apply_updates(layers, changes), optimizer, key, count + 1), value


def test_random_keys_sums_and_derived_weights() -> None:
    drawn = np.random.RandomState(0)
    layers = [{"w": jnp.asarray(drawn.randn(8, 8) * 0.3, jnp.float32), "b": jnp.zeros(8)} for _ in range(4)]
    state = (layers, MOMENTUM.init(layers), jax.random.key(3), jnp.zeros((), jnp.int32))
    batch = tuple(jnp.asarray(drawn.randn(8, 8), jnp.float32) for _ in range(2))
    method = PipeshardParallel(num_stages=2, num_micro_batches=4, devices=jax.devices()[:4])
    run = parallelize(noisy_step, method=method)
    alone = jax.jit(partial(noisy_step, gradients_of=jax.value_and_grad(dropout_loss)))
    there = here = state
    for _ in range(2):
        (there, value), (here, expected) = run(there, batch), alone(here, batch)
        assert abs(float(value) - float(expected)) < 1e-4
    assert largest_difference((there[0], there[1], there[3]), (here[0], here[1], here[3])) < 1e-5
    assert (jax.random.key_data(there[2]) == jax.random.key_data(here[2])).all()


@jax.jit
def _halved(x: jax.Array) -> jax.Array:
    return jax.jit(jnp.tanh)(x) / 2


def nested_loss(layers: Any, batch: Any) -> jax.Array:
    """Functions of `jit` in each other, checkpoints and a loop between the layers."""
    x, wanted = batch
    for layer in layers:
        x = jax.checkpoint(lambda x, layer: _halved(x @ layer["w"] + layer["b"]))(x, layer)
    x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=2)
    return ((x - wanted) ** 2).mean()


@jax.jit
def nested_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    """`jit` around the whole step and around its update."""
    value, gradients = value_and_grad(nested_loss)(state, batch)
    return jax.jit(lambda a, b: jax.tree.map(lambda x, y: x - 0.1 * y, a, b))(state, gradients), value


@pytest.mark.parametrize("schedule", ["zb-h1", "varuna"])
def test_jit_checkpoints_and_loops_inside_and_batches_of_another_size(schedule: str) -> None:
    drawn = np.random.RandomState(0)
    state = [{"w": jnp.asarray(drawn.randn(4, 4), jnp.float32), "b": jnp.zeros(4)} for _ in range(4)]
    run = parallelize(nested_step, method=LocalPipeline(num_stages=2, num_micro_batches=4, schedule=schedule))
    there = here = state
    for samples in (8, 16, 8):
        batch = tuple(jnp.asarray(drawn.randn(samples, 4), jnp.float32) for _ in range(2))
        (there, value), (here, expected) = run(there, batch), nested_step(here, batch)
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert largest_difference(there, here) < 1e-6


@pytest.mark.parametrize(("given", "fix"), [("dp", r"DataParallel\(\)"), (Zero3Parallel, r"method=Zero3Parallel\(\)")])
def test_what_is_no_method_is_refused_at_once(given: Any, fix: str) -> None:
    with pytest.raises(InputError, match=fix):
        parallelize(step, method=given)


def test_a_timeline_is_of_a_step_that_parallelize_made() -> None:
    with pytest.raises(InputError, match=r"timeline of function.*\n.*\n.*trace\(plan\)"):
        timeline(step, initial(), tokens(SAMPLES))


def test_a_step_tells_of_every_call_that_is_done() -> None:
    told: list[Any] = []
    run = parallelize(step, method=DataParallel(num_micro_batches=2), on_step=told.append)
    state = initial()
    for _ in range(2):
        state, value, _ = run(state, tokens(SAMPLES))
    assert [one.number for one in told] == [0, 1]
    assert float(told[1].result[1]) == float(value)
    assert all(one.seconds > 0 for one in told)
    with pytest.raises(InputError, match="on_step is 7"):
        parallelize(step, on_step=7)
