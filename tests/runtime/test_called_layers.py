"""Deep models: their layers are called one by one, compiled once, and compute what one device computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op

WIDTH, SAMPLES = 8, 16
METHODS = {
    "data": mw.DataParallel(num_micro_batches=2),
    "zero 2": mw.Zero2Parallel(),
    "zero 3": mw.Zero3Parallel(num_micro_batches=2),
    "shard": mw.ShardParallel(),
    "shard on a grid": mw.ShardParallel(mesh_shape=(2, 4), num_micro_batches=2),
    "pipeline": mw.PipeshardParallel(num_stages=2, num_micro_batches=4),
    "zero bubble": mw.PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="zb-h1"),
    "recomputation": mw.PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="mario"),
    "two directions": mw.PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="chimera"),
    "auto": mw.Auto(num_micro_batches=2, most_stages=1),
}


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """Numbers of 64 bits."""
    with jax.enable_x64(True):
        yield


def layer(weights: Any, x: Any) -> Any:
    own = x - x.mean(-1, keepdims=True)
    own = own / jnp.sqrt((own**2).mean(-1, keepdims=True) + 1e-5) * weights["scale"]
    gate = jax.nn.softmax(own @ weights["up"])
    return x + jax.nn.gelu(own @ weights["up"]) @ weights["down"] * gate


def loss(weights: Any, batch: Any) -> Any:
    x = batch["x"] @ weights["tied"]
    for own in weights["layers"]:
        x = layer(own, x)
    return ((x @ weights["tied"].T - batch["x"]) ** 2).mean(), (x**2).sum()


def step(state: Any, batch: Any) -> Any:
    """Adam, its gradients clipped by their norm."""
    weights, first, second, count = state
    (value, squares), gradients = jax.value_and_grad(loss, has_aux=True)(weights, batch)
    norm = jnp.sqrt(sum((one**2).sum() for one in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda one: one * jnp.minimum(1.0, 1.0 / norm), gradients)
    count = count + 1
    first = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, first, gradients)
    second = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new * new, second, gradients)
    weights = jax.tree.map(
        lambda one, a, b: one - 0.01 * a / (jnp.sqrt(b / (1 - 0.99**count)) + 1e-8), weights, first, second
    )
    return (weights, first, second, count), (value, squares, norm)


def initial(layers: int) -> Any:
    drawn = np.random.default_rng(0)

    def own(*shape: int) -> Any:
        return jnp.asarray(drawn.normal(size=shape) * 0.3)

    weights = {
        "tied": own(WIDTH, WIDTH),
        "layers": [{"scale": own(WIDTH), "up": own(WIDTH, WIDTH), "down": own(WIDTH, WIDTH)} for _ in range(layers)],
    }
    first, second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    return weights, first, second, jnp.zeros((), jnp.int64)


def batches(steps: int) -> list[Any]:
    drawn = np.random.default_rng(1)
    return [{"x": jnp.asarray(drawn.normal(size=(SAMPLES, WIDTH)))} for _ in range(steps)]


def trained(run: Any, layers: int, steps: int = 3) -> list[Any]:
    state, told = initial(layers), []
    for batch in batches(steps):
        state, seen = run(state, batch)
        told.append(seen)
    return [np.asarray(one) for one in jax.tree.leaves((state, told))]


@cache
def alone(layers: int, steps: int = 3) -> list[Any]:
    """What one device computes, the same whatever it is held against."""
    return trained(jax.jit(step), layers, steps)


def parts(compiled: Any) -> Counter[str]:
    """How often each part of a task is called."""
    return Counter(one.executable for own in compiled.program.lists for one in own if one.op is Op.RUN and one.part)


@pytest.mark.filterwarnings("ignore::meshwright.compiler.idle_devices.IdleDevicesWarning")
@pytest.mark.parametrize(("name", "donate"), [*((name, False) for name in METHODS), ("data", True), ("pipeline", True)])
def test_layers_called_one_by_one_compute_what_one_device_does(name: str, donate: bool) -> None:
    parallel = mw.parallelize(step, method=METHODS[name], donate=donate)
    made = trained(parallel, 12)
    assert max(parts(parallel.compiled()).values()) >= 6
    for one, other in zip(made, alone(12), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_more_layers_are_no_more_executables() -> None:
    few, many = (
        mw.parallelize(step, method=mw.DataParallel()).lower(initial(layers), batches(1)[0]) for layers in (12, 24)
    )
    # Sums over all weights, too short to be cut with few layers.
    assert len(many.program.executables) <= len(few.program.executables) + 3
    assert sum(parts(many).values()) >= sum(parts(few).values()) + 3 * 12


def test_a_state_that_holds_an_array_twice_can_be_given_away() -> None:
    weights, first, _, count = initial(12)
    parallel, batch = mw.parallelize(step, method=mw.DataParallel(), donate=True), batches(1)[0]
    expected = jax.jit(step)((weights, first, first, count), batch)
    made = parallel((weights, first, first, count), batch)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_workers_call_layers_too() -> None:
    parallel = mw.parallelize(step, method=METHODS["pipeline"], backend="processes")
    try:
        made = trained(parallel, 12, steps=2)
    finally:
        parallel.close()
    for one, other in zip(made, alone(12, steps=2), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_timed_step_has_one_entry_for_each_layer() -> None:
    parallel = mw.parallelize(step, method=mw.DataParallel())
    state, batch = initial(12), batches(1)[0]
    _, (moments,) = parallel.recorded(state, batch)
    parts = [one.place for one in moments if parallel.compiled().program.lists[0][one.place].part]
    assert len(parts) >= 3 * 12


def test_saved_lists_say_which_part_is_which(tmp_path: Any) -> None:
    compiled = mw.parallelize(step, method=mw.DataParallel()).lower(initial(12), batches(1)[0])
    compiled.save(tmp_path / "step.json")
    assert str(mw.Listing.load(tmp_path / "step.json")) == str(compiled.program)
    assert "RUN  F0.0 part 2/" in str(compiled.program)
