"""The fullest rank of a layer: in blocks, placed by load, shadowed, drawn; and what a capacity drops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernels.expert_load import (
    capacity,
    counted_shares,
    dropped_share,
    fullest_over_mean,
    placed_by_load,
    rank_shares,
    zipf_shares,
)

counts = st.lists(st.integers(1, 1000), min_size=8, max_size=8).map(lambda row: np.array([row]) / sum(row))


def fullest(shares: np.ndarray, ranks: int, *, shadowed: int = 0, placed: bool = False) -> float:
    """Of what ranks compute."""
    return fullest_over_mean(rank_shares(shares, ranks, shadowed=shadowed, placed=placed)[1])


def test_pools_of_smartmoe_put_the_heaviest_expert_beside_a_light_one() -> None:
    """Loads 8, 4, 2, 2 on two ranks of two slots: 12 in blocks, 10 by load."""
    shares = counted_shares(((8.0, 4.0, 2.0, 2.0),))
    assert rank_shares(shares, 2)[1].max() * 16 == pytest.approx(12)
    assert rank_shares(shares, 2, placed=True)[1].max() * 16 == pytest.approx(10)
    assert placed_by_load(shares, 2).tolist() == [[0, 1, 1, 0]]


def test_experts_that_do_not_divide_leave_a_slot_free() -> None:
    """Seven equal experts on three ranks of three slots: 2 or 3 on each, whichever way they are placed."""
    equal = counted_shares(((1.0,) * 7,))
    assert sorted(np.bincount(placed_by_load(equal, 3)[0]).tolist()) in ([1, 3, 3], [2, 2, 3])


@given(
    loads=st.lists(st.integers(0, 9).map(float), min_size=3, max_size=12),
    ranks=st.integers(2, 4),
    more=st.integers(0, 9).map(float),
)
def test_no_rank_is_fuller_than_in_blocks_and_none_has_more_than_its_slots(
    loads: list[float], ranks: int, more: float
) -> None:
    layers = np.array([loads, [load + more for load in reversed(loads)]])
    slots = -(-len(loads) // ranks)
    blocks = np.arange(len(loads)) // slots
    for row, placed in zip(layers, placed_by_load(layers, ranks), strict=True):
        held, in_blocks = (np.bincount(found, weights=row, minlength=ranks) for found in (placed, blocks))
        assert held.max() <= in_blocks.max()
        assert np.bincount(placed, minlength=ranks).max() <= slots


def test_no_expert_is_more_popular_than_once_per_token() -> None:
    """1, 1/4, 1/9 and 1/16 add up to 205/144: the first would take 144/205 of the visits, and takes half.

    The others share the other half in their proportions, 36 : 16 : 9.
    """
    (first, *_) = zipf_shares(4, 2.0, visited=2.0)
    assert sorted(first * 122) == pytest.approx([9, 16, 36, 61])
    (all_of_them, *_) = zipf_shares(4, 2.0, visited=4.0)
    assert all_of_them == pytest.approx(np.full(4, 0.25))
    (uncut, *_) = zipf_shares(4, 2.0)
    assert sorted(uncut * 205) == pytest.approx([9, 16, 36, 144])


def test_balanced_experts_fill_no_rank_more_than_another() -> None:
    shares = counted_shares(((3.0,) * 16, (3.0,) * 16))
    assert [fullest(shares, ranks) for ranks in (1, 2, 8, 16)] == [1.0] * 4


@given(shares=counts, ranks=st.sampled_from([2, 4, 8]), shadowed=st.integers(1, 7))
def test_placement_fills_no_rank_more_and_shadows_send_less(shares: np.ndarray, ranks: int, shadowed: int) -> None:
    plain = fullest(shares, ranks)
    assert 1.0 - 1e-12 <= fullest(shares, ranks, placed=True) <= plain + 1e-12
    arriving, computed = rank_shares(shares, ranks, shadowed=shadowed)
    assert computed.sum() == pytest.approx(1.0)
    assert arriving.max() <= rank_shares(shares, ranks)[0].max()
    # What is shadowed is shared out evenly, so that a rank without hot experts may become the fullest.
    assert fullest(shares, ranks, shadowed=8) == pytest.approx(1.0)
    assert fullest(shares, ranks, shadowed=shadowed) <= plain + shadowed * shares.max() + 1e-12


@settings(max_examples=25)
@given(exponent=st.floats(0.0, 3.0), more=st.floats(0.2, 2.0), experts=st.sampled_from([8, 64, 256]))
def test_more_skew_fills_the_fullest_rank_more(exponent: float, more: float, experts: int) -> None:
    flat, steep = (rank_shares(zipf_shares(experts, s), 8)[1] for s in (exponent, exponent + more))
    assert fullest_over_mean(steep) >= fullest_over_mean(flat)


@given(exponent=st.floats(0.0, 8.0), visited=st.sampled_from([1, 2, 8]), experts=st.sampled_from([8, 60, 256]))
def test_no_expert_gets_a_token_twice(exponent: float, visited: int, experts: int) -> None:
    law = zipf_shares(experts, exponent, visited)
    assert law.sum(axis=1) == pytest.approx(1.0)
    assert law.max() <= 1 / visited * (1 + 1e-9)
    if zipf_shares(experts, exponent).max() <= 1 / visited:
        assert (law == zipf_shares(experts, exponent)).all()


def test_drawn_tokens_crowd_the_fullest_rank_by_the_expected_maximum() -> None:
    """64 ranks with 100 tokens each: mean + 2.37 standard deviations (Tippett 1925: of 64 normals), 1 + 2.37 / 10."""
    drawn = fullest_over_mean(rank_shares(zipf_shares(64, 0.0), 64)[1], drawn=6400)
    assert drawn == pytest.approx(1.237, abs=0.02)
    many = fullest_over_mean(rank_shares(zipf_shares(64, 0.0), 64)[1], drawn=6.4e9)
    assert many == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("form", "tokens", "top_k", "factor", "room"),
    [
        ("fastmoe-gshard", 4096, 2, 1.2, 153),
        ("gshard", 4096, 2, 1.0, 128),
        ("switch", 4096, 1, 1.0, 64),
        ("fastmoe-switch", 4096, 1, 1.2, 77),
        ("expert-choice", 4096, 2, 1.0, 128),
    ],
)
def test_gates_count_the_room_of_an_expert_their_own_way(
    form: str, tokens: int, top_k: int, factor: float, room: int
) -> None:
    assert capacity(tokens, 64, top_k, factor, form=form) == room


def test_a_capacity_drops_what_is_over_the_room_of_an_expert() -> None:
    shares = counted_shares(((50.0, 30.0, 10.0, 10.0),))
    assert dropped_share(shares, 1.0) == pytest.approx(0.25 + 0.05)
    assert dropped_share(shares, 1.25) == pytest.approx(0.50 - 0.3125)
    assert dropped_share(shares, 2.0) == 0.0


@pytest.mark.parametrize("form", ["gshard", "switch", "fastmoe-switch"])
def test_an_expert_has_room_for_its_share_of_the_tokens_that_do_not_divide(form: str) -> None:
    for tokens in range(1, 40):
        for experts in (3, 7, 8):
            room = capacity(tokens, experts, 1, 1.0, form=form)
            assert experts * (room - 1) < tokens <= experts * room
