"""Losses that loop over stacked layers run in stages and end where the same steps on one device end."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import StageSpace
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.stacked import StackedArray, stacked, stacked_parts
from tests.compiler.models import largest_difference
from tests.runtime.test_auto import given_stages

LAYERS, WIDTH, SAMPLES = 6, 8, 16
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))
SLOW = mw.Hosts(
    hosts=1,
    devices_per_host=8,
    flop_per_s=1e7,
    inside_bytes_per_s=1e9,
    between_bytes_per_s=1e9,
    inside_latency_s=1e-8,
    between_latency_s=1e-4,
)


def weights(dtype: Any = jnp.float32) -> dict[str, Any]:
    drawn = np.random.RandomState(0)

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(drawn.randn(*shape) * 0.3, dtype)

    layers = {"up": matrix(LAYERS, WIDTH, 16), "bias": matrix(LAYERS, 16), "down": matrix(LAYERS, 16, WIDTH)}
    return {"tied": matrix(4, WIDTH), "layers": layers}


def batch(dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    return {"x": jnp.asarray(np.random.RandomState(1).randn(SAMPLES, 4), dtype)}


def loss(given: Any, batch: Any, key: jax.Array, *, again: bool, upwards: bool = True) -> jax.Array:
    """Dropout with a key of each layer, a tied head, a penalty on the weights, and a mean over what layers say."""
    cast = jax.tree.map(lambda leaf: leaf * 1.0, given["layers"])

    def layer(x: jax.Array, own: Any) -> tuple[jax.Array, jax.Array]:
        here, key = own
        hidden = jnp.tanh(x @ here["up"] + here["bias"])
        kept = jax.random.bernoulli(key, 0.9, (16,))
        return x + jnp.where(kept, hidden, 0.0) @ here["down"], (hidden**2).mean()

    keys = jax.random.split(key, LAYERS)
    body = jax.checkpoint(layer) if again else layer
    x, spoken = jax.lax.scan(body, batch["x"] @ given["tied"], (cast, keys), reverse=not upwards)
    penalty = sum((leaf**2).sum() for leaf in jax.tree.leaves(given))
    return ((x @ given["tied"].T - batch["x"]) ** 2).mean() + 1e-2 * penalty + 1e-2 * spoken.mean()


def step(state: Any, batch: Any, gradients_of: Any = mw.value_and_grad, **how: bool) -> tuple[Any, jax.Array]:
    params, optimizer, key = state
    key, now = jax.random.split(key)
    value, gradients = gradients_of(partial(loss, **how))(params, batch, now)
    changes, optimizer = OPTIMIZER.update(gradients, optimizer, params)
    return (optax.apply_updates(params, changes), optimizer, key), value


def initial(dtype: Any = jnp.float32) -> tuple[Any, Any, jax.Array]:
    params = weights(dtype)
    return params, OPTIMIZER.init(params), jax.random.key(7)


def accumulated(micro_batches: int) -> Any:
    """Value and gradients on one device, micro-batch after micro-batch."""

    def gradients_of(fun: Any) -> Any:
        def run(params: Any, batch: Any, key: jax.Array) -> Any:
            parts = jax.tree.map(lambda leaf: leaf.reshape(micro_batches, -1, *leaf.shape[1:]), batch)
            # A loop, as its body is compiled once.
            found = jax.lax.map(lambda part: jax.value_and_grad(fun)(params, part, key), parts)
            return jax.tree.map(lambda each: each.mean(axis=0), found)

        return run

    return gradients_of


def numbers(state: Any) -> Any:
    return state[0], state[1]


def unequal() -> mw.FromPlan:
    """Embedding and two layers on two devices, the rest and the head on four, layers recomputed."""
    shapes = jax.eval_shape(lambda: (initial(), batch()))
    plan = mw.plan_step(
        partial(step, again=False), shapes, SLOW, space=StageSpace(micro_batches=(2,), recompute=(True,))
    )
    return mw.FromPlan(plan=given_stages(plan, [2, 5], [(2,), (2, 2)]), num_micro_batches=2)


@pytest.mark.parametrize(
    ("method", "how"),
    [
        (lambda: mw.PipeshardParallel(num_stages=4, num_micro_batches=4, zero=2), {"again": True}),
        (lambda: mw.PipeshardParallel(num_stages=2, num_micro_batches=2), {"again": False, "upwards": False}),
        (unequal, {"again": False}),
        (lambda: mw.Zero3Parallel(num_micro_batches=2), {"again": True}),
    ],
    ids=("stages-zero", "downwards", "unequal-recomputed", "one-stage"),
)
def test_stacked_layers_end_where_one_device_ends(method: Any, how: dict[str, bool]) -> None:
    method = method()
    run = mw.parallelize(partial(step, **how), method=method)
    alone = jax.jit(partial(step, gradients_of=accumulated(method.num_micro_batches), **how))
    there = here = initial()
    for _ in range(2):
        (there, value), (here, expected) = run(there, batch()), alone(here, batch())
        assert abs(float(value) - float(expected)) < 1e-5
    assert largest_difference(numbers(there), numbers(here)) < 1e-5
    assert (jax.random.key_data(there[2]) == jax.random.key_data(here[2])).all()
    plan = run.lower(there, batch()).plan
    if isinstance(plan, StagesPlan):
        assert [stage.devices for stage in plan.stages] == [2, 4]
        assert [part.shape[0] for part in there[0]["layers"]["up"].parts] == [2, 4]


def test_in_64_bits_nothing_but_rounding_is_left() -> None:
    with jax_precision("fp64"):
        method = mw.PipeshardParallel(num_micro_batches=2, schedule="interleaved", devices=jax.devices()[:2])
        run = mw.parallelize(partial(step, again=False), method=method)
        alone = jax.jit(partial(step, gradients_of=accumulated(2), again=False))
        there = here = initial(jnp.float64)
        for _ in range(2):
            (there, _), (here, _) = run(there, batch(jnp.float64)), alone(here, batch(jnp.float64))
        assert largest_difference(numbers(there), numbers(here)) < 1e-12


@pytest.fixture(scope="module")
def two_stages() -> Any:
    return mw.parallelize(partial(step, again=False), method=mw.PipeshardParallel(num_stages=2, num_micro_batches=2))


def test_every_mesh_holds_its_own_layers_and_sends_no_weights(two_stages: Any) -> None:
    program = two_stages.lower(initial(), batch()).program
    for mesh in range(2):
        held = [program.buffers[feed.buffer] for feed in program.feeds]
        stacked = [buffer.shape for buffer in held if buffer.mesh == mesh and len(buffer.shape) == 3]
        assert {shape[0] for shape in stacked} == {3}
        assert len(stacked) == 6  # two matrices, and two moments of each
    sent = [
        program.buffers[buffer].shape
        for own in program.lists
        for instruction in own
        if instruction.op is Op.SEND
        for buffer in instruction.reads
    ]
    # Activations, the gradient of the tied matrix, what layers say, and numbers; no matrix of a layer.
    assert (4, WIDTH) in {shape[-2:] for shape in sent}
    assert not {(WIDTH, 16), (16, WIDTH)} & {shape[-2:] for shape in sent}
    lengths = [re.findall(r"length=(\d+)", str(program.executables[name].jaxpr)) for name in ("F0", "F1")]
    assert lengths == [["3"], ["3"]]


def test_its_user_sees_whole_arrays(two_stages: Any, tmp_path: Path) -> None:
    start = initial()
    made = two_stages.create(lambda: start, batch=batch())
    assert largest_difference(numbers(made), numbers(start)) == 0
    state, _ = two_stages(start, batch())
    up = state[0]["layers"]["up"]
    assert isinstance(up, StackedArray)
    assert (up.shape, up.dtype, up.ndim, up.size) == ((LAYERS, WIDTH, 16), np.float32, 3, LAYERS * WIDTH * 16)
    assert [len(part.sharding.device_set) for part in up.parts] == [4, 4]
    assert "[3, 3]" in repr(up)
    assert np.array_equal(up[4], np.asarray(up)[4])
    assert float(jnp.sum(jnp.asarray(up))) == pytest.approx(float(np.asarray(up).sum()), rel=1e-5)
    mw.save_checkpoint(tmp_path / "saved", numbers(state))
    again = mw.restore_checkpoint(tmp_path / "saved", like=numbers(state))
    assert largest_difference(again, numbers(state)) == 0
    assert again[0]["layers"]["up"].parts[1].sharding == up.parts[1].sharding
    whole = mw.restore_checkpoint(tmp_path / "saved", like=jax.tree.map(np.asarray, numbers(state)))
    assert isinstance(whole[0]["layers"]["up"], jax.Array | np.ndarray)
    # Onto other stages, by way of what was saved in these.
    four = mw.parallelize(
        partial(step, again=False),
        method=mw.PipeshardParallel(num_stages=4, num_micro_batches=2, devices=jax.devices()[:4]),
    )
    (moved, _), (stayed, _) = four((*again, state[2]), batch()), two_stages(state, batch())
    assert largest_difference(numbers(moved), numbers(stayed)) < 1e-6


def evaluated(params: Any, batch: Any, key: jax.Array) -> Any:
    keys = jax.random.split(key, LAYERS)
    x, heard = jax.lax.scan(
        lambda x, own: (x + jnp.tanh(x @ own[0]["up"] + own[0]["bias"]) @ own[0]["down"], x.mean()),
        batch["x"] @ params["tied"],
        (params["layers"], keys),
    )
    return {"loss": ((x @ params["tied"].T - batch["x"]) ** 2).mean(), "made": x, "heard": heard.sum() * 0 + 1.0}


@pytest.mark.parametrize("method", [None, mw.Zero3Parallel()], ids=["two stages", "one stage"])
def test_functions_follow_the_parts_of_stacks(two_stages: Any, method: Any) -> None:
    train = two_stages if method is None else mw.parallelize(partial(step, again=False), method=method)
    state, _ = train(initial(), batch())
    evaluate = mw.parallelize(evaluated, method=mw.FollowParallel(train, num_micro_batches=2), loss="mean")
    found = evaluate(state[0], batch(), state[2])
    expected = evaluated(jax.tree.map(np.asarray, state[0]), batch(), state[2])
    assert largest_difference(found, expected) < 1e-5
    program = evaluate.lower(state[0], batch(), state[2]).program
    fed = {feed.buffer for feed in program.feeds if feed.micro_batch is None}
    sent = {buffer for own in program.lists for one in own if one.op is Op.SEND for buffer in one.reads}
    assert not fed & sent


def test_other_processes_keep_their_parts() -> None:
    run = mw.parallelize(
        partial(step, again=False),
        method=mw.PipeshardParallel(num_stages=2, num_micro_batches=2),
        backend="processes",
        timeout_s=60.0,
    )
    alone = jax.jit(partial(step, gradients_of=accumulated(2), again=False))
    try:
        there, _ = run(run.create(initial, batch=batch()), batch())
        here, _ = alone(initial(), batch())
        assert largest_difference(numbers(there), numbers(here)) < 1e-5
    finally:
        run.close()


def test_stacked_keys_are_whole_arrays_of_jax() -> None:
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 5)
    made = stacked([keys[:2], keys[2:]], (0, 2, 5))
    np.testing.assert_array_equal(jax.random.key_data(made), jax.random.key_data(keys))
    assert [len(part) for part in stacked_parts(made, (0, 2, 5))] == [2, 3]
