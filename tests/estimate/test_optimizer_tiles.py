"""Updates in tiles (DeepSpeed-TED): the fp32 copy of 16-bit gradients is one tile large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import UnsupportedError
from meshwright.estimate.result import StepPrice
from meshwright.specs.row_of import strategy_row
from meshwright.specs.row_text import parse_row

PARAMETERS = 1.5576e9


def estimate(words: str, dtype: str = "fp16") -> StepPrice:
    plan = f"dp8.{words}.mbs1.gbs64"
    (found,) = mw.estimate("gpt2-xl", gpus="8xV100-32", plan=plan, dtype=dtype, seq_len=1024).plans
    return found.estimate


def memory(words: str) -> dict[str, float]:
    return dict(estimate(words).stages[0].memory_bytes)


@pytest.mark.parametrize(("sharding", "shards"), [("z0", 1), ("z1", 8), ("z2", 8)])
def test_the_copy_of_gradients_is_one_tile(sharding: str, shards: int) -> None:
    whole, tiled = memory(sharding), memory(f"{sharding}.tile1800000")
    assert whole["gradients"] - tiled["gradients"] == pytest.approx(4 * PARAMETERS / shards, rel=1e-3)
    assert tiled["transient"] - whole["transient"] == pytest.approx(4 * 1.8e6)


def test_a_tile_of_all_parameters_is_the_copy() -> None:
    whole, tiled = memory("z2"), memory("z2.tile900000000000")
    both = [one["gradients"] + one["transient"] for one in (whole, tiled)]
    assert both[0] == pytest.approx(both[1])
    assert estimate("z2.tile900000000000").step_time_s == pytest.approx(estimate("z2").step_time_s)


@given(low=st.integers(10**5, 10**8), factor=st.integers(1, 50))
def test_larger_tiles_take_no_longer_and_no_less_memory(low: int, factor: int) -> None:
    small, large = (estimate(f"z1.tile{size}") for size in (low, low * factor))
    assert large.step_time_s <= small.step_time_s * (1 + 1e-12)
    assert large.peak_memory_bytes >= small.peak_memory_bytes * (1 - 1e-12)


def test_a_plan_that_does_not_fit_fits_in_tiles() -> None:
    assert estimate("z0").fits == "no"
    assert estimate("z0.tile1800000").fits == "yes"


@pytest.mark.parametrize(
    ("words", "dtype", "why"),
    [("z1", "fp32", "with no copy in fp32"), ("fsdp", "fp16", "is in fp32"), ("z2.off-o", "fp16", "the host updates")],
)
def test_tiles_are_refused_where_they_make_nothing_smaller(words: str, dtype: str, why: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        estimate(f"{words}.tile1000", dtype)
    assert any(why in problem.why for problem in raised.value.problems)


def test_tiles_are_read_and_written() -> None:
    row = parse_row("dp8.z1.tile1800000.mbs1.gbs8", devices=8, global_batch=8, schedules=())
    assert row.format() == "dp8.z1.mbs1.gbs8.tile1800000"
    said = strategy_row(row.strategy())
    assert said is not None
    assert said.optimizer_tile == 1_800_000
