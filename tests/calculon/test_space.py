"""Spaces hold exactly the executions their constraints allow, and know how many without walking them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.calculon.executions import KEYS
from meshwright.calculon.legality import RULES, reject
from meshwright.calculon.reading import read_application, read_system
from meshwright.errors import InfeasibleError
from tests.calculon.spaces import SMALL, WIDE, a100, loops, one_network, space_of


@pytest.mark.parametrize(
    ("procs", "options", "size"),
    [
        (512, {}, 6_582_816),
        (1024, {}, 5_848_960),
        (2048, {}, 4_827_520),
        (4096, {}, 3_694_208),
        (512, {"tp_overlap": False}, 2_275_744),
        (512, {"tp_overlap": False, "dp_overlap": False}, 1_146_992),
    ],
)
def test_the_space_of_optimal_execution_has_the_size_calculon_counts(procs: int, options: dict, size: int) -> None:
    space = space_of(read_application("gpt3-175B"), read_system("a100_80g"), procs, 512, "optimal-execution", **options)
    assert space.size == size


def test_the_full_space_is_large_and_holds_the_other() -> None:
    app, system = read_application("gpt3-175B"), read_system("a100_80g")
    full = space_of(app, system, 512, 512, "full")
    assert full.size > 100_000_000
    inner = space_of(app, system, 512, 512, "optimal-execution").sample(2000, seed=1)
    held = full.axes
    for row in range(0, 2000, 250):
        pinned = held
        execution = inner.row(row)
        for key in KEYS:
            if key not in ("num_procs", "training"):
                pinned = pinned.pin(key, (getattr(execution, key),))
        assert replace_axes(full, pinned).size == 1


def replace_axes(space, axes):
    return type(space)(space.app, space.system, space.num_procs, space.batch, axes)


@pytest.mark.parametrize("full", [False, True], ids=["optimal-execution", "full"])
@pytest.mark.parametrize(
    ("app", "system", "procs", "batch"),
    [
        (SMALL, a100(), 4, 2),
        (SMALL, a100(tier2_gib=0.0), 6, 7),
        (WIDE, one_network(a100(tier2_gib=0.0)), 16, 6),
        (WIDE, read_system("h100_80g_nvl8"), 2, 2),
    ],
)
def test_a_space_holds_what_nested_loops_find_each_once(app, system, procs: int, batch: int, full: bool) -> None:
    space = space_of(app, system, procs, batch, "full" if full else "optimal-execution")
    columns = space.take(np.arange(space.size))
    found = {tuple(getattr(columns.row(row), key) for key in KEYS) for row in range(0, space.size, 7)}
    expected = list(loops(app, system, procs, batch, full=full))
    assert space.size == len(expected) == len(set(expected))
    assert found <= set(expected)
    rows = np.stack([np.asarray(getattr(columns, key)).astype(np.int64) for key in KEYS], axis=1)
    assert len(np.unique(rows, axis=0)) == space.size


SURVIVABLE = {rule.text for rule in RULES if rule.survivable} | {
    "with reduce-scatter and all-gather it divides microbatch_size x seq_size"
}


@given(
    procs=st.integers(1, 200),
    batch=st.integers(1, 64),
    seed=st.integers(0, 9),
    name=st.sampled_from(["full", "optimal-execution"]),
)
def test_drawn_executions_break_no_rule_but_those_of_networks_offload_and_tokens(
    procs: int, batch: int, seed: int, name: str
) -> None:
    space = space_of(SMALL, a100(), procs, batch, name)
    if not space.size:
        with pytest.raises(InfeasibleError):
            space.require_executions()
        return
    columns = space.sample(200, seed)
    codes = reject(space.app, space.system, columns)
    assert {RULES[code].text for code in np.unique(codes[codes > 0])} <= SURVIVABLE
    assert (columns.tensor_par * columns.pipeline_par * columns.data_par == procs).all()
    assert (columns.batch_size <= batch).all()


def test_samples_are_uniform_and_repeat_with_their_seed() -> None:
    space = space_of(SMALL, a100(), 8, 8, "full")
    one, again, other = space.sample(500, 3), space.sample(500, 3), space.sample(500, 4)
    assert (one.microbatch_size == again.microbatch_size).all()
    assert (one.microbatch_size != other.microbatch_size).any()
    every = space.take(np.arange(space.size))
    drawn = space.sample(20_000, 5)
    for degree in np.unique(every.tensor_par):
        share, expected = (drawn.tensor_par == degree).mean(), (every.tensor_par == degree).mean()
        assert share == pytest.approx(expected, abs=0.02)


def test_pins_hold_keys_and_needs_still_count() -> None:
    space = space_of(
        SMALL, a100(), 8, 8, "full", pins={"tensor_par": (2, 4), "seq_par_ag_redo": (True,), "batch_size": (8,)}
    )
    columns = space.take(np.arange(space.size))
    assert set(np.unique(columns.tensor_par)) == {2, 4}
    assert columns.seq_par_ag_redo.all()
    assert (columns.activation_recompute != 0).all()
    assert set(np.unique(columns.batch_size)) == {8}
    assert {"tensor_par is 2 or 4", "batch_size is 8"} <= set(space.axes.constraints())


@pytest.mark.parametrize(
    ("procs", "batch", "pins", "key", "word"),
    [
        (7 * 11, 77, {"tensor_par": (7,)}, "tensor_par", "divides"),
        (8, 8, {"tensor_par": (8,), "pipeline_par": (2,)}, "pipeline_par", "num_procs"),
        (64, 8, {"pipeline_par": (1,), "tensor_par": (1,)}, "batch_size", "data degree"),
        (8, 8, {"microbatch_size": (7,)}, "microbatch_size", "replica_batch"),
        (8, 8, {"tensor_par": (1,), "tensor_par_overlap": ("ring",)}, "pins", "tensor_par_overlap is ring"),
    ],
)
def test_an_empty_space_names_the_constraint_that_empties_it(procs, batch, pins, key: str, word: str) -> None:
    space = space_of(SMALL, a100(), procs, batch, "optimal-execution", pins=pins)
    assert space.size == 0
    with pytest.raises(InfeasibleError, match=word) as caught:
        space.require_executions()
    assert caught.value.problems[0].field == key


def test_a_system_without_second_tier_has_no_offload() -> None:
    system = replace(a100(), mem2=replace(a100().mem2, capacity_bytes=0.0))
    columns = space_of(SMALL, system, 8, 8, "full").sample(500)
    assert not (columns.weight_offload | columns.activations_offload | columns.optimizer_offload).any()
