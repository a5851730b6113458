"""Memory that results take from what they replace: the numbers stay, the peak is lower, what is gone is told."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.compiler.instructions.verify import verify_lists
from meshwright.errors import InputError
from tests.runtime.small import WIDTH, batch, initial, step

pytestmark = pytest.mark.filterwarnings("ignore:micro-batches of 2 samples")
METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=4, zero=1)


def same(one: Any, other: Any) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "backend", "hosts"),
    [
        (METHOD, "local", 1),
        (METHOD, "processes", 2),
        (mw.LocalPipeline(num_stages=2, num_micro_batches=4), "local", 1),
    ],
)
def test_a_state_that_is_given_away_changes_no_number(method: Any, backend: str, hosts: int) -> None:
    kept = mw.parallelize(step, method=method)
    run = mw.parallelize(step, method=method, donate=True, backend=backend, timeout_s=60.0, hosts_per_mesh=hosts)
    try:
        state, expected = initial(), initial()
        first, _ = run(state, batch())
        state, value = run(first, batch())
        for _ in range(2):
            expected, expected_value = kept(expected, batch())
        same(state, expected)
        assert float(value) == pytest.approx(float(expected_value), abs=1e-6)
        taken = run.lower(state, batch()).program.taken
        assert len(taken) >= 2
        with pytest.raises(InputError, match="donate=True"):
            run(first, batch())
        same(run(state, batch())[1], kept(expected, batch())[1])
    finally:
        run.close()


def test_sums_of_gradients_take_the_memory_of_the_ones_before() -> None:
    compiled = mw.parallelize(step, method=METHOD).lower(jax.eval_shape(initial), jax.eval_shape(batch))
    program = compiled.program
    assert program.taken == frozenset()
    for own in program.lists:
        for one in own:
            if one.op is Op.RUN and (one.executable or "").endswith("+"):
                assert {program.buffers[buffer].shape for buffer in one.donates} == {(WIDTH, WIDTH)}
                assert not set(one.donates) & {feed.buffer for feed in program.feeds}


def test_the_peak_is_lower_where_the_state_is_given() -> None:
    wide = jax.ShapeDtypeStruct((64, 64), np.float32)
    weights = {"tied": wide, "layers": [wide, wide]}
    shapes = (weights, weights, jax.ShapeDtypeStruct((), np.int32)), {"x": jax.ShapeDtypeStruct((8, 64), np.float32)}
    kept = mw.parallelize(step, method=METHOD).lower(*shapes)
    given = mw.parallelize(step, method=METHOD, donate=True).lower(*shapes)
    saved = np.subtract(kept.verified.peak_bytes, given.verified.peak_bytes)
    # Gradients are given to the update in any case: one matrix less where it is fullest, which on mesh 1 it is earlier.
    assert saved.tolist() == [4 * 64 * 64 + 4, 0]
    assert verify_lists(given.program).exact
