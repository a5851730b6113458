"""Exchanges of tokens: how many domains and ranks a token enters, and published rates of kernels that carry it once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernels.collectives import all_to_all_s
from meshwright.kernels.exchange import Routing, token_exchange_s
from meshwright.kernels.lines import LevelRates


def level(gb_s: float) -> LevelRates:
    return LevelRates(bandwidth_bytes_per_s=gb_s * 1e9, efficiency=1.0, latency_s=0.0, base_latency_s=0.0)


def test_parts_that_a_token_enters() -> None:
    """8 experts at random: 8 (1 - (7/8)^8) = 5.25 of 8 nodes; among 4 of 8 groups, 4 (1 - (3/4)^8) = 3.6."""
    assert Routing(copies=8).entered(8) == pytest.approx(5.25, abs=0.01)
    limited = Routing(copies=8, groups=8, chosen=4)
    assert limited.entered(8) == pytest.approx(3.6, abs=0.01)
    # 64 ranks: 4 nodes of 8 ranks are open to it. 4 nodes hold two groups each.
    assert limited.entered(64) == pytest.approx(32 * (1 - (31 / 32) ** 8))
    # 4 choices among 4 nodes find 4 (1 - (3/4)^4) = 175/64 of them.
    assert limited.entered(4) == pytest.approx(175 / 64 * (1 - (111 / 175) ** 8))
    assert limited.entered(4) < Routing(copies=8).entered(4)
    assert limited.entered(1) == 1.0


@given(
    copies=st.integers(1, 16), parts=st.integers(1, 256), groups=st.sampled_from([0, 4, 8]), chosen=st.integers(1, 4)
)
def test_no_more_parts_than_copies_or_parts(copies: int, parts: int, groups: int, chosen: int) -> None:
    found = float(Routing(copies=copies, groups=groups, chosen=chosen if groups else 0).entered(parts))
    assert 1.0 - 1e-9 <= found <= min(copies, parts) + 1e-9


@pytest.mark.parametrize(
    ("nodes", "groups", "logical_gb_s"),
    [(1, 0, 153), (4, 4, 58), (8, 4, 51)],
)
def test_dispatch_of_deepep_on_h800(nodes: int, groups: int, logical_gb_s: float) -> None:
    """4096 tokens of width 7168 to 8 of 256 experts; rates count what stays in the node (on the rank, of one node).

    Source: README of deepseek-ai/DeepEP, February 2025: fp8 dispatch, at most 4 nodes.
    """
    routing = Routing(copies=8, groups=nodes if groups else 0, chosen=min(groups, nodes))
    token = 7168 * (1 + 4 / 128)
    found = token_exchange_s(
        4096 * 8 * token,
        inside=(8.0, float(8 * nodes)),
        rates=(level(160), level(46)),
        routing=routing,
    )
    carried = 4096 * token * float(routing.entered(8 if nodes == 1 else nodes))
    assert carried / float(found) / 1e9 == pytest.approx(logical_gb_s, rel=0.15)


def test_less_is_sent_than_by_a_plain_all_to_all() -> None:
    inside, rates = (8.0, 64.0), (level(400), level(50))
    size = np.array([0.0, 1e9])
    once = token_exchange_s(size, inside=inside, rates=rates, routing=Routing(copies=8))
    limited = token_exchange_s(size, inside=inside, rates=rates, routing=Routing(copies=8, groups=8, chosen=4))
    assert once[0] == 0.0
    assert limited[1] < once[1] < all_to_all_s(size, inside=inside, rates=rates)[1]
    assert token_exchange_s(1e9, inside=(1.0, 1.0), rates=rates, routing=Routing(copies=8)) == 0.0


def test_seconds_of_an_exchange_in_a_node_and_between_nodes() -> None:
    """8 ranks of a node: 40 us and 8 (1 - (7/8)^8) / 8 x 7/8 of 1 GB at 0.8 of 400 GB/s.

    64 ranks: the fabric is slower. It passes 5.25 / 8 x 7/8 of the bytes at 0.97 of 50 GB/s, and 60 us more.
    """
    rates, random = (level(400), level(50), level(25)), Routing(copies=8)
    once = 1 - (7 / 8) ** 8
    inside = token_exchange_s(1e9, inside=(8.0, 8.0, 8.0), rates=rates, routing=random)
    assert inside == pytest.approx(40e-6 + once * 7 / 8 / (0.8 * 400))
    between = token_exchange_s(1e9, inside=(8.0, 64.0, 64.0), rates=rates, routing=random)
    assert between == pytest.approx(100e-6 + once * 7 / 8 / (0.97 * 50))
    # One rank of each node, and of each rack: only the outer levels are crossed.
    assert token_exchange_s(1.0, inside=(1.0, 8.0, 8.0), rates=rates, routing=random) == pytest.approx(100e-6, rel=1e-3)
    racks = token_exchange_s(1e9, inside=(1.0, 1.0, 8.0), rates=rates, routing=random)
    assert racks == pytest.approx(100e-6 + once * 7 / 8 / (0.97 * 25))
