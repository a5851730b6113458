"""Compressed gradients, averaged replicas and second copies: bytes, memory, where each wins and where it is refused."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.result import StepPrice
from meshwright.specs.data_words import data_words_of
from meshwright.specs.row_text import parse_row
from meshwright.strategies import COMPRESSIONS
from meshwright.strategies.compression import chosen


def estimate(plan: str, gpus: str, model: str = "gpt2-xl", seq: int = 1024) -> StepPrice:
    (found,) = mw.estimate(model, gpus=gpus, plan=plan, seq_len=seq).plans
    return found.estimate


def step_s(plan: str, gpus: str, model: str = "gpt2-xl", seq: int = 1024) -> float:
    return estimate(plan, gpus, model, seq).step_time_s


def test_payloads_are_those_of_the_papers() -> None:
    """Of a matrix of 1024 x 4096: r (n + m) fp32 numbers; a value and a place for one in a hundred; a bit each."""
    sizes = {"powersgd4": 4 * 5120 * 4, "topk1": 41_944 * 8, "onebit": 1024 * 4096 / 8 + 4}
    for word, size in sizes.items():
        found = chosen(word)
        assert found is not None
        assert float(found.kind.payload_bytes(1024, 4096, found.setting, 4.0)) == pytest.approx(size)
    assert {word.rstrip("0123456789") for word in sizes} == set(COMPRESSIONS)


def test_compression_wins_between_slow_nodes_and_not_inside_one() -> None:
    slow, fast = "64x1xA100-80", "1x8xH100"
    assert step_s("dp64.gc-powersgd4.mbs4.gbs256", slow) < 0.6 * step_s("dp64.mbs4.gbs256", slow)
    assert step_s("dp8.gc-powersgd4.mbs4.gbs32", fast) > 0.99 * step_s("dp8.mbs4.gbs32", fast)
    # What top-k gathers grows with the ranks.
    assert step_s("dp64.gc-topk1.mbs4.gbs256", slow) > step_s("dp64.gc-powersgd4.mbs4.gbs256", slow)


def test_an_error_takes_four_bytes_of_every_parameter() -> None:
    plain, small = (estimate(f"dp8{word}.mbs4.gbs32", "8xH100") for word in ("", ".gc-topk1"))
    more = dict(small.stages[0].memory_bytes)["optimizer"] - dict(plain.stages[0].memory_bytes)["optimizer"]
    assert more == pytest.approx(4 * 1.5576e9, rel=0.01)


def test_seldom_averages_cost_their_share_and_an_outer_optimizer_eight_bytes() -> None:
    """Sums of every step cost H times as much as averages after H, but for the outer update."""
    slow = "4x1xA100-80"
    local = [dict(estimate(f"dp4.local{every}.mbs4.gbs16", slow).breakdown_s)["dp"] for every in (4, 8)]
    assert local[0] == pytest.approx(2 * local[1], rel=1e-6)
    assert step_s("dp4.local8.mbs4.gbs16", slow) < step_s("dp4.mbs4.gbs16", slow)
    plain, outer = (estimate(f"dp4{word}.mbs4.gbs16", slow) for word in ("", ".diloco64"))
    more = dict(outer.stages[0].memory_bytes)["optimizer"] - dict(plain.stages[0].memory_bytes)["optimizer"]
    assert more == pytest.approx(8 * 1.5576e9, rel=0.01)


def test_zero_plus_plus_sends_a_quarter_between_nodes_and_keeps_a_copy_in_each() -> None:
    """hpZ: backward gathers inside the node, and 2 N / 8 bytes more; with int8 and int4 the step gains what is left."""
    where, settings = "8x8xA100-80", {"model": "llama-3.1-8b", "seq": 4096}
    plans = ("dp64.z3.mbs1.gbs64", "dp64.z3.hpz8.mbs1.gbs64", "dp64.z3.qw-int8.qg-int4.hpz8.mbs1.gbs64")
    found = [estimate(plan, where, **settings) for plan in plans]
    assert found[0].step_time_s >= found[1].step_time_s > found[2].step_time_s
    weights = [dict(one.stages[0].memory_bytes)["weights"] for one in found]
    assert weights[1] - weights[0] == pytest.approx(2 * 8.03e9 / 8, rel=0.01)


@pytest.mark.parametrize(
    "plan", ["dp8.gc-powersgd4", "dp8.z3.qw-int8.qg-int4.hpz4", "dp8.hsdp4.diloco64", "dp8.local2"]
)
def test_words_are_read_and_written(plan: str) -> None:
    row = parse_row(f"{plan}.mbs1.gbs8", devices=8, global_batch=8, schedules=())
    assert row.format() == f"{plan}.mbs1.gbs8"
    assert data_words_of(row.data()) == row.data_words


@pytest.mark.parametrize(
    ("plan", "what", "fix"),
    [
        ("dp8.z3.gc-topk1", "gc-topk1 with z3", "use z0"),
        ("dp8.gc-powersg4", "gc-powersg4 is unknown", "gc-powersgd4"),
        ("dp8.gc-topk100", "gc-topk100 says 100", "use gc-topk99"),
        ("dp8.z1.local4", "local4 with z1", "hsdp8"),
        ("dp8.local1", "local1", "local2"),
        ("dp8.z3.hpz3", "hpz3 with 8 shards", "use hpz2"),
        ("dp8.z1.hpz2", "hpz2 with z1", "use z3"),
        ("dp8.gc-topk1.gc-onebit", "beside 'gc-topk1'", "keep one"),
        ("dp8.local4.diloco4", "beside 'local4'", "keep one"),
        ("dp8.gc-topk1.local4", "gc-topk1 with local4", "leave one"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_nearest_that_does(plan: str, what: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        estimate(f"{plan}.mbs4.gbs32", "8xH100")
    assert any(what in one.what and fix in one.fix for one in caught.value.problems), caught.value.problems


def test_one_bit_needs_adam() -> None:
    with pytest.raises(UnsupportedError, match="gc-onebit with sgd"):
        mw.estimate("gpt2", gpus="8xH100", plan="dp8.gc-onebit.mbs1.gbs8", optimizer="sgd")
