"""A strategy for every layer: the dynamic program against all ways."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from meshwright.search.layer_programs import UNIT_BYTES, LayerOptions, StagePrograms, _Knapsack
from meshwright.specs.strategy import LayerStrategy


def drawn_options(rng: np.random.Generator, count: int = 5) -> LayerOptions:
    """Options in three groups, each with its edges."""
    return LayerOptions(
        strategies=(LayerStrategy(),) * count,
        time_s=rng.random(count),
        forward_s=np.zeros(count),
        sync_s=np.zeros(count),
        edge_s=rng.random((count, 2)),
        edge_forward_s=np.zeros((count, 2)),
        state_bytes=UNIT_BYTES * rng.integers(1, 6, count).astype(float),
        kept_bytes=UNIT_BYTES * np.ones(count),
        transient_bytes=np.zeros(count),
        edge_bytes=UNIT_BYTES * rng.integers(0, 3, (count, 2)).astype(float),
        group=np.array([0, 0, 1, 1, 2]),
        move_s=0.3,
        micro_batches=4,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_dynamic_program_finds_the_quickest_of_all_ways(seed: int) -> None:
    options, count, layers = drawn_options(np.random.default_rng(seed)), 5, 4
    room, in_flight = 24.0 * UNIT_BYTES, 2

    def cost(way: tuple[int, ...]) -> float:
        held = sum(options.state_bytes[n] + in_flight * options.kept_bytes[n] for n in way)
        held += options.edge_bytes[way[0], 0] + options.edge_bytes[way[-1], 1]
        moves = sum(options.group[a] != options.group[b] for a, b in pairwise(way))
        seconds = (
            options.edge_s[way[0], 0]
            + options.edge_s[way[-1], 1]
            + sum(options.time_s[n] for n in way)
            + options.move_s * moves
        )
        return float(seconds) if held <= room else np.inf

    best = min(product(range(count), repeat=layers), key=cost)
    programs = StagePrograms(options, room)
    programs.best(2, in_flight, True, False)  # what it leaves behind must not change the answer for more layers
    found = programs.best(layers, in_flight, True, True)
    if not np.isfinite(cost(best)):
        assert found is None
        return
    assert found is not None
    assert found[0] == pytest.approx(cost(best))
    assert cost(tuple(found[1])) == pytest.approx(cost(best))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_no_table_is_made_of_more_layers_than_stand_before_the_last(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    extend = _Knapsack._extend

    def counted(knapsack: _Knapsack) -> None:
        extend(knapsack)
        made.append(len(knapsack.picks))

    monkeypatch.setattr(_Knapsack, "_extend", counted)
    options = drawn_options(np.random.default_rng(0))
    assert StagePrograms(options, 60.0 * UNIT_BYTES).best(layers, 1, True, True) is not None
    assert max(made, default=0) == layers - 1
