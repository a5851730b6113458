"""Stages paged from host memory (Mobius): one device's step, two stages on a device, and the priced traffic."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.compiler.instructions import Instruction, Op, StepProgram
from meshwright.compiler.methods.pipeshard import PipeshardParallel
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.layout import ModelLayout
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parallelize import parallelize
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.plan_method import check_runs
from meshwright.runtime.training.run import Training
from meshwright.schedules import known_names
from meshwright.schedules.named.mobius import Mobius
from meshwright.schedules.table import Kind
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.zoo.tiny import TINY
from meshwright.zoo.training import ADAM, Adam, train_step

LENGTH = 8
PLAN = "mobius.pp2.vpp2.dp1.mbs1.gbs4.rc-full.off-wog"


def row(plan: str) -> PlanRow:
    return parse_row(plan, devices=8, global_batch=0, schedules=known_names())


def training(model: str = "llama-tiny", plan: str = PLAN, **settings: Any) -> Training:
    layers = ModelLayout.of(TINY[model], LENGTH).split_of(row(plan))
    return Training(spec=TINY[model], row=row(plan), stage_layers=layers, seq_len=LENGTH, **settings)


@cache
def program() -> StepProgram:
    own = training()
    return own.step(jax.devices()).lower(*jax.eval_shape(lambda: (own.initial(), own.batch(0)))).program


def size(found: StepProgram, one: Instruction) -> int:
    return sum(found.buffers[buffer].bytes for buffer in one.reads)


@pytest.mark.parametrize(
    ("model", "plan", "backend", "dtype", "steps"),
    [
        ("llama-tiny", PLAN, "local", "fp64", 3),
        ("gpt-tiny", "mobius.pp2.vpp2.dp1.mbs2.gbs8.off-wog", "processes", "fp32", 5),
        ("moe-tiny", "mobius.pp2.vpp2.dp1.mbs1.gbs6.rc-full.off-wog", "local", "fp64", 2),
    ],
)
def test_paged_stages_end_where_one_device_ends(model: str, plan: str, backend: str, dtype: str, steps: int) -> None:
    with jax_precision(dtype):
        own = training(model, plan, backend=backend)
        state = own.initial()
        found = parity_of(run_parallel(own, jax.devices(), steps, state), run_alone(own, steps, state), dtype)
    assert found.holds, (found.loss, found.gradient, found.weight)


def test_states_wait_in_the_memory_of_the_host() -> None:
    own = training()
    state, _ = own.step(jax.devices())(own.initial(), own.batch(0))
    for leaf in jax.tree.leaves((state["weights"], state["moments"])):
        assert leaf.size <= 16 or leaf.sharding.memory_kind == "pinned_host"


def test_weights_are_reloaded_as_often_as_the_schedule_says_and_gradients_offloaded_once() -> None:
    found, table = program(), Mobius().paged_table(2, 4, 2)
    own = training().initial()["weights"]
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(own))
    reloads = Counter(worker for worker, kind in zip(table.worker, table.kind, strict=True) if kind == Kind.RELOAD_W)
    for mesh, instructions in enumerate(found.lists):
        assert sum(one.op is Op.RELOAD for one in instructions) == reloads[mesh] == 3
    reloaded = sum(size(found, one) for instructions in found.lists for one in instructions if one.op is Op.RELOAD)
    offloaded = sum(size(found, one) for instructions in found.lists for one in instructions if one.op is Op.OFFLOAD)
    # Twice, but for the last stage of each mesh, which stays between its forward and its backward.
    last = sum(max(size(found, one) for one in own if one.op is Op.RELOAD and "F" in one.label) for own in found.lists)
    assert offloaded == weights
    assert weights < reloaded <= 2 * weights
    assert 2 * weights - reloaded <= last + weights // 100


def test_two_stages_are_on_the_device_and_the_next_comes_while_one_computes() -> None:
    found = program()
    for instructions in found.lists:
        turns = [one for one in instructions if one.op is Op.RELOAD]
        two = max(size(found, one) + size(found, other) for one, other in pairwise(turns))
        there, most = dict[int, int](), 0
        for one in instructions:
            if one.op is Op.RELOAD:
                there.update((buffer, found.buffers[buffer].bytes) for buffer in one.writes)
            if one.op is Op.FREE:
                for buffer in one.reads:
                    there.pop(buffer, None)
            most = max(most, sum(there.values()))
        assert most == two
        labels = [f"{one.op} {one.label}" for one in instructions]
        ahead = [(turn.label, before.label.removeprefix("RELOAD_")) for before, turn in pairwise(turns)]
        for coming, working in ahead:
            assert labels.index(f"RELOAD {coming}") < labels.index(f"RUN {working}")


def test_a_smaller_part_of_the_states_is_on_the_device_than_where_stages_stay() -> None:
    own = training(plan="breadth-first.pp2.vpp2.dp1.mbs1.gbs4.rc-full")
    stays = own.step(jax.devices()).lower(*jax.eval_shape(lambda: (own.initial(), own.batch(0)))).verified
    paged = training()
    lists = paged.step(jax.devices()).lower(*jax.eval_shape(lambda: (paged.initial(), paged.batch(0)))).verified
    assert np.all(2 * np.array(lists.peak_bytes) < np.array(stays.peak_bytes))


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (PLAN.replace("off-wog", "off-wo"), "off-wo does not run with mobius"),
        (PLAN.replace("off-wog", "off-wog-nvme"), "off-wog-nvme does not run"),
        (f"tp2.{PLAN}", "mobius with tp2"),
    ],
)
def test_what_is_not_paged_here_is_refused(plan: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        check_runs(row(plan))


def test_stages_of_several_devices_are_not_paged() -> None:
    own = training(plan="1f1b.pp2.dp4.mbs1.gbs8")
    method = PipeshardParallel(num_stages=2, num_micro_batches=2, schedule="mobius", chunks=2, paged=True)
    with pytest.raises(UnsupportedError, match="paged stages of 4 devices"):
        parallelize(train_step(own.model(), ADAM, 0), method=method).lower(own.initial(), own.batch(0))


def test_a_step_that_cannot_be_cut_is_not_run_whole_in_place_of_paged_stages() -> None:
    method = PipeshardParallel(num_stages=2, schedule="mobius", chunks=2, paged=True, devices=jax.devices()[:2])
    with pytest.raises(InputError):
        parallelize(lambda state, batch: (state + batch.sum(), batch), method=method).lower(np.ones(4), np.ones((4, 4)))


def test_stages_that_share_weights_on_one_device_still_take_turns() -> None:
    own = training("gpt-tiny", "mobius.pp1.vpp2.dp1.mbs1.gbs2.off-wog")
    found = own.step(jax.devices()).lower(*jax.eval_shape(lambda: (own.initial(), own.batch(0)))).program
    assert sum(one.op is Op.RELOAD for one in found.lists[0]) == 3


def test_weights_that_change_within_a_step_are_not_paged() -> None:
    own = training(plan="1f1b.pp2.dp1.mbs1.gbs4")
    method = PipeshardParallel(
        num_stages=2, num_micro_batches=4, schedule="pipedream", updates=4, paged=True, devices=jax.devices()[:2]
    )
    with pytest.raises(UnsupportedError, match="paged stages with 4 updates"):
        parallelize(train_step(own.model(), Adam(clip=None), 0), method=method).lower(own.initial(), own.batch(0))
