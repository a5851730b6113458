"""Micro-batches compute what the whole batch does, or the step is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.runtime.devices import jax_precision
from tests.runtime.micro_batch_cases import (
    EXACT,
    MET,
    REFUSED,
    Loss,
    batch,
    contrasted,
    difference,
    mapped,
    masked,
    measured,
    step_of,
    weights,
)

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
@pytest.mark.parametrize("loss", [masked, measured, mapped, contrasted], ids=lambda loss: loss.__name__)
def test_so_it_is_under_every_method(loss: Loss, method: str) -> None:
    with jax_precision("fp64"):
        assert difference(loss, METHODS[method](4), weights(), batch()) < 1e-9


@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_what_they_would_not_compute_is_refused_with_its_line(loss: Loss) -> None:
    with jax_precision("fp64"):
        with pytest.raises(InputError, match=r"would not compute what the whole batch does.*micro_batch_cases.py:\d+"):
            difference(loss, METHODS["data"](4), weights(), batch())
        assert difference(loss, METHODS["data"](1), weights(), batch()) < 1e-9


def test_what_is_done_twice_is_said_with_its_line() -> None:
    step = mw.parallelize(step_of(contrasted), method=METHODS["pipeline"](4))
    step(weights(), batch())
    assert "samples meet at tests/runtime/micro_batch_cases.py" in step.compiled().explain()


def test_workers_in_other_processes_put_samples_together() -> None:
    method = mw.PipeshardParallel(num_micro_batches=4, num_stages=2, devices=jax.devices()[:2])
    own, given = weights(), batch()
    expected = jax.jit(step_of(contrasted, jax.value_and_grad))(own, given)
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
    assert abs(float(said[1]) - float(step_of(contrasted, jax.value_and_grad)(weights(), batch())[1])) > 1e-2
