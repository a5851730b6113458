"""Values that several stages combine or read: one instruction for all of them, the numbers of one device."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Buffer, Feed, Instruction, Op, StepProgram
from meshwright.compiler.instructions.verify import verify_lists
from meshwright.errors import InputError
from tests.compiler.models import largest_difference
from tests.runtime.test_versions import ADAM, STAGES, batch, loss

MICRO_BATCHES = 4
METHOD = mw.PipeshardParallel(num_stages=STAGES, num_micro_batches=MICRO_BATCHES)


def weights() -> Any:
    drawn = np.random.RandomState(2)
    return [{"w": jnp.asarray(drawn.randn(4, 4), jnp.float32), "b": jnp.zeros(4)} for _ in range(STAGES)]


def accumulated(of: Any) -> Any:
    """The same gradients on one device, micro-batch after micro-batch."""

    def value_and_grad(layers: Any, batch: Any, *more: Any) -> Any:
        parts = [jax.tree.map(lambda array: jnp.split(array, MICRO_BATCHES)[i], batch) for i in range(MICRO_BATCHES)]  # noqa: B023
        found = [jax.value_and_grad(of)(layers, part, *more) for part in parts]
        return jax.tree.map(lambda *given: sum(given[1:], given[0]) / MICRO_BATCHES, *found)

    return value_and_grad


CLIP = optax.chain(optax.clip_by_global_norm(0.1), ADAM)


def clipped(state: Any, batch: Any, differentiate: Any = mw.value_and_grad) -> Any:
    layers, optimizer = state
    value, gradients = differentiate(loss)(layers, batch)
    changes, optimizer = CLIP.update(gradients, optimizer, layers)
    return (optax.apply_updates(layers, changes), optimizer), value


def scaled_loss(layers: Any, batch: Any, scale: jax.Array) -> jax.Array:
    return loss(layers, batch) * scale


def loss_scaled(state: Any, batch: Any, differentiate: Any = mw.value_and_grad) -> Any:
    """Dynamic loss scaling: an update whose gradients are not finite is left out, and the scale halved."""
    layers, optimizer, scale, good = state
    value, gradients = differentiate(scaled_loss)(layers, batch, scale)
    gradients = jax.tree.map(lambda array: array / scale, gradients)
    finite = jnp.array(True)
    for leaf in jax.tree.leaves(gradients):
        finite &= jnp.isfinite(leaf).all()
    changes, newer = ADAM.update(gradients, optimizer, layers)
    changed = optax.apply_updates(layers, changes)
    layers, optimizer = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (changed, newer), (layers, optimizer)
    )
    good = jnp.where(finite, good + 1, 0)
    scale = jnp.where(finite, jnp.where(good % 2 == 0, scale * 2, scale), scale / 2)
    return (layers, optimizer, scale, good), value / scale


def by_loss(state: Any, batch: Any, differentiate: Any = mw.value_and_grad) -> Any:
    """A rate that depends on the loss, which every stage reads."""
    layers = state[0]
    value, gradients = differentiate(loss)(layers, batch)
    rate = 0.1 / (1 + value)
    return (jax.tree.map(lambda array, change: array - rate * change, layers, gradients),), value


def clipped_by_loss(state: Any, batch: Any, differentiate: Any = mw.value_and_grad) -> Any:
    """Both: a norm over all stages, and the loss that each of them reads."""
    layers, optimizer = state
    value, gradients = differentiate(loss)(layers, batch)
    changes, optimizer = CLIP.update(gradients, optimizer, layers)
    changes = jax.tree.map(lambda change: change / (1 + value), changes)
    return (optax.apply_updates(layers, changes), optimizer), value


def states() -> dict[str, Any]:
    layers = weights()
    return {
        "clipped": (layers, CLIP.init(layers)),
        "clipped_by_loss": (layers, CLIP.init(layers)),
        "loss_scaled": (layers, ADAM.init(layers), jnp.float32(2.0**10), jnp.int32(0)),
        "by_loss": (layers,),
    }


def ops(program: StepProgram) -> Counter[str]:
    return Counter(str(one.op) for own in program.lists for one in own if "update" in one.label)


@pytest.mark.parametrize(
    ("step", "counted"),
    [
        (clipped, {"ALLREDUCE": STAGES}),
        (loss_scaled, {"ALLREDUCE": STAGES}),
        (by_loss, {"BROADCAST": STAGES}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_stages_meet_once_and_reach_what_one_device_reaches(step: Any, counted: dict[str, int]) -> None:
    run = mw.parallelize(step, method=METHOD)
    there = here = states()[step.__name__]
    alone = jax.jit(lambda state, batch: step(state, batch, accumulated))
    reached = []
    for number in range(4):
        # With dynamic loss scaling, gradients of the third step are not finite.
        factor = jnp.inf if number == 2 and step is loss_scaled else 1.0
        given = jax.tree.map(lambda array: array.at[0, 0].mul(factor), batch())  # noqa: B023
        there, value = run(there, given)
        here, expected = alone(here, given)
        reached.append(there)
        assert np.isnan(float(expected)) or float(value) == pytest.approx(float(expected), rel=1e-5)
    assert largest_difference(there, here) < 1e-5
    found = ops(run.lower(there, batch()).program)
    assert {name: found[name] for name in counted} == counted
    assert found["SEND"] == found["RECV"] == 0
    if step is loss_scaled:
        assert [float(state[2]) for state in reached] == [2.0**10, 2.0**11, 2.0**10, 2.0**10]
        assert largest_difference(reached[2][:2], reached[1][:2]) == 0.0


def test_workers_meet_too() -> None:
    method = mw.PipeshardParallel(num_stages=2, num_micro_batches=MICRO_BATCHES, zero=1)
    state = states()["clipped_by_loss"]
    run = mw.parallelize(clipped_by_loss, method=method, backend="processes", timeout_s=60.0, hosts_per_mesh=2)
    try:
        there, value = run(state, batch())
        found = ops(run.lower(state, batch()).program)
        # Of two stages, the last one sends the loss.
        assert (found["ALLREDUCE"], found["SEND"], found["RECV"]) == (2, 1, 1)
        here, expected = jax.jit(lambda state, batch: clipped_by_loss(state, batch, accumulated))(state, batch())
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
        assert largest_difference(jax.tree.map(np.asarray, there), here) < 1e-5
    finally:
        run.close()


def three_meshes(lists: Any, buffers: int = 6) -> StepProgram:
    """Scalars, two by two on three meshes in turn; the even ones are fed."""
    held = [Buffer(mesh=number // 2 % 3, shape=(), dtype="float32", bytes=4, spec=None) for number in range(buffers)]
    feeds = tuple(Feed(buffer=number, input=number) for number in range(0, buffers, 2))
    return StepProgram(lists=tuple(map(tuple, lists)), executables={}, buffers=tuple(held), feeds=feeds, outcomes=())


def all_reduce(mesh: int, group: tuple[int, ...] = (0, 1, 2), combine: str = "add") -> list[Instruction]:
    own = Instruction(
        op=Op.ALLREDUCE, label="norm", reads=(2 * mesh,), writes=(2 * mesh + 1,), group=group, combine=combine
    )
    return [own, Instruction(op=Op.FREE, label="norm", reads=(2 * mesh, 2 * mesh + 1))]


def broadcast(mesh: int, group: tuple[int, ...] = (0, 1, 2)) -> list[Instruction]:
    if mesh == group[0]:
        one = Instruction(op=Op.BROADCAST, label="rate", reads=(2 * mesh,), group=group)
        return [one, Instruction(op=Op.FREE, label="rate", reads=(2 * mesh,))]
    one = Instruction(op=Op.BROADCAST, label="rate", writes=(2 * mesh + 1,), group=group)
    return [one, Instruction(op=Op.FREE, label="rate", reads=(2 * mesh, 2 * mesh + 1))]


def test_collectives_of_all_their_meshes_pass() -> None:
    found = verify_lists(three_meshes([all_reduce(mesh) for mesh in range(3)]))
    assert (found.messages, found.message_bytes, found.peak_bytes) == (6, 24, (8, 8, 8))
    found = verify_lists(three_meshes([broadcast(mesh) for mesh in range(3)]))
    assert (found.messages, found.message_bytes) == (2, 8)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ([all_reduce(0), all_reduce(1), []], "waits for a message that nobody sends"),
        ([all_reduce(0), all_reduce(1), all_reduce(2, combine="max")], "meets ALLREDUCE norm of mesh"),
        ([all_reduce(0), all_reduce(1), all_reduce(2, group=(0, 2, 1))], "meets ALLREDUCE"),
        ([all_reduce(0), all_reduce(1), broadcast(2)], "meets ALLREDUCE"),
        ([all_reduce(0), all_reduce(1), all_reduce(2, group=(0, 1))], "stands on mesh 2 with the group"),
        ([all_reduce(0, combine="mul"), all_reduce(1), all_reduce(2)], "by mul"),
        ([broadcast(0), broadcast(1), broadcast(2)[1:]], "holds a value|which is not there|never receives"),
    ],
)
def test_collectives_that_do_not_meet_are_told(lists: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        verify_lists(three_meshes(lists))


def test_two_collectives_in_different_orders_are_told() -> None:
    first = [all_reduce(mesh) for mesh in range(3)]
    second = [
        [
            replace(
                one,
                label="finite",
                combine="max",
                reads=tuple(n + 6 for n in one.reads),
                writes=tuple(n + 6 for n in one.writes),
            )
            for one in own
        ]
        for own in first
    ]
    both = [[*a, *b] for a, b in zip(first, second, strict=True)]
    program = three_meshes(both, buffers=12)
    assert verify_lists(program).messages == 12
    swapped = replace(program, lists=(*program.lists[:2], (*second[2], *first[2])))
    with pytest.raises(InputError, match=r"meets ALLREDUCE (norm|finite) of mesh"):
        verify_lists(swapped)
