"""Products of an update that need no gradient run where a mesh waits for a micro-batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.compiler.lowering.ahead import longest_waits
from meshwright.schedules import SCHEDULES
from meshwright.schedules.communication import with_communication
from meshwright.schedules.table import Kind
from tests.compiler.models import largest_difference

STAGES, WIDTH = 4, 8


def loss(weights: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for layer in weights:
        x = jnp.tanh(x @ layer)
    return (x**2).mean()


def step(state: Any, batch: Any, *, mixed: bool = False) -> Any:
    """Gradients times a product of what the step before has left; or of what it left on two stages."""
    weights, kept = state
    value, gradients = mw.value_and_grad(loss)(weights, batch)
    shares = [one @ (kept[place - 1] if mixed else one) for place, one in enumerate(kept)]
    moved = [
        weight - 0.1 * share @ gradient for weight, share, gradient in zip(weights, shares, gradients, strict=True)
    ]
    return (moved, [0.5 * one + gradient for one, gradient in zip(kept, gradients, strict=True)]), value


def across(state: Any, batch: Any) -> Any:
    return step(state, batch, mixed=True)


def initial() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 2 * STAGES)
    drawn = [jax.random.normal(key, (WIDTH, WIDTH)) for key in keys]
    return drawn[:STAGES], drawn[STAGES:]


def batch() -> dict[str, jax.Array]:
    return {"x": jax.random.normal(jax.random.key(1), (8, WIDTH))}


def lists_of(run: Any) -> list[list[str]]:
    program = run.lower(initial(), batch()).program
    return [[one.label for one in own if one.op is Op.RUN] for own in program.lists]


def test_each_mesh_of_1f1b_makes_its_own_before_its_first_task_or_its_first_backward() -> None:
    run = mw.parallelize(step, method=mw.LocalPipeline(num_stages=STAGES, num_micro_batches=8, schedule="1f1b"))
    for mesh, labels in enumerate(lists_of(run)):
        (place,) = [at for at, label in enumerate(labels) if label.startswith("ahead")]
        tasks = [label for label in labels[:place] if label[0] == "F"]
        # The first waits 3 forwards and backwards less what it has begun with, the last for 3 forwards.
        assert tasks == [f"F{mesh}.{unit}" for unit in range(STAGES - mesh if mesh < 2 else 0)]
        assert any(label.startswith("update") for label in labels[place:])
    assert largest_difference(run(initial(), batch()), jax.jit(step)(initial(), batch())) < 1e-6


def test_products_of_values_of_several_meshes_stay_behind_the_gradients() -> None:
    method = mw.LocalPipeline(num_stages=STAGES, num_micro_batches=8, schedule="1f1b")
    run = mw.parallelize(across, method=method)
    assert not any(label.startswith("ahead") for labels in lists_of(run) for label in labels)
    assert largest_difference(run(initial(), batch()), jax.jit(across)(initial(), batch())) < 1e-6


@pytest.mark.parametrize("name", [name for name, one in SCHEDULES.items() if one.flushes])
def test_the_longest_wait_of_every_worker_is_before_a_receive_or_a_task(name: str) -> None:
    schedule = SCHEDULES[name]
    table = with_communication(schedule.table(4, 8, schedule.fewest_chunks(4, 8)))
    found = longest_waits(table)
    assert sorted(found.values()) == [0, 1, 2, 3]
    assert all(table.worker[task] == worker for task, worker in found.items())
    assert not {int(table.kind[task]) for task in found} & {Kind.SEND_F, Kind.SEND_B}
