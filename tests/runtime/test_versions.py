"""Schedules whose updates lie in the midst of a step compute what one device computes on equally old weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op, StepProgram
from meshwright.errors import InputError
from meshwright.schedules.table import Kind
from tests.compiler.models import largest_difference

WIDTH, SAMPLES, STAGES = 4, 16, 4
ADAM = optax.adam(optax.linear_schedule(1e-1, 1e-2, 20))
"""Far enough with each step that a weight of another version shows."""


def loss(layers: Any, batch: Any) -> jax.Array:
    x, wanted = batch
    for layer in layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return ((x - wanted) ** 2).mean()


def update(state: Any, gradients: Any) -> Any:
    layers, optimizer = state
    changes, optimizer = ADAM.update(gradients, optimizer, layers)
    return optax.apply_updates(layers, changes), optimizer


def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    value, gradients = mw.value_and_grad(loss)(state[0], batch)
    return update(state, gradients), value


def initial() -> Any:
    drawn = np.random.RandomState(0)
    layers = [{"w": jnp.asarray(drawn.randn(WIDTH, WIDTH), jnp.float32), "b": jnp.zeros(WIDTH)} for _ in range(STAGES)]
    return layers, ADAM.init(layers)


def batch(samples: int = SAMPLES) -> Any:
    drawn = np.random.RandomState(1)
    return tuple(jnp.asarray(drawn.randn(samples, WIDTH), jnp.float32) for _ in range(2))


def stages_of(run: Any) -> Any:
    """Stage that holds each weight."""
    compiled = run.lower(jax.eval_shape(initial), jax.eval_shape(batch))
    leaves = [compiled.program.buffers[outcome.buffer].mesh for outcome in compiled.program.outcomes]
    return jax.tree.unflatten(compiled.step.out_tree, leaves)[0][0]


def delayed(
    state: Any, batch: Any, stages: Any, micro_batches: int, each: int, version_of: Any
) -> tuple[Any, jax.Array]:
    """One device: weights of stage k for micro-batch i are of version `version_of(k, i)`, forward and backward."""
    gradient = jax.jit(jax.value_and_grad(loss))
    states, values, total = [state], [], None
    for i in range(micro_batches):
        part = jax.tree.map(lambda array: jnp.split(array, micro_batches)[i], batch)  # noqa: B023
        weights = jax.tree.map(lambda k, *versions: versions[version_of(k, i)], stages, *(one[0] for one in states))  # noqa: B023
        value, gradients = gradient(weights, part)
        values.append(value)
        total = gradients if total is None else jax.tree.map(jnp.add, total, gradients)
        if i % each == each - 1:
            states.append(jax.jit(update)(states[-1], jax.tree.map(lambda array: array / each, total)))
            total = None
    return states[-1], sum(values) / micro_batches


def pipedream(k: int, i: int) -> int:
    return max(0, i - (STAGES - 1 - k))


def two_versions(k: int, i: int, each: int) -> int:
    return max(i // each - 1, 0)


CASES = [
    (mw.LocalPipeline(num_stages=STAGES, num_micro_batches=8, schedule="pipedream"), 1, pipedream),
    (mw.LocalPipeline(num_stages=STAGES, num_micro_batches=16, schedule="pipedream-2bw"), 4,
     partial(two_versions, each=4)),
    (mw.LocalPipeline(num_stages=STAGES, num_micro_batches=16, schedule="pipedream-2bw", updates=2), 8,
     partial(two_versions, each=8)),
]  # fmt: skip


@pytest.mark.parametrize(("method", "each", "version_of"), CASES)
def test_gradients_are_of_weights_as_old_as_the_papers_say(method: Any, each: int, version_of: Any) -> None:
    run = mw.parallelize(step, method=method)
    stages = stages_of(run)
    there = here = initial()
    for _ in range(2):
        there, value = run(there, batch())
        here, expected = delayed(here, batch(), stages, method.num_micro_batches, each, version_of)
        assert abs(float(value) - float(expected)) < 1e-6
    assert largest_difference(there, here) < 1e-5
    newest, _ = delayed(initial(), batch(), stages, method.num_micro_batches, each, lambda k, i: i // each)
    first, _ = run(initial(), batch())
    assert largest_difference(first, newest) > 1e-3


@pytest.mark.parametrize(
    ("schedule", "held", "chunks"),
    [("ftpipe", [0, 1, 2, 3], 1), ("ftpipe", [0, 1, 0, 1], 2), ("ftpipe-0_1_1_0", [0, 1, 1, 0], 2)],
)
def test_stages_that_are_not_neighbours_update_by_themselves(schedule: str, held: list[int], chunks: int) -> None:
    method = mw.LocalPipeline(num_stages=STAGES // chunks, num_micro_batches=8, schedule=schedule, chunks=chunks)
    run = mw.parallelize(step, method=method)
    compiled = run.lower(jax.eval_shape(initial), jax.eval_shape(batch))
    assert "lack up to 3" in compiled.program.inexact
    stages = stages_of(mw.parallelize(step, method=replace(method, schedule="ftpipe", num_stages=STAGES, chunks=1)))
    assert stages_of(run) == jax.tree.map(lambda k: held[k], stages)
    table = compiled.table
    assert table.version is not None
    forwards = table.at[Kind.F]
    there = here = initial()
    for _ in range(2):
        there, value = run(there, batch())
        here, expected = delayed(here, batch(), stages, 8, 1, lambda k, i: int(table.version[forwards[k, i]]))
        assert abs(float(value) - float(expected)) < 1e-6
    assert largest_difference(there, here) < 1e-5
    # A stage of depth d lacks d updates once the pipeline is full, and never more.
    lacks = [[i - int(table.version[forwards[k, i]]) for i in range(8)] for k in range(STAGES)]
    assert (
        [max(own) for own in lacks] == [3, 2, 1, 0]
        if chunks == 1
        else all(max(own) <= STAGES - 1 - k for k, own in enumerate(lacks))
    )


@pytest.mark.parametrize(("schedule", "chunks"), [("pipedream", 1), ("ftpipe", 2)])
def test_versions_on_meshes_of_their_own(schedule: str, chunks: int) -> None:
    asked: dict[str, Any] = {"num_stages": 2, "num_micro_batches": 4, "schedule": schedule, "chunks": chunks}
    method = mw.PipeshardParallel(devices=jax.devices()[:4], zero=1, **asked)
    alone = mw.LocalPipeline(**asked)
    run = mw.parallelize(step, method=method, backend="processes", timeout_s=60.0)
    try:
        there, value = run(initial(), batch())
        there, value = run(there, batch())
        here = initial()
        for _ in range(2):
            here, expected = mw.parallelize(step, method=alone)(here, batch())
        assert float(value) == pytest.approx(float(expected), abs=1e-6)
        assert largest_difference(jax.tree.map(np.asarray, there), here) < 1e-5
    finally:
        run.close()


def most_versions(program: StepProgram, mesh: int, shape: tuple[int, ...]) -> int:
    """Weights or moments of a shape that are alive at once on a mesh, from the lists alone."""
    live = {feed.buffer for feed in program.feeds if program.buffers[feed.buffer].mesh == mesh}
    most = 0
    for instruction in program.lists[mesh]:
        live -= set(instruction.reads if instruction.op is Op.FREE else instruction.donates)
        if instruction.label.startswith("update"):
            live |= set(instruction.writes)
        most = max(most, sum(program.buffers[buffer].shape == shape for buffer in live))
    return most


def test_a_worker_keeps_as_many_versions_as_micro_batches_are_under_way() -> None:
    shapes = jax.eval_shape(initial), jax.eval_shape(batch)
    one = mw.LocalPipeline(num_stages=STAGES, num_micro_batches=8)
    versioned, plain = (
        mw.parallelize(step, method=method, donate=True).lower(*shapes) for method in (CASES[0][0], one)
    )
    # Each stage has one matrix and its two moments, which the one update of a step takes over; its gradient needs no
    # weights in stage 0, and the newest weights are there beside those that one of several updates makes.
    for mesh in range(1, STAGES):
        assert most_versions(versioned.program, mesh, (WIDTH, WIDTH)) == max(STAGES - mesh, 2) + 2
        assert most_versions(plain.program, mesh, (WIDTH, WIDTH)) == 1 + 2
    assert versioned.verified.peak_bytes[1] >= plain.verified.peak_bytes[1] + 4 * WIDTH * WIDTH
    assert versioned.program.inexact in str(versioned.program)
    assert "lack up to 3" in versioned.program.inexact
    assert not versioned.verified.exact
    assert plain.verified.exact
    assert plain.program.inexact == ""


def clipped(state: Any, batch: Any) -> Any:
    value, gradients = mw.value_and_grad(loss)(state[0], batch)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradients)))
    return update(state, jax.tree.map(lambda array: array / norm, gradients)), value


def scaled_by_loss(state: Any, batch: Any) -> Any:
    value, gradients = mw.value_and_grad(loss)(state[0], batch)
    return update(state, jax.tree.map(lambda array: array * value, gradients)), value


def returns_norm(state: Any, batch: Any) -> Any:
    gradients = mw.grad(loss)(state[0], batch)
    return update(state, gradients), jnp.abs(gradients[0]["b"]).max()


def returns_loss_first(state: Any, batch: Any) -> Any:
    state, value = step(state, batch)
    return value, state


def tied(state: Any, batch: Any) -> Any:
    layers = [state[0][0], *state[0][1:-1], state[0][0]]
    value, gradients = mw.value_and_grad(lambda layers: loss([*layers[:-1], layers[0]], batch))(layers)
    return update(state, gradients), value


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (clipped, "norm over all gradients"),
        (scaled_by_loss, "reads results of the loss"),
        (returns_norm, "results of the loss only"),
        (returns_loss_first, "newer state first"),
        (tied, r"is used by stages \d and 3"),
    ],
)
def test_updates_that_wait_for_other_stages_are_refused(step: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        mw.parallelize(step, method=CASES[0][0]).lower(jax.eval_shape(initial), jax.eval_shape(batch))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "ftpipe", "updates": 2}, "updates=8"),
        ({"schedule": "seq1f1b"}, "slices of a sequence"),
        ({"schedule": "pipedream", "updates": 2}, "updates=8"),
        ({"schedule": "1f1b", "updates": 2}, "updates=1"),
        ({"schedule": "pipedream-2bw", "updates": 4}, "m = 4"),
        ({"schedule": "pipedream-2bw", "updates": 3}, "the same number of micro-batches"),
    ],
)
def test_what_does_not_run_says_why(options: dict[str, Any], words: str) -> None:
    def compiled() -> Any:
        method = mw.LocalPipeline(num_stages=STAGES, num_micro_batches=8, **options)
        return mw.parallelize(step, method=method).lower(jax.eval_shape(initial), jax.eval_shape(batch))

    with pytest.raises(InputError, match=words):
        compiled()


def test_a_result_of_several_sums_is_refused_where_weights_change_between_them() -> None:
    def with_product(layers: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        return loss(layers, batch), batch[0].mean() * batch[1].mean()

    @mw.parallelize(method=mw.LocalPipeline(num_stages=2, num_micro_batches=4, schedule="pipedream"))
    def reporting(state: Any, batch: Any) -> Any:
        (value, product), gradients = jax.value_and_grad(with_product, has_aux=True)(state[0], batch)
        return update(state, gradients), value, product

    with pytest.raises(InputError, match="made of several sums"):
        reporting(initial(), batch())
