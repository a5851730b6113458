"""Checkpoints through Orbax: another plan goes on from them, plain Orbax reads them, data has its place again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.runtime.stacked import StackedArray
from tests.runtime.test_stacked import batch, initial
from tests.runtime.test_stacked import step as stacked_step

orbax = pytest.importorskip("orbax.checkpoint")
step = partial(stacked_step, again=False)
pytestmark = pytest.mark.filterwarnings("ignore")


def whole(state: Any) -> list[np.ndarray]:
    return [
        np.asarray(
            jax.random.key_data(leaf)
            if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else leaf
        )
        for leaf in jax.tree.leaves(state)
    ]


@pytest.fixture(scope="module")
def after_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A folder with the state after one step in two stages, that state, and the one after the next step."""
    folder = tmp_path_factory.mktemp("checkpoints")
    run = mw.parallelize(step, method=mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=1))
    state, _ = run(initial(), batch())
    assert any(isinstance(leaf, StackedArray) for leaf in jax.tree.leaves(state))
    with mw.Checkpoints(folder) as checkpoints:
        checkpoints.save(1, state)
    return folder, state, run(state, batch())[0]


@pytest.mark.parametrize(
    "method",
    [mw.Zero3Parallel(devices=None, num_micro_batches=2), mw.PipeshardParallel(num_stages=4, num_micro_batches=2)],
    ids=["zero3", "four stages"],
)
def test_another_plan_goes_on_from_a_checkpoint(method: Any, after_one: tuple[Path, Any, Any]) -> None:
    folder, _, expected = after_one
    other = mw.parallelize(step, method=method)
    like = other.lower(jax.eval_shape(initial), batch()).state_shapes()
    with mw.Checkpoints(folder) as checkpoints:
        state = checkpoints.restore(like)
    for wanted, leaf in zip(jax.tree.leaves(like), jax.tree.leaves(state), strict=True):
        parts = leaf.parts if isinstance(leaf, StackedArray) else [leaf]
        asked = wanted.parts if isinstance(wanted, StackedArray) else [wanted]
        assert [one.sharding for one in parts] == [one.sharding for one in asked]
    found, _ = other(state, batch())
    for one, two in zip(whole(found), whole(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_plain_orbax_reads_what_lies_there(after_one: tuple[Path, Any, Any]) -> None:
    folder, state, _ = after_one
    params = orbax.StandardCheckpointer().restore(folder / "1" / "state")[0]
    np.testing.assert_array_equal(params["layers"]["up"], np.asarray(state[0]["layers"]["up"]))


def test_states_of_workers_are_written_and_read(tmp_path: Path) -> None:
    method = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)
    run = mw.parallelize(step, method=method, backend="processes", timeout_s=120.0)
    state, _ = run(initial(), batch())
    with mw.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        again = checkpoints.restore(run.lower(state, batch()).state_shapes())
    expected, _ = run(state, batch())
    found, _ = run(again, batch())
    for one, two in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected[0]), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    run.close()


def test_data_goes_on_where_it_was(tmp_path: Path) -> None:
    def numbers() -> Iterator[int]:
        return iter(range(0, 100, 10))

    state = {"weight": np.arange(4.0)}
    batches = mw.CountedBatches(numbers)
    assert [next(batches) for _ in range(3)] == [0, 10, 20]
    with mw.Checkpoints(tmp_path, keep=2) as checkpoints:
        for number in (1, 2, 3):
            checkpoints.save(number, state, data=batches)
            next(batches)
        checkpoints.wait()
        assert checkpoints.steps == [2, 3]
        fresh = mw.CountedBatches(numbers)
        checkpoints.restore(state, step=2, data=fresh)
        assert next(fresh) == 40
        with pytest.raises(InputError, match="no checkpoint of step 1"):
            checkpoints.restore(state, step=1)
        with pytest.raises(InputError, match="is of another tree"):
            checkpoints.restore({"weights": np.arange(4.0)})
        with pytest.raises(InputError, match="the position of a list_iterator cannot be saved"):
            checkpoints.save(4, state, data=iter([1]))


def test_iterators_of_grain_keep_their_place(tmp_path: Path) -> None:
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(100).shuffle(seed=3).batch(10).to_iter_dataset()
    batches = iter(data)
    next(batches)
    with mw.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": np.zeros(2)}, data=batches)
        expected = next(batches)
        fresh = iter(data)
        checkpoints.restore({"a": np.zeros(2)}, data=fresh)
    np.testing.assert_array_equal(next(fresh), expected)
