"""Steps whose stages, submeshes and shardings were planned end where the same steps on one device end."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.methods.auto import Auto
from meshwright.compiler.methods.decided import FromPlan
from meshwright.compiler.methods.pipeshard import PipeshardParallel
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.stages.plan import StagePlan, StagesPlan
from meshwright.compiler.stages.search import StageSpace, plan_step
from meshwright.errors import InputError
from meshwright.runtime.parallelize import parallelize
from tests.compiler.models import accumulated, initial, largest_difference, step, tokens

SAMPLES = 16
SLOW = Hosts(
    hosts=1,
    devices_per_host=8,
    flop_per_s=1e7,
    inside_bytes_per_s=1e9,
    between_bytes_per_s=1e9,
    inside_latency_s=1e-8,
    between_latency_s=1e-8,
)
"""Devices so slow that tiny products are worth splitting."""


def stage(layers: tuple[int, int], first_device: int, mesh_shape: tuple[int, ...], in_flight: int) -> StagePlan:
    return StagePlan(
        layers=layers,
        first_device=first_device,
        mesh_shape=mesh_shape,
        forward_s=1.0,
        backward_s=2.0,
        sending_s=0.0,
        state_bytes=0.0,
        kept_bytes=0.0,
        transient_bytes=0.0,
        in_flight=in_flight,
    )


def network_loss(weights: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for up, down in weights:
        x = x + jnp.tanh(x @ up) @ down
    return jnp.mean((x - batch["y"]) ** 2)


def network_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    weights, momentum = state
    value, gradients = value_and_grad(network_loss)(weights, batch)
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, gradients)
    return (jax.tree.map(lambda weight, change: weight - 0.1 * change, weights, momentum), momentum), value


def network() -> tuple[Any, Any]:
    drawn = np.random.default_rng(0)
    weights = [
        tuple(jnp.asarray(drawn.normal(size=shape) / 4, jnp.float32) for shape in ((8, 16), (16, 8))) for _ in range(6)
    ]
    batch = {name: jnp.asarray(drawn.normal(size=(SAMPLES, 8)), jnp.float32) for name in "xy"}
    return (weights, jax.tree.map(jnp.zeros_like, weights)), batch


def given_stages(plan: StagesPlan, counts: list[int], shapes: list[tuple[int, ...]]) -> StagesPlan:
    """The plan with layers and submeshes of our choice."""
    ends = list(accumulate(counts))
    assert ends[-1] == len(plan.layer_ends)
    devices = [0, *accumulate(prod(shape) for shape in shapes)]
    stages = tuple(
        stage((end - count, end - 1), device, shape, len(shapes) - place)
        for place, (count, end, device, shape) in enumerate(zip(counts, ends, devices, shapes, strict=False))
    )
    return replace(plan, stages=stages)


@pytest.mark.parametrize(
    ("counts", "shapes", "recompute"),
    [([2, 3, 2], [(2,), (2,), (2, 2)], False), ([1, 6], [(1,), (2, 2)], True), ([4, 3], [(4,), (2,)], False)],
)
def test_stages_on_unequal_submeshes_end_where_one_device_ends(
    counts: list[int], shapes: list[tuple[int, ...]], recompute: bool
) -> None:
    state, batch = network()
    plan = plan_step(network_step, (state, batch), SLOW, space=StageSpace(micro_batches=(2,), recompute=(recompute,)))
    run = parallelize(network_step, method=FromPlan(plan=given_stages(plan, counts, shapes)))
    reached = state
    for _ in range(2):
        state, value = run(state, batch)
        reached, expected = jax.jit(network_step)(reached, batch)
    assert abs(float(value) - float(expected)) < 1e-5
    assert largest_difference(state, reached) < 1e-5
    compiled = run.lower(state, batch)
    assert [len(each.device_set) for each in _placements(compiled)] == [prod(shape) for shape in shapes]
    assert compiled.explain().count("mesh") >= len(shapes)
    remade = [name for name, each in compiled.program.executables.items() if "remat2" in str(each.jaxpr)]
    assert bool(remade) == recompute


def _placements(compiled: Any) -> list[Any]:
    first = {}
    for number, buffer in enumerate(compiled.program.buffers):
        first.setdefault(buffer.mesh, number)
    return [compiled.runtime.sharding(first[mesh]) for mesh in sorted(first)]


def test_everything_chosen_and_replayed_from_a_saved_plan(tmp_path: Any) -> None:
    state, batch = initial(), tokens(SAMPLES)
    run = parallelize(step, method=Auto(hosts=SLOW, num_micro_batches=2))
    plan = run.lower(state, batch).plan
    assert sum(each.devices for each in plan.stages) == 8
    assert all(each.choice for each in plan.stages)
    plan.save(tmp_path / "plan.json")
    again = parallelize(step, method=FromPlan(plan=StagesPlan.load(tmp_path / "plan.json"))).lower(state, batch)
    assert again.plan == plan
    assert str(again.program) == str(run.lower(state, batch).program)
    found, value, extra = run(state, batch)
    expected, loss, expected_extra = jax.jit(accumulated, static_argnums=2)(state, batch, 2)
    assert abs(float(value) - float(loss)) < 1e-5
    assert largest_difference(found, expected) < 1e-5
    assert int(extra["right"]) == int(expected_extra["right"])


def test_islands_visited_in_another_order_than_their_devices_end_where_one_device_ends() -> None:
    """The first stage needs the island that has memory, whose devices come last."""
    state, batch = network()
    small = replace(SLOW, name="small", devices_per_host=2, memory_bytes=2500.0)
    large = replace(SLOW, name="large", devices_per_host=2)
    method = Auto(hosts=Islands(groups=(small, large)), num_micro_batches=4, recompute=False)
    run = parallelize(network_step, method=method)
    plan = run.lower(state, batch).plan
    assert plan.group_of(plan.stages[0]).name == "large"
    assert plan.group_of(plan.stages[-1]).name == "small"
    there, value = run(state, batch)
    here, expected = jax.jit(network_step)(state, batch)
    assert abs(float(value) - float(expected)) < 1e-5
    assert largest_difference(there, here) < 1e-5


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_stages_may_be_found_alone(schedule: str) -> None:
    state, batch = network()
    hosts = replace(SLOW, hosts=4, devices_per_host=2, between_latency_s=1e-4)
    method = PipeshardParallel(num_stages="auto", num_micro_batches=4, zero=2, schedule=schedule, hosts=hosts)
    run = parallelize(network_step, method=method)
    compiled = run.lower(state, batch)
    assert compiled.program.meshes > 1
    assert len(compiled.plan.stage_ends) == compiled.program.meshes
    assert compiled.table.micro_batches == (4,)
    there, value = run(state, batch)
    here, expected = jax.jit(network_step)(state, batch)
    assert abs(float(value) - float(expected)) < 1e-5
    assert largest_difference(there, here) < 1e-5


def test_what_auto_stages_exclude() -> None:
    with pytest.raises(InputError, match="chunks = 2") as raised:
        PipeshardParallel(num_stages="auto", chunks=2, hosts=SLOW, devices=jax.devices()[:2])
    assert "hosts of 8 devices, and 2 devices" in str(raised.value)
    with pytest.raises(InputError, match='num_stages = "all"'):
        PipeshardParallel(num_stages="all")
    with pytest.raises(InputError, match="hosts with num_stages = 2"):
        PipeshardParallel(hosts=SLOW)


def test_a_plan_of_another_step_is_refused() -> None:
    state = initial()
    plan = plan_step(step, (state, tokens(SAMPLES)), SLOW, space=StageSpace(micro_batches=(2,)))
    with pytest.raises(InputError, match="the plan is of another step"):
        parallelize(step, method=FromPlan(plan=plan)).lower(state, tokens(2 * SAMPLES))
    few = parallelize(step, method=FromPlan(plan=plan, devices=jax.devices()[:2]))
    with pytest.raises(InputError, match="the plan is for 8 devices, 2 are here"):
        few.lower(state, tokens(SAMPLES))
