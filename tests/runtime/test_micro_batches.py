"""Micro-batches compute what the whole batch does, or the step is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.lowering.whole import WholeStepWarning
from meshwright.runtime.devices import jax_precision
from tests.runtime.micro_batch_cases import (
    EXACT,
    MET,
    UNDIVIDED,
    Loss,
    batch,
    contrasted,
    difference,
    mapped,
    masked,
    measured,
    renormalised,
    step_of,
    weights,
)
from tests.runtime.one_device import on_one_device

METHODS: dict[str, Callable[[int], Any]] = {
    "data": lambda parts: mw.DataParallel(num_micro_batches=parts, devices=jax.devices()[:4]),
    "ZeRO-3": lambda parts: mw.Zero3Parallel(num_micro_batches=parts, devices=jax.devices()[:2]),
    "pipeline": lambda parts: mw.PipeshardParallel(num_micro_batches=parts, devices=jax.devices()[:4], zero=2),
    "interleaved": lambda parts: mw.LocalPipeline(num_micro_batches=parts, num_stages=2, schedule="interleaved"),
    "shard": lambda parts: mw.ShardParallel(num_micro_batches=parts, devices=jax.devices()[:4]),
    "auto": lambda parts: mw.Auto(num_micro_batches=parts, devices=jax.devices()[:4]),
}


@pytest.mark.parametrize("loss", [*EXACT, *MET], ids=lambda loss: loss.__name__)
def test_the_step_is_that_of_the_whole_batch(loss: Loss) -> None:
    with jax_precision("fp64"):
        one = mw.LocalPipeline(num_stages=1, num_micro_batches=4)
        assert difference(loss, one, weights(), batch()) < 1e-9


@pytest.mark.filterwarnings("ignore::meshwright.compiler.idle_devices.IdleDevicesWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", [masked, measured, mapped, contrasted, renormalised], ids=lambda loss: loss.__name__)
def test_so_it_is_under_every_method(loss: Loss, method: str) -> None:
    with jax_precision("fp64"):
        assert difference(loss, METHODS[method](4), weights(), batch()) < 1e-9


@pytest.mark.parametrize("loss", UNDIVIDED, ids=lambda loss: loss.__name__)
def test_what_they_would_not_compute_runs_without_them_and_is_said_with_its_line(loss: Loss) -> None:
    said = r"without its 4 micro-batches: .* would not compute what the whole batch does.*micro_batch_cases.py:\d+"
    with jax_precision("fp64"), pytest.warns(WholeStepWarning, match=said):
        assert difference(loss, METHODS["data"](4), weights(), batch()) < 1e-9


def test_what_is_done_twice_is_said_with_its_line() -> None:
    step = mw.parallelize(step_of(contrasted), method=METHODS["pipeline"](4))
    step(weights(), batch())
    assert "samples meet at tests/runtime/micro_batch_cases.py" in step.compiled().explain()


def test_samples_that_meet_layer_by_layer_are_kept_there_alone() -> None:
    def peak_bytes(parts: int) -> int:
        step = mw.parallelize(step_of(deep), method=mw.LocalPipeline(num_stages=1, num_micro_batches=parts))
        step(own, given)
        assert ("in phases" in step.compiled().step.meeting) == (parts > 1)
        return max(step.compiled().verified.peak_bytes)

    def deep(own: Any, given: Any) -> tuple[jax.Array, Any]:
        x = given
        for w in own:
            x = x @ w
            x = jnp.tanh(jnp.sin((x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-3)))
        return (x**2).mean(), ()

    own = [jnp.asarray(np.random.RandomState(place).randn(16, 16) / 4) for place in range(4)]
    given = jnp.asarray(np.random.RandomState(9).randn(512, 16))
    assert peak_bytes(4) < 0.9 * peak_bytes(1)
    with jax_precision("fp64"):
        one = mw.LocalPipeline(num_stages=1, num_micro_batches=4)
        wide = jax.tree.map(lambda one: one.astype(jnp.float64), (own, given))
        expected = jax.jit(step_of(deep, jax.value_and_grad))(*wide)
        found = mw.parallelize(step_of(deep), method=one)(*wide)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)


def test_workers_in_other_processes_put_samples_together() -> None:
    method = mw.PipeshardParallel(num_micro_batches=4, num_stages=2, devices=jax.devices()[:2])
    own, given = weights(), batch()
    expected = on_one_device(step_of(contrasted, jax.value_and_grad), own, given)
    step = mw.parallelize(step_of(contrasted), method=method, backend="processes")
    try:
        found = step(own, given)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)
    finally:
        step.close()


def test_the_loss_of_each_micro_batch_is_taken_where_the_user_says_so() -> None:
    method = METHODS["data"](4)
    said = mw.parallelize(step_of(contrasted), method=method, loss="mean")(weights(), batch())
    expected = on_one_device(step_of(contrasted, jax.value_and_grad), weights(), batch())
    assert abs(float(said[1]) - float(expected[1])) > 1e-2
