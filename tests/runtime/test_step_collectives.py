"""Whole steps as XLA compiled them: how often they communicate, and that they send the bytes the planner prices."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.compiler.methods.method import Method
from meshwright.compiler.sharding.hlo_collectives import Collectives, in_all
from meshwright.kernels.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from meshwright.kernels.lines import LevelRates, group_span
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.training.run import Training
from meshwright.specs.row import PlanRow
from tests.compiler.sharding.test_plan_quality import (
    experts_loss,
    experts_shapes,
    priced_bytes,
    shapes,
    transformer,
    transformer_loss,
)

DEVICES, WIDTH, MICRO_BATCHES = 8, 16, 3
LAYERS = 4
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4
BYTES = LevelRates(bandwidth_bytes_per_s=1.0, efficiency=1.0, latency_s=0.0, base_latency_s=0.0)
"""Links on which seconds are bytes out of one device."""


def loss(weights: Any, x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def pairs(weights: Any, x: jax.Array) -> jax.Array:
    """Every sample against every other."""
    x = x @ weights[0]
    return jnp.mean(jax.nn.log_softmax(x @ x.T))


def train(of: Any = loss) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        """Clipped by the norm of all gradients, Adam."""
        weights, moments = state
        value, gradients = mw.value_and_grad(of)(weights, x)
        changes, moments = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)).update(gradients, moments)
        return (optax.apply_updates(weights, changes), moments), value

    return step


def compiled(method: Method, of: Any = loss, layers: int = LAYERS) -> CompiledStep:
    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * layers
    moments = jax.eval_shape(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)).init, weights)
    samples = jax.ShapeDtypeStruct((DEVICES * MICRO_BATCHES, WIDTH), jnp.float32)
    found: CompiledStep = mw.parallelize(train(of), method=method, loss="mean").lower((weights, moments), samples)
    return found


@cache
def sent(sharding: str) -> dict[str, Collectives]:
    method: Method = {
        "z0": mw.DataParallel(num_micro_batches=MICRO_BATCHES),
        "z1": mw.PipeshardParallel(num_stages=1, zero=1, num_micro_batches=MICRO_BATCHES),
        "z2": mw.Zero2Parallel(num_micro_batches=MICRO_BATCHES),
        "z2 split": mw.PipeshardParallel(num_stages=1, zero=2, split_sums=True, num_micro_batches=MICRO_BATCHES),
        "z3": mw.Zero3Parallel(num_micro_batches=MICRO_BATCHES),
    }[sharding]
    return compiled(method).collectives()


COUNTS = {
    "z0": {"all-reduce": 1},
    "z1": {"reduce-scatter": 1, "all-gather": 1},
    "z2": {"reduce-scatter": 1, "all-gather": 1},
    "z2 split": {"reduce-scatter": MICRO_BATCHES, "all-gather": 1},
    "z3": {"reduce-scatter": MICRO_BATCHES, "all-gather": 2 * MICRO_BATCHES},
}
"""Of a step, its loss and norm apart."""


@pytest.mark.parametrize("sharding", COUNTS)
def test_collectives_of_a_step(sharding: str) -> None:
    whole = in_all(sent(sharding).values())
    assert whole.of_arrays == COUNTS[sharding]
    # The loss; where gradients are split, also the squares of their norm, all at once.
    assert whole.numbers["all-reduce"] == (1 if sharding == "z0" else 2)


@pytest.mark.parametrize("sharding", COUNTS)
def test_bytes_of_a_step_are_the_planner_s(sharding: str) -> None:
    inside = group_span(1, DEVICES, (DEVICES,))
    gather, scatter, reduce = (
        float(one(WEIGHT_BYTES, inside=inside, rates=(BYTES,)))
        for one in (all_gather_s, reduce_scatter_s, all_reduce_s)
    )
    # The first layer's backward needs no gather: nothing in it reads the first weights.
    unread = gather / LAYERS
    priced = {
        "z0": reduce,
        "z1": scatter + gather,
        "z2": scatter + gather,
        "z2 split": MICRO_BATCHES * scatter + gather,
        "z3": MICRO_BATCHES * (2 * gather - unread + scatter),
    }
    arrays = {name: one for name, one in sent(sharding).items() if one.of_arrays}
    assert in_all(arrays.values()).sent_bytes == pytest.approx(priced[sharding], rel=0.01)


def test_with_split_parameters_no_device_holds_whole_ones() -> None:
    step = compiled(mw.Zero3Parallel(num_micro_batches=MICRO_BATCHES))
    drawn = np.random.RandomState(0)
    weights = [jnp.asarray(drawn.randn(WIDTH, WIDTH) * 0.3, jnp.float32) for _ in range(LAYERS)]
    moments = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)).init(weights)
    state, _ = step((weights, moments), jnp.ones((DEVICES * MICRO_BATCHES, WIDTH)))
    for leaf in jax.tree.leaves(state):
        assert not leaf.shape or leaf.addressable_shards[0].data.size * DEVICES == leaf.size
    kept = [buffer for buffer in step.program.buffers if buffer.shape == (WIDTH, WIDTH) and buffer.spec is not None]
    assert kept
    assert all("data" in str(buffer.spec) for buffer in kept)


def test_every_stage_reduces_its_gradients_once() -> None:
    step = compiled(mw.PipeshardParallel(num_stages=2, num_micro_batches=MICRO_BATCHES))
    found = step.collectives()
    assert {name: one.of_arrays for name, one in found.items() if one.of_arrays} == {
        "gradients0": {"all-reduce": 1},
        "gradients1": {"all-reduce": 1},
    }
    assert step.explain().startswith("every data rank runs the loss of its own samples; gradients are reduced once")


def test_a_loss_that_mixes_samples_is_left_to_the_partitioner() -> None:
    step = compiled(mw.DataParallel(num_micro_batches=MICRO_BATCHES), pairs)
    assert step.explain() == (
        "gradients are reduced with every micro-batch, by XLA's partitioner: dot_general mixes samples"
    )
    backward = [one for name, one in step.collectives().items() if name.startswith("B")]
    assert in_all(backward).of_arrays["all-reduce"] >= MICRO_BATCHES


def test_odd_gradients_are_scattered_as_rows_of_numbers() -> None:
    def step(weights: Any, x: jax.Array) -> Any:
        value, gradients = mw.value_and_grad(lambda own, given: jnp.mean((given @ own["w"] + own["b"]) ** 2))(
            weights, x
        )
        return jax.tree.map(lambda weight, change: weight - 0.1 * change, weights, gradients), value

    drawn = np.random.RandomState(0)
    weights = {"w": jnp.asarray(drawn.randn(WIDTH, 5), jnp.float32), "b": jnp.zeros(5)}
    x = jnp.asarray(drawn.randn(DEVICES, WIDTH), jnp.float32)
    run = mw.parallelize(step, method=mw.Zero2Parallel())
    assert in_all(run.lower(weights, x).collectives().values()).of_arrays == {"reduce-scatter": 1, "all-gather": 2}
    reached, _ = run(weights, x)
    expected, _ = jax.jit(step)(weights, x)
    for name, value in expected.items():
        np.testing.assert_allclose(reached[name], value, rtol=1e-5, atol=1e-6)


def test_beside_tensor_ranks_gradients_go_in_one_bucket_along_the_data_ranks() -> None:
    plan = PlanRow(tp=2, dp=4, mbs=2, gbs=16, sharding="z1")
    training = Training(spec=None, row=plan, stage_layers=(2,), seq_len=4, hidden=8)
    step = training.step(jax.devices()).lower(training.initial(), training.batch(0))
    found = step.collectives()
    assert found["gradients0"].of_arrays == {"reduce-scatter": 1, "all-gather": 1}
    assert found["whole0"].of_arrays == {"all-gather": 1}


# ---- operators split one by one: whole steps, their loss, backward and update


LINKS: dict[str, Any] = {"link_bytes_per_s": 1.0, "link_latency_s": 1e-9}
"""Seconds of communication are bytes, but for a latency that breaks ties."""


def split(of: Any, weights: Any, batch: Any, flop_per_s: float) -> tuple[Collectives, float]:
    """What a step with Adam sends, and what was priced."""

    def step(state: Any, given: Any) -> Any:
        own, moments = state
        value, gradients = mw.value_and_grad(of)(own, given)
        changes, moments = optax.adam(1e-2).update(gradients, moments)
        return (optax.apply_updates(own, changes), moments), value

    method = mw.ShardParallel(mesh_shape=(DEVICES,), flop_per_s=flop_per_s, **LINKS)
    state = weights, jax.eval_shape(optax.adam(1e-2).init, weights)
    found = mw.parallelize(step, method=method, loss="mean").lower(state, batch)
    return in_all(found.collectives().values()), priced_bytes(found.sharding)


def test_a_step_split_by_heads_and_columns_needs_4_all_reduces_a_layer_less_one() -> None:
    layers = 2
    found, priced = split(transformer_loss, transformer(layers, 64), shapes((3, 4, 64)), 10.0)
    assert found.count == {"all-reduce": 4 * layers - 1}
    assert found.sent_bytes == pytest.approx(priced, rel=0.01)


def test_a_step_split_by_samples_needs_one_all_reduce_of_its_gradients() -> None:
    found, priced = split(transformer_loss, transformer(2, 16), shapes((256, 16, 16)), 1e3)
    assert found.of_arrays == {"all-reduce": 1}
    assert found.sent_bytes == pytest.approx(priced, rel=0.01)


def test_a_step_with_experts_on_devices_of_their_own_needs_4_all_to_alls() -> None:
    found, priced = split(experts_loss, *experts_shapes(), 1e3)
    assert found.of_arrays == {"all-to-all": 4, "all-reduce": 1}
    assert found.sent_bytes == pytest.approx(priced, rel=0.01)
