"""Steps on eight devices end where the same steps on one device end."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.compiler.methods import (
    DataParallel,
    LocalPipeline,
    Method,
    PipeshardParallel,
    Zero2Parallel,
    Zero3Parallel,
)
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


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{type(method).__name__}-{method.pipeline[0]}")
def test_parameters_after_some_steps_are_those_of_one_device(method: Method) -> None:
    run = parallelize(step, method=method)
    state, batch = initial(), tokens(SAMPLES)
    for _ in range(STEPS):
        state, value, extra = run(state, batch)
    reached, expected_value, expected_extra = expected(method.num_micro_batches)
    assert abs(float(value) - float(expected_value)) < 1e-5
    assert largest_difference(state, reached) < 1e-5
    assert int(extra["right"]) == int(expected_extra["right"])
    assert extra["logits"].shape == expected_extra["logits"].shape


def test_zero_3_holds_no_parameter_whole() -> None:
    run = parallelize(step, method=Zero3Parallel())
    (weights, _), _, _ = run(initial(), tokens(SAMPLES))
    for leaf in jax.tree.leaves(weights):
        assert leaf.addressable_shards[0].data.size * 8 == leaf.size


def test_stages_lie_on_their_own_devices() -> None:
    run = parallelize(step, method=PipeshardParallel(num_stages=4, num_micro_batches=4))
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


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (PipeshardParallel(num_stages=3, num_micro_batches=4), "num_stages=2"),
        (PipeshardParallel(num_stages=4, num_micro_batches=4, schedule="seq1f1b"), "segments"),
        (PipeshardParallel(num_stages=4, num_micro_batches=5), "does not split into 5"),
    ],
)
def test_methods_that_do_not_fit_are_refused(method: Method, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parallelize(step, method=method)(initial(), tokens(SAMPLES))
    assert words in str(caught.value)


def test_the_batch_may_change_its_size() -> None:
    run = parallelize(step, method=DataParallel())
    state, small, _ = run(initial(), tokens(8))
    _, large, _ = run(state, tokens(16))
    assert np.isfinite([float(small), float(large)]).all()
