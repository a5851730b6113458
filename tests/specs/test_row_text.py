"""The one-line form of a homogeneous plan: lossless, in any order, and patient with junk."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, MeshwrightError
from meshwright.schedules.plan_rows import plan_of, row_of
from meshwright.specs import PlanRow
from meshwright.specs.row_text import parse_row
from tests.formats.jobs import model
from tests.formats.rows import SCHEDULES, rows


def read(text: str, devices: int = 64, gbs: int = 64) -> PlanRow:
    return parse_row(text, devices=devices, global_batch=gbs, schedules=SCHEDULES)


@given(rows())
def test_a_row_survives_its_text(row: PlanRow) -> None:
    assert read(row.format(), devices=row.devices, gbs=row.gbs) == row


@given(rows(), st.randoms(use_true_random=False))
def test_tokens_may_stand_in_any_order(row: PlanRow, chance: random.Random) -> None:
    tokens = row.format().split(".")
    chance.shuffle(tokens)
    assert read(".".join(tokens)) == row


@given(rows(), st.integers(1, 5))
def test_a_row_survives_its_plan(row: PlanRow, layers: int) -> None:
    split = [layers + 9 + stage % 2 for stage in range(row.pp * row.vpp)]
    plan = plan_of(row, split)
    assert plan.devices == row.devices
    assert plan.global_batch == row.gbs
    assert row_of(plan, model(sum(split))) == row


token = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "tp",
            "tp0",
            "tp-1",
            "cp4-a2a2xp2p3",
            "rc-block",
            "off-x",
            "hsdp",
            "hsdp0",
            "vpp999999999",
            "z9",
            "tp" + 5000 * "9",
        ]
    ),
)


@given(st.lists(token, max_size=8).map(".".join))
def test_junk_is_an_error_of_ours_or_a_row(text: str) -> None:
    caught: MeshwrightError | None = None
    try:
        row = read(text)
    except MeshwrightError as error:
        caught = error
    if caught:
        assert (caught.exit_code, bool(caught.problems)) == (2, True)
    else:
        assert row.devices >= 1


def test_all_problems_come_together() -> None:
    with pytest.raises(InputError) as caught:
        read("tp8.tq4.pp0.rc-blok2.tp4.cp8-a2a2xp2p2")
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    for piece in ("'tq4'", "pp is 0", "'rc-blok2'", "tp a second time", "cp4-a2a2xp2p2"):
        assert piece in text


@pytest.mark.parametrize(("typed", "meant"), [("tp8.rc-ful.dp8", "rc-full"), ("dp8.fsdpkeep", "fsdp-keep")])
def test_a_misspelt_token_names_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(InputError, match=meant):
        read(typed)


def test_what_is_not_said_is_filled_in() -> None:
    row = read("tp8.pp2.vpp2", devices=64, gbs=128)
    assert (row.dp, row.gbs, row.mbs, row.schedule) == (4, 128, 1, "interleaved")
    assert row.identity() == "64 = tp8 x pp2 x dp4"


def test_example_of_the_handbook() -> None:
    text = "tp8.pp4.vpp2.dp16.z1.mbs1.gbs1024.rc-sel"
    row = read(text, devices=512)
    assert row.format() == text
    assert row.micro_batches == 64
