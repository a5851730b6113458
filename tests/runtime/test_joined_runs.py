"""What follows one another on a mesh runs as one executable: which parts of a list do, and that no number changes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.runtime.joined_runs import LITTLE_BYTES, JoinedRuns, joined_runs
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.repeated_runs import RepeatedRuns
from tests.corpus.table import CASES
from tests.runtime.small import batch, initial, step

WEIGHT, SAMPLES, KEPT, GRADIENT, UPDATED, NORM = range(6)


def buffers(*, updated: tuple[int, ...] = (4, 4), size: int = 4) -> list[Buffer]:
    shapes = {WEIGHT: (4, 4), SAMPLES: (8, 4), KEPT: (8, 4), GRADIENT: (4, 4), UPDATED: updated, NORM: ()}
    return [
        Buffer(mesh=0, shape=shapes[one], dtype="float32", bytes=size, spec=jax.sharding.PartitionSpec())
        for one in range(6)
    ]


def run(name: str, reads: tuple[int, ...], writes: tuple[int, ...], donates: tuple[int, ...] = ()) -> Instruction:
    return Instruction(op=Op.RUN, label=f"{name}.0", reads=reads, writes=writes, executable=name, donates=donates)


FORWARD = run("F0", (WEIGHT, SAMPLES), (KEPT,))
BACKWARD = run("B0", (WEIGHT, KEPT), (GRADIENT,))
FREE = Instruction(op=Op.FREE, label="B0.0", reads=(SAMPLES, KEPT))
UPDATE = run("update0", (WEIGHT, GRADIENT), (UPDATED,), (WEIGHT, GRADIENT))
SEND = Instruction(op=Op.SEND, label="SEND", reads=(GRADIENT,), peer=1)


def test_all_between_two_messages_is_one_executable() -> None:
    assert joined_runs([FORWARD, BACKWARD, FREE, UPDATE], buffers()) == {
        0: JoinedRuns(
            parts=(FORWARD, BACKWARD, UPDATE),
            end=4,
            reads=(SAMPLES, WEIGHT),
            writes=(UPDATED,),
            donates=(WEIGHT,),
            freed=(SAMPLES,),
        )
    }
    parts = joined_runs([FORWARD, BACKWARD, FREE, SEND, UPDATE], buffers())
    assert list(parts) == [0]
    assert (parts[0].end, parts[0].writes) == (3, (GRADIENT,))


def test_memory_is_taken_only_by_a_result_that_is_left() -> None:
    (part,) = joined_runs([FORWARD, BACKWARD, FREE, UPDATE], buffers(updated=(2, 4))).values()
    assert part.donates == ()
    assert set(part.freed) == {WEIGHT, SAMPLES}


def test_what_reads_nothing_of_what_stands_before_it_is_apart() -> None:
    apart = [FORWARD, run("count", (NORM,), (UPDATED,))]
    assert joined_runs(apart, buffers(size=LITTLE_BYTES + 1)) == {}
    (part,) = joined_runs(apart, buffers(size=LITTLE_BYTES)).values()
    assert part.name == "F0, count"


def test_little_joins_nothing_that_comes_again() -> None:
    tasks = micro_batches(added=False)
    message = Instruction(op=Op.SEND, label="SEND", reads=(WEIGHT,), peer=1)
    alike = [*tasks[:1], run("count", (NORM,), (UPDATED,)), message, *tasks[3:4]]
    assert joined_runs(alike, buffers() * 3) == {}


def test_what_is_computed_again_is_apart_from_the_forward() -> None:
    forward = run("F0-", (WEIGHT, SAMPLES), (NORM,))
    again = run("R0", (WEIGHT, SAMPLES, NORM), (KEPT,))
    (part,) = joined_runs([forward, again, BACKWARD, FREE, UPDATE], buffers()).values()
    assert part.name == "R0, B0, update0"


def micro_batches(*, added: bool) -> list[Instruction]:
    """Three, whose gradients are added up or stand side by side."""
    names = {(micro, one): 6 * micro + one for micro in range(3) for one in range(6)}
    found = []
    for micro in range(3):
        found.append(run("F0", (WEIGHT, names[micro, SAMPLES]), (names[micro, KEPT],)))
        sums = (names[micro - 1, GRADIENT],) if added and micro else ()
        reads = (WEIGHT, names[micro, KEPT], *sums)
        found.append(run("B0+" if sums else "B0", reads, (names[micro, GRADIENT],), sums))
        found[-2:] = [replace(one, label=f"{one.label[:2]}.{micro}") for one in found[-2:]]
        found.append(Instruction(op=Op.FREE, label=f"B0.{micro}", reads=(names[micro, SAMPLES], names[micro, KEPT])))
    return found


def test_micro_batches_that_alternate_with_messages_have_a_forward_and_its_own_backward_joined() -> None:
    tasks = micro_batches(added=False)
    message = Instruction(op=Op.SEND, label="SEND", reads=(WEIGHT,), peer=1)
    parts = joined_runs([*tasks[:3], message, *tasks[3:6], message, *tasks[6:]], buffers() * 3)
    assert [(place, part.end) for place, part in parts.items()] == [(0, 3), (4, 7), (8, 11)]
    assert len({part.form for part in parts.values()}) == 1


def test_micro_batches_without_messages_are_one_loop() -> None:
    (part,) = joined_runs(micro_batches(added=True), buffers() * 3).values()
    (loop,) = part.parts
    assert isinstance(loop, RepeatedRuns)
    assert part.name == "3 x (F0 B0+)"
    assert (loop.whole, loop.each) == ((WEIGHT,), ((SAMPLES, 6 + SAMPLES, 12 + SAMPLES),))
    assert (loop.sums, loop.results) == (((6 + GRADIENT, 12 + GRADIENT),), ())
    assert part.writes == (12 + GRADIENT,)
    (part,) = joined_runs(micro_batches(added=False), buffers() * 3).values()
    (loop,) = part.parts
    assert isinstance(loop, RepeatedRuns)
    assert (loop.sums, loop.results) == ((), ((GRADIENT, 6 + GRADIENT, 12 + GRADIENT),))


def test_a_micro_batch_that_reads_of_another_is_in_no_loop() -> None:
    tasks = micro_batches(added=False)
    tasks[3] = replace(tasks[3], reads=(GRADIENT, *tasks[3].reads[1:]))
    assert not any(
        isinstance(one, RepeatedRuns) for part in joined_runs(tasks, buffers() * 3).values() for one in part.parts
    )


def test_all_phases_of_batch_norm_are_one_executable() -> None:
    """What is made of sums over the batch is made once for all micro-batches, which then are one loop."""
    case = CASES["nnx_batch_norm"]()
    parallel = mw.parallelize(case.step, method=mw.DataParallel(num_micro_batches=2), **case.options)
    case.call(parallel, case.state, case.batch)
    runtime = parallel.compiled().runtime
    assert isinstance(runtime, LocalRuntime)
    ((executor,), (part,)) = runtime.executors, runtime.executors[0].joined.values()
    assert part.end == len(executor.instructions)
    names = [one.executable or "" for one in executor.instructions if one.op is Op.RUN]
    once = [name for name in names if name.startswith("before")]
    assert once
    assert len(once) == len(set(once))
    assert any(name.startswith("phase") for name in names)


def test_donated_state_is_updated_in_its_own_memory() -> None:
    """Copied out of the way of one another, weights and moments take longer than with `jax.jit`."""
    parallel = mw.parallelize(step, method=mw.DataParallel(num_micro_batches=2, devices=jax.devices()[:1]), donate=True)
    runtime = parallel.lower(initial(), batch()).runtime
    assert isinstance(runtime, LocalRuntime)
    ((executor,), (part,)) = runtime.executors, runtime.executors[0].joined.values()
    text = executor.compiled_together(part).as_text()
    count = len(jax.tree.leaves(initial()))
    assert len(part.donates) == count
    assert text.count("may-alias") + text.count("must-alias") == count
    copied = re.findall(r"f32\[4,4\]\S* copy\(%(\w+)", text[text.index("ENTRY ") :])
    assert set(copied) <= {"broadcast"}  # the zeros that sums begin with


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        mw.DataParallel(),
        mw.DataParallel(num_micro_batches=4, devices=jax.devices()[:2]),
        mw.Zero3Parallel(num_micro_batches=2, devices=jax.devices()[:2]),
        mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=2),
    ],
    ids=["data", "data in micro-batches", "zero3", "pipeline"],
)
def test_joined_steps_end_where_steps_instruction_by_instruction_end(method: Any, donate: bool) -> None:
    ends = []
    for joined in (True, False):
        parallel = mw.parallelize(step, method=method, donate=donate)
        runtime = parallel.lower(initial(), batch()).runtime
        assert isinstance(runtime, LocalRuntime)
        assert any(executor.joined for executor in runtime.executors)
        for executor in runtime.executors:
            executor.joined = executor.joined if joined else {}
        state = initial()
        for _ in range(3):
            state, value = parallel(state, batch())
        ends.append((jax.device_get(state), float(value)))
    for one, other in zip(jax.tree.leaves(ends[0]), jax.tree.leaves(ends[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


def test_the_text_of_what_runs_as_one_has_all_names() -> None:
    compiled = mw.parallelize(step, method=mw.DataParallel()).lower(initial(), batch())
    texts = compiled.hlo()
    (joined,) = set(texts) - set(compiled.program.executables)
    assert joined.startswith("F0, B0, ")
    assert "update0" in joined
    assert "all-reduce" in texts[joined]


def test_timing_begins_with_every_instruction_compiled_and_no_work_pending() -> None:
    runtime = mw.parallelize(step, method=mw.DataParallel()).lower(initial(), batch()).runtime
    assert isinstance(runtime, LocalRuntime)
    (executor,) = runtime.executors

    @jax.jit
    def long(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x)

    given = jnp.ones((600, 600))
    executor.compiled_apart()
    pending = long(given)
    executor.begin_timing()
    assert pending.is_ready()
    runs = {place for place, one in enumerate(executor.instructions) if one.op is Op.RUN}
    assert set(executor.compiled_apart()) == runs
