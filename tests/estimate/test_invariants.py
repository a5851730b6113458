"""What holds for every plan: more hardware never hurts, and what saves memory saves it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import jaxtyping
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.estimate.memory import MEMORY_KINDS
from meshwright.estimate.result import StepEstimate
from tests.estimate.cases import LATENT, MIXED, Case, cases, memory, part

NEVER = 1 + 1e-9
"""Room for rounding in `never slower`."""
factors = st.floats(1.01, 4.0)


def assert_never_slower(better: StepEstimate, worse: StepEstimate) -> None:
    assert better.step_time_s <= worse.step_time_s * NEVER


def assert_never_more(less: StepEstimate, more: StepEstimate, *kinds: str) -> None:
    """Stage by stage, in these kinds of memory."""
    for small, large in zip(less.stages, more.stages, strict=True):
        assert memory(small, *kinds) <= memory(large, *kinds) * NEVER


@pytest.fixture(autouse=True)
def no_shape_checks() -> Iterator[None]:
    """Checked shapes take ten times as long; every other test of estimates checks them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# ---------------------------------------------------------------------------------------------------------------------
# More of anything is never slower.


@given(cases(), factors)
def test_more_memory_bandwidth_is_never_slower(case: Case, factor: float) -> None:
    assert_never_slower(case.with_device(memory_bandwidth_bytes_per_s=factor).estimate(), case.estimate())


@given(cases(), factors)
def test_more_flop_per_s_is_never_slower(case: Case, factor: float) -> None:
    assert_never_slower(case.with_device(peak_flop_per_s=factor).estimate(), case.estimate())


@given(cases(), factors, st.integers(0, 3))
def test_faster_links_are_never_slower(case: Case, factor: float, level: int) -> None:
    assert_never_slower(case.with_links(level, factor).estimate(), case.estimate())


@given(cases(), factors)
def test_a_faster_host_link_is_never_slower(case: Case, factor: float) -> None:
    assert_never_slower(case.with_device(host_bandwidth_bytes_per_s=factor).estimate(), case.estimate())


@given(cases(), factors)
def test_more_memory_never_turns_fits_into_no(case: Case, factor: float) -> None:
    order = ("no", "tight", "yes")
    small, large = case.with_device(memory_bytes=1 / factor).estimate(), case.estimate()
    assert order.index(small.fits) <= order.index(large.fits)
    assert small.step_time_s == large.step_time_s


@given(cases(), st.booleans())
def test_larger_micro_batches_need_no_less_memory(case: Case, same_batch: bool) -> None:
    """With the micro-batches of a step fixed, and with its sequences fixed."""
    row = case.row
    if same_batch:
        assume(row.micro_batches % 2 == 0)
        larger = case.with_row(mbs=2 * row.mbs)
    else:
        larger = case.with_row(mbs=2 * row.mbs, gbs=2 * row.gbs)
    assert_never_more(case.estimate(), larger.estimate(), *MEMORY_KINDS)


@given(cases())
def test_more_micro_batches_take_longer(case: Case) -> None:
    longer = case.with_row(gbs=2 * case.row.gbs)
    assert_never_slower(case.estimate(), longer.estimate())
    assert_never_more(case.estimate(), longer.estimate(), *MEMORY_KINDS)


# ---------------------------------------------------------------------------------------------------------------------
# What each strategy is for.


@given(cases())
def test_full_recompute_keeps_less_and_is_no_quicker(case: Case) -> None:
    """On the device: what is recomputed need not be copied to the host, so there it may be quicker."""
    case = case.with_row(offload=case.row.offload.replace("a", ""))
    none, some, full = (case.with_row(recompute=kind, recompute_layers=0) for kind in ("none", "sel", "full"))
    estimates = [one.estimate() for one in (none, some, full)]
    for less, more in pairwise(estimates):
        assert_never_more(more, less, "activations")
        assert_never_slower(less, more)
    assert part(estimates[0], "recompute") == 0 < part(estimates[2], "recompute")
    assert estimates[0].hfu == pytest.approx(estimates[0].mfu)
    assert estimates[2].mfu < estimates[2].hfu


@given(cases(), st.integers(1, 12))
def test_longer_blocks_keep_less(case: Case, layers: int) -> None:
    case = case.with_row(offload=case.row.offload.replace("a", ""))
    short = case.with_row(recompute="block", recompute_layers=layers % case.model.num_layers + 1)
    long = case.with_row(recompute="block", recompute_layers=case.model.num_layers)
    full = case.with_row(recompute="full", recompute_layers=0)
    less, more = long.estimate(), short.estimate()
    assert_never_more(less, more, "activations")
    assert_never_slower(more, less)
    assert less.step_time_s == pytest.approx(full.estimate().step_time_s)


@given(cases())
def test_zero_shards_more_at_every_level(case: Case) -> None:
    levels = [case.with_row(sharding=f"z{level}", shard_group=0).estimate() for level in range(4)]
    for less, more in pairwise(levels):
        assert_never_more(more, less, "weights", "gradients", "optimizer")
    assert_never_more(levels[1], levels[0], *MEMORY_KINDS)
    assert_never_more(levels[2], levels[1], *MEMORY_KINDS)


@given(cases())
def test_data_parallel_overlap_is_never_slower(case: Case) -> None:
    assert_never_slower(case.with_row(dp_overlap=True).estimate(), case.with_row(dp_overlap=False).estimate())


@given(cases())
def test_forward_only_is_quicker_and_smaller(case: Case) -> None:
    forward, step = case.with_workload(training=False).estimate(), case.estimate()
    assert forward.step_time_s < step.step_time_s
    assert part(forward, "optimizer", "recompute") == 0
    assert case.row.sharding not in ("z0", "z1", "z2") or part(forward, "dp") == 0
    assert_never_more(forward, step, *MEMORY_KINDS)
    assert all(memory(stage, "gradients", "optimizer", "activations") == 0 for stage in forward.stages)


@given(cases())
def test_gradients_that_leave_as_they_come_leave_at_most_a_layers(case: Case) -> None:
    streamed = case.with_row(offload="og")
    assume(not streamed.problems())
    kept, left = case.with_row(offload="o").estimate(), streamed.estimate()
    for before, after in zip(kept.stages, left.stages, strict=True):
        layer = max(memory(before, "gradients"), 1.0)
        assert memory(after, "gradients") <= layer or case.row.sharding == "z2"
        assert after.host_bytes == before.host_bytes > 0
    assert_never_slower(case.with_row(offload="").estimate(), left)


@given(cases(), st.sampled_from(["o", "a", "w"]))
def test_offload_lowers_its_memory_and_not_the_time(case: Case, letter: str) -> None:
    without = case.with_row(offload="").estimate()
    with_it = case.with_row(offload=letter).estimate()
    kind = {"o": "optimizer", "a": "activations", "w": "weights"}[letter]
    # The head runs backward at once: what it keeps stays.
    # Schedules of two directions have two.
    assert sum(memory(stage, kind) > 0 for stage in with_it.stages) <= 2 * (letter == "a")
    assert_never_more(with_it, without, kind)
    others = {"optimizer", "activations", "weights", "gradients"} - {kind}
    for name in others:
        assert_never_more(with_it, without, name)
    if letter == "o":
        assert_never_more(with_it, without, *MEMORY_KINDS)
    assert_never_slower(without, with_it)


@given(cases())
def test_no_degree_no_cost(case: Case) -> None:
    estimate, row = case.estimate(), case.row
    assert row.tp > 1 or part(estimate, "tp") == 0
    assert row.cp_degree > 1 or part(estimate, "cp") == 0
    assert row.ep * row.etp > 1 or part(estimate, "ep") == 0
    assert row.pp > 1 or part(estimate, "pp", "bubble") <= 1e-12 * estimate.step_time_s
    tied = case.model.tied_embeddings and row.pp > 1
    experts = case.model.is_moe and row.ep * row.etp < row.tp * row.cp_degree * row.dp
    assert row.dp * row.cp_degree > 1 or tied or experts or part(estimate, "dp") == 0
    assert "w" in row.offload or "a" in row.offload or "o" in row.offload or part(estimate, "offload") == 0


@given(cases())
def test_flash_attention_pays_for_long_sequences(case: Case) -> None:
    long = case.with_workload(seq_len=16384)
    assume(not long.problems())
    flash, square = (long.with_workload(attention_kernel=kernel).estimate() for kernel in ("flash", "materialised"))
    assert_never_slower(flash, square)
    assert_never_more(flash, square, *MEMORY_KINDS)


@given(cases(models=(MIXED, LATENT)))
def test_crowded_experts_are_never_quicker(case: Case) -> None:
    even, crowded = (case.with_workload(expert_imbalance=load) for load in (1.0, 1.5))
    assert_never_slower(even.estimate(), crowded.estimate())
    assert_never_more(even.estimate(), crowded.estimate(), *MEMORY_KINDS)
