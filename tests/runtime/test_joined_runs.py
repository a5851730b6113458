"""What follows one another on a mesh runs as one executable: which parts of a list do, and that no number changes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.runtime.joined_runs import JoinedRuns, joined_runs
from meshwright.runtime.local import LocalRuntime
from tests.runtime.small import batch, initial, step

WEIGHT, SAMPLES, KEPT, GRADIENT, UPDATED, NORM = range(6)


def buffers(*, updated: tuple[int, ...] = (4, 4)) -> list[Buffer]:
    shapes = {WEIGHT: (4, 4), SAMPLES: (8, 4), KEPT: (8, 4), GRADIENT: (4, 4), UPDATED: updated, NORM: ()}
    return [
        Buffer(mesh=0, shape=shapes[one], dtype="float32", bytes=4, spec=jax.sharding.PartitionSpec())
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
        0: JoinedRuns(runs=(FORWARD, BACKWARD, UPDATE), end=4, reads=(WEIGHT, SAMPLES), writes=(UPDATED,),
                      donates=(WEIGHT,), freed=(SAMPLES,))
    }  # fmt: skip
    parts = joined_runs([FORWARD, BACKWARD, FREE, SEND, UPDATE], buffers())
    assert list(parts) == [0]
    assert (parts[0].end, parts[0].writes) == (3, (GRADIENT,))


def test_memory_is_taken_only_by_a_result_that_is_left() -> None:
    (part,) = joined_runs([FORWARD, BACKWARD, FREE, UPDATE], buffers(updated=(2, 4))).values()
    assert part.donates == ()
    assert set(part.freed) == {WEIGHT, SAMPLES}


def test_what_reads_nothing_of_what_stands_before_it_is_apart() -> None:
    assert joined_runs([FORWARD, run("count", (NORM,), (UPDATED,))], buffers()) == {}


def test_what_is_computed_again_is_apart_from_the_forward() -> None:
    forward = run("F0-", (WEIGHT, SAMPLES), (NORM,))
    again = run("R0", (WEIGHT, SAMPLES, NORM), (KEPT,))
    (part,) = joined_runs([forward, again, BACKWARD, FREE, UPDATE], buffers()).values()
    assert part.name == "R0, B0, update0"


def test_with_micro_batches_a_forward_is_joined_with_its_own_backward() -> None:
    names = {(micro, one): 6 * micro + one for micro in range(3) for one in (KEPT, GRADIENT)}
    list_of = [
        Instruction(op=Op.RUN, label=f"{kind}0.{micro}", executable=f"{kind}0",
                    reads=(WEIGHT, SAMPLES if kind == "F" else names[micro, KEPT]),
                    writes=(names[micro, KEPT if kind == "F" else GRADIENT],))
        for micro in range(3) for kind in "FB"
    ]  # fmt: skip
    parts = joined_runs(list_of, buffers() * 3)
    assert [(place, part.end) for place, part in parts.items()] == [(0, 2), (2, 4), (4, 6)]
    assert len({part.form for part in parts.values()}) == 1


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize(
    "method",
    [mw.DataParallel(), mw.Zero3Parallel(), mw.PipeshardParallel(num_stages=2, num_micro_batches=2, zero=2)],
    ids=["data", "zero3", "pipeline"],
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
