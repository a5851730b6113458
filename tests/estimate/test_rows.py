"""What columns of strategies say of one layer on one rank."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.rows import ItemPlaces, fetched_share
from meshwright.specs.strategy import DataParallel, ExpertParallel, LayerStrategy, Tensor1D


@pytest.mark.parametrize(
    ("zero", "tp", "ep", "share"),
    [
        (2, 2, 1, 1.0),  # whole weights come from the host
        (3, 1, 1, 1 / 8),
        (3, 2, 8, 1 / 2),  # 16 ranks hold an eighth of the experts each, so two share those of one rank
        (3, 4, 2, 1 / 8),  # 32 / 2 = 16 could share them, but only eight have the rest of the layer
        (3, 1, 8, 1.0),
    ],
)
def test_a_rank_fetches_its_shard_of_the_weights_and_of_few_experts_more(
    zero: int, tp: int, ep: int, share: float
) -> None:
    strategy = LayerStrategy(
        tensor=Tensor1D(degree=tp),
        data=DataParallel(shard=8, zero=zero),
        expert=ExpertParallel(ep=ep),
    )
    assert fetched_share(strategy) == pytest.approx(share)


@pytest.mark.parametrize("modules", [False, True])
def test_edges_are_the_ends_of_the_model_and_their_corrections_are_gathered_with_them(modules: bool) -> None:
    places = ItemPlaces(kinds=3, modules=modules)
    edges, whole = set(np.flatnonzero(places.edges)), set(np.flatnonzero(places.whole))
    assert edges == {places.embedding, places.head, places.tie, places.copy}
    assert len(edges) == 4
    assert len(places.edges) == len(places.whole) == places.items
    assert set(range(places.items)) - whole == {places.tie, places.copy}
    assert min(edges) == 2 * places.kinds
    assert max(edges) == places.tail - 1
