"""Functions that follow a training step: one device's results, on the state its devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op, StepProgram
from meshwright.errors import InputError
from meshwright.runtime.workers.remote_arrays import RemoteArray
from tests.runtime.small import WIDTH, batch, initial, loss, step

METHODS = [
    mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=3),
    mw.PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="interleaved", zero=1, devices=jax.devices()[:4]),
    mw.PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="chimera", devices=jax.devices()[:4]),
    mw.Zero3Parallel(),
    mw.ShardParallel(),
]


def measured(weights: Any, batch: Any) -> Any:
    """A mean, a count, a sum of squares, predictions, and something of the weights alone."""
    hidden = batch["x"] @ weights["tied"]
    for layer in weights["layers"]:
        hidden = jnp.tanh(hidden @ layer)
    predicted = hidden @ weights["tied"].T
    return {
        "loss": ((predicted - batch["x"]) ** 2).mean(),
        "right": (predicted * batch["x"] > 0).sum(),
        "predicted": predicted,
        "norm": sum((leaf**2).sum() for leaf in jax.tree.leaves(weights)),
    }


def same(one: Any, other: Any) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=1e-5, atol=1e-6)


def sent_inputs(program: StepProgram) -> list[int]:
    """Inputs of a function, other than samples, that its lists send from mesh to mesh."""
    held = {feed.buffer for feed in program.feeds if feed.micro_batch is None}
    sent = {buffer for own in program.lists for one in own if one.op is Op.SEND for buffer in one.reads}
    return sorted(held & sent)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{type(method).__name__}-{method.pipeline[0]}")
def test_results_are_those_of_one_device_and_parameters_stay(method: Any) -> None:
    train = mw.parallelize(step, method=method)
    state, _ = train(initial(), batch())
    evaluate = mw.parallelize(measured, method=mw.FollowParallel(train, num_micro_batches=2))
    same(evaluate(state[0], batch()), measured(jax.tree.map(np.asarray, state[0]), batch()))
    compiled = evaluate.lower(state[0], batch())
    assert sent_inputs(compiled.program) == []
    kept = jax.tree.leaves(state[0])
    for feed in compiled.program.feeds:
        if feed.micro_batch is None:
            sharding = compiled.runtime.sharding(feed.buffer)
            assert sharding.is_equivalent_to(kept[feed.input].sharding, 2), "a parameter is read elsewhere"


@pytest.fixture(scope="module")
def trained() -> Iterator[Any]:
    """A step in workers of its own."""
    method = mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=2)
    train = mw.parallelize(step, method=method, backend="processes", timeout_s=60.0)
    yield train
    train.close()


def check_workers_evaluate(train: Any) -> None:
    """`test_hosted` checks it over several hosts, too."""
    evaluate = mw.parallelize(measured, method=mw.FollowParallel(train, num_micro_batches=2))
    state, _ = train(initial(), batch())
    compiled = evaluate.lower(state[0], batch())
    kept = jax.tree.leaves(state[0])
    for feed in compiled.program.feeds:
        assert feed.micro_batch is not None or compiled.program.buffers[feed.buffer].mesh == kept[feed.input].mesh
    # The head is the first matrix, and lies where that lies.
    assert compiled.meshes == (0, 1, 0)
    found = evaluate(state[0], batch())
    assert isinstance(found["predicted"], RemoteArray)
    same(found, measured(jax.tree.map(np.asarray, state[0]), batch()))
    state, _ = train(state, batch())
    same(evaluate(state[0], batch()), measured(jax.tree.map(np.asarray, state[0]), batch()))


def test_workers_evaluate_the_state_they_keep(trained: Any) -> None:
    check_workers_evaluate(trained)


def test_a_batch_of_another_size_finds_the_state_with_the_same_workers(trained: Any) -> None:
    state, _ = trained(initial(), batch())
    crew = trained.lower(initial(), batch()).runtime.crew
    double = {"x": jnp.concatenate([batch()["x"]] * 2)}
    kept, value = trained(state, double)
    assert trained.lower(state, double).runtime._started().crew is crew
    gathered = jax.tree.map(np.asarray, state)
    plain, expected = mw.parallelize(step, method=mw.DataParallel(devices=jax.devices()[:1]))(gathered, double)
    assert float(value) == pytest.approx(float(expected), abs=1e-6)
    same(kept, plain)


def test_parts_of_the_state_that_are_not_differentiated() -> None:
    train = mw.parallelize(step, method=METHODS[0])
    state, _ = train(initial(), batch())
    momentum = mw.FollowParallel(train, reads=lambda state, batch: state[1])
    evaluate = mw.parallelize(loss, method=momentum)
    same(evaluate(state[1], batch()), loss(jax.tree.map(np.asarray, state[1]), batch()))
    first = mw.parallelize(
        lambda layer, batch: batch["x"] @ layer,
        method=mw.FollowParallel(train, num_micro_batches=2, reads=lambda state, batch: state[0]["layers"][1]),
    )
    same(first(state[0]["layers"][1], batch()), batch()["x"] @ np.asarray(state[0]["layers"][1]))
    assert first.lower(state[0]["layers"][1], batch()).meshes == (1,)


def test_keys_and_numbers_beside_the_state() -> None:
    def noisy(weights: Any, batch: Any, key: jax.Array, scale: Any) -> Any:
        hidden = batch["x"] @ weights["tied"]
        kept = jax.random.bernoulli(key, 0.5, (WIDTH,))
        for layer in weights["layers"]:
            hidden = jnp.where(kept, scale * jnp.tanh(hidden @ layer), 0)
        return hidden

    train = mw.parallelize(step, method=METHODS[0])
    state, _ = train(initial(), batch())
    evaluate = mw.parallelize(noisy, method=mw.FollowParallel(train, num_micro_batches=4))
    given = jax.random.key(7), jnp.float32(3.0)
    same(evaluate(state[0], batch(), *given), noisy(jax.tree.map(np.asarray, state[0]), batch(), *given))


def stacked(weights: Any, batch: Any) -> jax.Array:
    return jnp.stack([*weights["layers"], batch["x"][:WIDTH]]).sum()


def pairs(weights: Any, batch: Any) -> jax.Array:
    return batch["x"] @ weights["tied"] @ batch["x"].T


@pytest.mark.parametrize(
    ("fun", "options", "words"),
    [
        (measured, {"reads": lambda state, batch: state[0]["layers"]}, "reads gives"),
        (mw.grad(loss), {}, "calls grad"),
        (stacked, {}, "of mesh 0 and of mesh 1"),
        (pairs, {"num_micro_batches": 2}, "dot_general mixes samples"),
    ],
)
def test_functions_that_cannot_follow_are_told_why(fun: Any, options: Any, words: str) -> None:
    train = mw.parallelize(step, method=METHODS[0])
    train.lower(initial(), batch())
    follows = mw.parallelize(fun, method=mw.FollowParallel(train, **options))
    with pytest.raises(InputError, match=words):
        follows(initial()[0], batch())


def test_steps_that_cannot_be_followed_are_told() -> None:
    train = mw.parallelize(step, method=METHODS[0])
    with pytest.raises(InputError, match="has not been compiled"):
        mw.parallelize(measured, method=mw.FollowParallel(train))(initial()[0], batch())
    with pytest.raises(InputError, match="no step of parallelize"):
        mw.parallelize(measured, method=mw.FollowParallel(step))(initial()[0], batch())
    train.lower(initial(), batch())
    with pytest.raises(InputError, match="no argument of measured is a part"):
        mw.parallelize(measured, method=mw.FollowParallel(train))({"more": jnp.zeros(3)}, batch())
    with pytest.raises(InputError, match="leave devices out"):
        mw.FollowParallel(train, devices=jax.devices())


def masked(weights: Any, batch: Any) -> Any:
    """A mean over the samples that count, and what is made of it."""
    predicted = batch["x"] @ weights["tied"]
    counts = jnp.where(batch["x"][:, 0] > 0, 1.0, 0.0)
    mean = ((predicted**2).mean(1) * counts).sum() / counts.sum()
    return {
        "mean": mean,
        "root": jnp.sqrt(mean),
        "count": counts.sum(),
        "largest": predicted.max(),
        "most": jnp.argmax(predicted, 1).max(),
        "all": (counts > 0).all(),
    }


def test_a_mean_over_what_counts_is_that_of_the_whole_batch() -> None:
    train = mw.parallelize(step, method=mw.PipeshardParallel(num_stages=2, num_micro_batches=2))
    state, _ = train(initial(), batch())
    evaluate = mw.parallelize(masked, method=mw.FollowParallel(train, num_micro_batches=4))
    same(evaluate(state[0], batch()), masked(jax.tree.map(np.asarray, state[0]), batch()))
