"""Every named schedule runs as it is listed, or says why it does not."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import meshwright as mw
from meshwright.compiler.instructions import Op
from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES
from meshwright.schedules.table import Kind
from meshwright.specs import PlanRow
from meshwright.targets.run.rules import unrunnable_settings
from tests.runtime.test_versions import batch, initial, largest_difference, step

MICRO_BATCHES = 16
REFUSED = {"seq1f1b", "slimpipe", "terapipe"}
INEXACT = {"pipedream", "pipedream-2bw", "ftpipe"}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_compiled_and_checked_or_refused(name: str) -> None:
    run = mw.parallelize(
        step, method=mw.LocalPipeline(num_stages=4, num_micro_batches=MICRO_BATCHES, schedule=name, chunks=None)
    )
    shapes = jax.eval_shape(initial), jax.eval_shape(batch)
    if name in REFUSED:
        with pytest.raises(InputError, match="schedule"):
            run.lower(*shapes)
        return
    compiled = run.lower(*shapes)
    assert compiled.verified.exact == (name not in INEXACT)
    tasks = sum(one.op is Op.RUN and one.label[0] in "FBIWR" for own in compiled.program.lists for one in own)
    assert tasks >= 2 * 4 * MICRO_BATCHES


@pytest.mark.parametrize("name", ["varuna", "mario", "avgpipe"])
def test_recomputation_and_forwards_that_run_ahead_change_no_number(name: str) -> None:
    reached = []
    for schedule in ("1f1b", name):
        run = mw.parallelize(step, method=mw.LocalPipeline(num_stages=4, num_micro_batches=8, schedule=schedule))
        reached.append(run(initial(), batch()))
    assert largest_difference(*reached) < 1e-7


def test_a_map_of_stages_that_are_no_neighbours_changes_no_number_where_steps_drain() -> None:
    """Worker 1 holds the two stages in the middle, worker 0 the first and the last."""
    mapped = {"num_stages": 2, "chunks": 2, "schedule": "ftpipe-flush-0_1_1_0"}
    reached = []
    ways: tuple[dict[str, Any], ...] = ({"num_stages": 4, "schedule": "1f1b"}, mapped)
    for how in ways:
        run = mw.parallelize(step, method=mw.LocalPipeline(num_micro_batches=8, **how))
        reached.append(run(initial(), batch()))
    assert run.lower(jax.eval_shape(initial), jax.eval_shape(batch)).verified.exact
    assert largest_difference(*reached) < 1e-7


@pytest.mark.parametrize("name", ["chimera-halving", "chimera-pairs2-halving"])
def test_halves_of_micro_batches_run_apart_and_send_what_whole_ones_do(name: str) -> None:
    reached, sent = [], []
    for schedule in ("chimera", name):
        run = mw.parallelize(step, method=mw.LocalPipeline(num_stages=4, num_micro_batches=4, schedule=schedule))
        reached.append(run(initial(), batch()))
        program = run.lower(jax.eval_shape(initial), jax.eval_shape(batch)).program
        between = [
            one for own in program.lists for one in own if one.op is Op.SEND and one.label[:6] in ("SEND_F", "SEND_B")
        ]
        sent.append((len(between), sum(program.buffers[place].bytes for one in between for place in one.reads)))
    assert largest_difference(*reached) < 1e-6  # sums over other groups of samples
    assert sent[0][1]
    assert sent[1] == (2 * sent[0][0], sent[0][1])
    with pytest.raises(InputError, match=r"num_micro_batches=8, or a batch of 32"):
        mw.parallelize(step, method=mw.LocalPipeline(num_stages=4, num_micro_batches=16, schedule=name)).lower(
            jax.eval_shape(initial), jax.eval_shape(batch)
        )


def test_a_worker_runs_the_forward_of_the_next_stage_too() -> None:
    reached = []
    for schedule in ("1f1b", "bamboo"):
        run = mw.parallelize(step, method=mw.LocalPipeline(num_stages=4, num_micro_batches=4, schedule=schedule))
        reached.append(run(initial(), batch()))
    assert largest_difference(*reached) == 0.0
    program = run.lower(jax.eval_shape(initial), jax.eval_shape(batch)).program
    for mesh, own in enumerate(program.lists):
        ran = [one for one in own if one.op is Op.RUN and one.label[0] == "X"]
        assert [one.label for one in ran] == [f"X{(mesh + 1) % 4}.{unit}" for unit in range(4)]
        # It reads weights of its own copy and, but for the first stage, what it has sent on.
        weights = {feed.buffer for feed in program.feeds if feed.micro_batch is None}
        assert all(weights & set(one.reads) for one in ran)
        assert {program.buffers[place].mesh for one in ran for place in one.reads} == {mesh}


def test_a_plan_of_halves_has_an_even_number_of_samples_in_a_micro_batch() -> None:
    rows = [PlanRow(pp=4, dp=2, mbs=mbs, gbs=32, schedule="chimera-halving") for mbs in (2, 3)]
    assert not list(unrunnable_settings(rows[0]))
    assert [found.fix for found in unrunnable_settings(rows[1])] == ["mbs2, or chimera-doubling"]


def test_forwards_that_are_run_again_keep_nothing() -> None:
    run = mw.parallelize(step, method=mw.LocalPipeline(num_stages=4, num_micro_batches=16, schedule="varuna"))
    compiled = run.lower(jax.eval_shape(initial), jax.eval_shape(batch))
    program, table = compiled.program, compiled.table
    for mesh, own in enumerate(program.lists):
        forwards = [one.executable for one in own if one.label.startswith("F")]
        again = (table.kind == Kind.R) & (table.worker == mesh)
        assert forwards.count(f"F{mesh}-") == again.sum()
