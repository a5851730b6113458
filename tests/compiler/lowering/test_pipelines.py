"""Pipelines that share a batch unevenly compute the update that one device does, for drawn sets of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.grid import DeviceGrid, GridSplit, Ranks
from meshwright.compiler.marking import layer_boundary
from meshwright.compiler.pipeline_set import PipelineSet, StageDevices, StagedPipeline
from meshwright.compiler.shardings import DataSharding
from meshwright.errors import InputError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parallelize import parallelize
from tests.virtual_devices import eight_devices

eight_devices()
LAYERS, WIDTH, STEPS = 4, 8, 3
Ends = frozenset[int]


def step_of(ends: Ends) -> Any:
    """Descent with momentum of a perceptron whose stages end behind these layers."""

    def loss(weights: Any, batch: Any) -> jax.Array:
        x = batch["x"]
        for number, layer in enumerate(weights, 1):
            x = jnp.tanh(x @ layer["in"]) @ layer["out"] + x
            x = layer_boundary(x) if number in ends else x
        return ((x - batch["y"]) ** 2).mean()

    def step(state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["weights"], batch)
        moments = jax.tree.map(lambda old, new: 0.9 * old + new, state["moments"], gradients)
        weights = jax.tree.map(lambda weight, moment: weight - 0.1 * moment, state["weights"], moments)
        return {"weights": weights, "moments": moments}, value

    return step


def columns_and_rows(path: str) -> dict[int, Ranks]:
    return {"in": {1: Ranks.TENSOR}, "out": {0: Ranks.TENSOR}}.get(path.split(".")[-1], {})


def drawn(seed: int) -> PipelineSet:
    """One to three pipelines of one to three stages with unlike tensor and data ranks, on at most eight devices."""
    rng = np.random.default_rng(seed)
    pipelines: list[StagedPipeline] = []
    free = 8
    for left in reversed(range(rng.integers(1, 4))):
        depth = min(int(rng.integers(1, 4)), free - left)
        cuts = sorted(rng.choice(np.arange(1, LAYERS), depth - 1, replace=False).tolist())
        workers = []
        for later in reversed(range(depth)):
            spare = free - left - later
            tensor = int(rng.choice([one for one in (1, 2, 4) if one <= spare]))
            data = int(rng.choice([one for one in (1, 2, 3) if one * tensor <= spare]))
            grid = GridSplit(grid=DeviceGrid.of(data=data, tensor=tensor), ranks_of=columns_and_rows)
            workers.append(
                StageDevices(
                    devices=tuple(range(8 - free, 8 - free + data * tensor)),
                    data=DataSharding(stage=int(rng.integers(0, 4))),
                    split=grid if tensor > 1 else None,
                )
            )
            free -= data * tensor
        pipelines.append(
            StagedPipeline(
                workers=tuple(workers),
                samples=6 * int(rng.integers(1, 3)),
                micro_batches=int(rng.integers(1, 5)),
                schedule=str(rng.choice(["1f1b", "gpipe", "zb-h1"])),
                step=step_of(frozenset(cuts)),
            )
        )
    return PipelineSet(pipelines=tuple(pipelines))


def state_and_batches(samples: int) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(0)
    weights = [{"in": rng.normal(size=(WIDTH, 12)) / 3, "out": rng.normal(size=(12, WIDTH)) / 3} for _ in range(LAYERS)]
    weights = jax.tree.map(jnp.asarray, weights)
    batches = [{name: rng.normal(size=(samples, WIDTH)) for name in "xy"} for _ in range(STEPS)]
    return {"weights": weights, "moments": jax.tree.map(jnp.zeros_like, weights)}, batches


@pytest.mark.parametrize("seed", range(8))
def test_drawn_pipelines_make_the_update_of_the_whole_batch(seed: int) -> None:
    method = drawn(seed)
    with jax_precision("fp64"):
        state, batches = state_and_batches(method.batch)
        alone, there = jax.jit(step_of(frozenset())), parallelize(step_of(frozenset()), method=method, loss="mean")
        one, many = state, state
        for batch in batches:
            (one, expected), (many, value) = alone(one, batch), there(many, batch)
            assert float(value) == pytest.approx(float(expected), rel=1e-12)
        for got, wanted in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-9, atol=1e-12)


def test_gradients_are_weighted_by_samples_not_by_pipelines() -> None:
    """Of two pipelines, one with five times the samples: an even mean of the two would be another update."""
    method = PipelineSet(
        pipelines=tuple(
            StagedPipeline(workers=(StageDevices(devices=(number,)),), samples=samples, micro_batches=count)
            for number, (samples, count) in enumerate([(5, 2), (2, 1)])
        )
    )
    step = step_of(frozenset())
    with jax_precision("fp64"):
        state, (batch, *_) = state_and_batches(12)
        there, value = parallelize(step, method=method, loss="mean")(state, batch)
        expected, wanted = jax.jit(step)(state, batch)
        halves = [step(state, {name: batch[name][part] for name in "xy"})[1] for part in (slice(10), slice(10, 12))]
        assert float(value) == pytest.approx(float(wanted), rel=1e-12)
        assert abs(float(sum(halves)) / 2 - float(wanted)) > 1e-3
        np.testing.assert_allclose(there["weights"][0]["in"], expected["weights"][0]["in"], rtol=1e-9)


def one_worker(**fields: Any) -> PipelineSet:
    return PipelineSet(
        pipelines=(StagedPipeline(workers=(StageDevices(devices=(0,)),), samples=2, micro_batches=2, **fields),)
    )


def test_what_does_not_go_together_is_said() -> None:
    state, (batch, *_) = state_and_batches(4)
    step = step_of(frozenset())
    with pytest.raises(InputError, match="loss is not given"):
        parallelize(step, method=one_worker()).lower(state, batch)
    with pytest.raises(InputError, match="a batch of 6 samples for pipelines that share 4"):
        parallelize(step, method=one_worker(), loss="mean").lower(*state_and_batches(6)[:1], state_and_batches(6)[1][0])
    with pytest.raises(InputError, match="2 marked stages for a pipeline of 1"):
        parallelize(step, method=one_worker(step=step_of(frozenset({2}))), loss="mean").lower(state, batch)
    with pytest.raises(InputError, match="a device belongs to one worker"):
        PipelineSet(pipelines=one_worker().pipelines * 2)
    two = StagedPipeline(
        workers=(StageDevices(devices=(0,)), StageDevices(devices=(1,))), samples=2, micro_batches=2, schedule="chimera"
    )
    there = parallelize(step, method=PipelineSet(pipelines=(two,)), loss="mean")
    with pytest.raises(InputError, match="schedule chimera in a set of pipelines"):
        there.lower(state, batch)
