"""Steps whose operators are split one by one end where the same steps on one device end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.method_plan import MethodPlan
from meshwright.compiler.methods.decided import FromPlan
from meshwright.compiler.methods.shard import ShardParallel
from meshwright.errors import InfeasibleError, InputError
from meshwright.runtime.parallelize import parallelize
from tests.compiler.models import accumulated, initial, largest_difference, step, tokens

STEPS, SAMPLES = 2, 16
SLOW: dict[str, Any] = {"flop_per_s": 1e8, "link_bytes_per_s": 1e9, "link_latency_s": 1e-8}
"""Devices so slow that tiny products are worth splitting."""


@pytest.mark.parametrize("shape", [(8,), (2, 4), (4, 2), (2, 2, 2)])
def test_parameters_after_some_steps_are_those_of_one_device(shape: tuple[int, ...]) -> None:
    run = parallelize(step, method=ShardParallel(mesh_shape=shape, **SLOW))
    state, reached, batch = initial(), initial(), tokens(SAMPLES)
    alone = jax.jit(accumulated, static_argnums=2)
    for _ in range(STEPS):
        state, value, extra = run(state, batch)
        reached, expected, expected_extra = alone(reached, batch, 1)
    assert abs(float(value) - float(expected)) < 1e-5
    assert largest_difference(state, reached) < 1e-5
    assert int(extra["right"]) == int(expected_extra["right"])


def network_loss(weights: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - batch["y"]) ** 2)


def network_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    weights, moments = state
    value, gradients = value_and_grad(network_loss)(weights, batch)
    changes, moments = optax.adam(1e-2).update(gradients, moments)
    return (optax.apply_updates(weights, changes), moments), value


def network(samples: int, wide: int, narrow: int, pairs: int) -> tuple[Any, Any]:
    drawn = np.random.default_rng(0)
    shapes = [(narrow, wide), (wide, narrow)] * pairs
    weights = [jnp.asarray(drawn.normal(size=shape) / shape[0] ** 0.5, jnp.float32) for shape in shapes]
    batch = {name: jnp.asarray(drawn.normal(size=(samples, narrow)), jnp.float32) for name in "xy"}
    return (weights, optax.adam(1e-2).init(weights)), batch


def test_columns_and_rows_of_weights_and_of_their_moments_are_split() -> None:
    state, batch = network(8, 128, 32, 2)
    run = parallelize(network_step, method=ShardParallel(num_micro_batches=2, mesh_shape=(8,), **SLOW))
    (weights, moments), value = run(state, batch)
    alone = jax.value_and_grad(network_loss)(state[0], batch)
    assert float(value) == pytest.approx(float(alone[0]), abs=1e-5)
    changes, _ = optax.adam(1e-2).update(alone[1], state[1])
    assert largest_difference(weights, optax.apply_updates(state[0], changes)) < 1e-5
    for values in (weights, moments[0].mu, moments[0].nu):
        assert [leaf.addressable_shards[0].data.shape for leaf in values] == [(32, 16), (16, 32)] * 2
    text = run.lower(state, batch).sharding.explain()
    assert "dot_general float32[4,128]  4,32 @ 32,128/x -> 4,128/x" in text
    assert "dot_general float32[4,32]  4,128/x @ 128/x,32 -> 4,32" in text
    assert text.count("next ") == 4


def test_data_ranks_of_a_grid_reduce_their_gradients_once_a_step() -> None:
    state, batch = network(512, 128, 32, 2)
    method = ShardParallel(num_micro_batches=4, mesh_shape=(2, 4), **SLOW)
    compiled = parallelize(network_step, method=method).lower(state, batch)
    sent = {name: found.of_arrays for name, found in compiled.collectives().items()}
    # Within a rank columns and rows alternate: one all-reduce a pair forward, one backward but for the first.
    assert sent["F0"] == {"all-reduce": 4 * 2}
    assert sent["B0"] == {"all-reduce": 1}
    assert sent["B0+"] == {"all-reduce": 3 * 1}
    assert sent["gradients0"] == {"all-reduce": 1}
    assert "2 data ranks (axis x)" in compiled.explain()
    here, there = state, state
    for _ in range(2):
        there, value = compiled(there, batch)
        expected, gradients = jax.value_and_grad(network_loss)(here[0], batch)
        changes, moments = optax.adam(1e-2).update(gradients, here[1])
        here = optax.apply_updates(here[0], changes), moments
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert largest_difference(there, here) < 1e-5
    again = parallelize(network_step, method=FromPlan(plan=MethodPlan.from_json(compiled.plan.to_json())))
    assert again.lower(state, batch).collectives() == compiled.collectives()


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    state, batch = network(8, 32, 8, 1)
    with pytest.raises(InputError, match="mesh_shape = \\(3, 2\\) on 8 devices"):
        parallelize(network_step, method=ShardParallel(mesh_shape=(3, 2)))(state, batch)
    with pytest.raises(InfeasibleError, match="100 are allowed"):
        parallelize(network_step, method=ShardParallel(memory_bytes=100.0)).lower(state, batch)
    with pytest.raises(InputError) as caught:
        ShardParallel(mesh_shape=(1, 2, 2, 2), flop_per_s=0.0)
    assert len(caught.value.problems) == 2


def test_loops_checkpoints_and_three_axes() -> None:
    drawn = np.random.default_rng(0)
    weights = {
        "layers": jnp.asarray(drawn.normal(size=(3, 16, 16)) / 4, jnp.float32),
        "head": jnp.asarray(drawn.normal(size=(16, 24)) / 4, jnp.float32),
    }
    batch = jnp.asarray(drawn.normal(size=(16, 16)), jnp.float32)

    def loss(own: Any, x: jax.Array) -> jax.Array:
        def layer(y: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.relu(y @ weight) + y, None

        y, _ = jax.lax.scan(jax.checkpoint(layer), x, own["layers"])
        return jnp.mean(jax.checkpoint(lambda z: jax.nn.gelu(z @ own["head"]))(y) ** 2)

    def train(own: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = value_and_grad(loss)(own, x)
        return jax.tree.map(lambda weight, change: weight - 0.1 * change, own, gradients), value

    reached, value = parallelize(train, method=ShardParallel(mesh_shape=(2, 2, 2), **SLOW))(weights, batch)
    expected, expected_value = train(weights, batch)
    assert float(value) == pytest.approx(float(expected_value), abs=1e-5)
    assert largest_difference(reached, expected) < 1e-5


def test_experts_of_a_grouped_product_are_split_where_memory_wants_it() -> None:
    drawn = np.random.RandomState(0)
    weights = {
        "up": jnp.asarray(drawn.randn(4, 32, 64) / 6, jnp.float32),
        "down": jnp.asarray(drawn.randn(4, 64, 32) / 6, jnp.float32),
    }

    def loss(own: Any, x: jax.Array) -> jax.Array:
        rows = jnp.full((4,), len(x) // 4, jnp.int32)
        return (jax.lax.ragged_dot(jnp.tanh(jax.lax.ragged_dot(x, own["up"], rows)), own["down"], rows) ** 2).mean()

    def descent(own: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda one, change: one - 0.1 * change, own, jax.grad(loss)(own, x))

    x = jnp.asarray(drawn.randn(64, 32), jnp.float32)
    method = ShardParallel(devices=jax.devices()[:4], memory_bytes=1e5)
    found = parallelize(descent, method=method)(weights, x)
    for name, expected in descent(weights, x).items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(expected), rtol=1e-5, atol=1e-6)
        assert found[name].addressable_shards[0].data.size == found[name].size // 4
