"""Compiled steps send what their shardings were priced at, on rows and grids, in loops and checkpoints too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from meshwright.compiler.methods.shard import ShardParallel
from meshwright.runtime.parallelize import parallelize
from tests.runtime.collective_programs import (
    Step,
    blocks,
    collective_bytes,
    convolutions,
    decoder,
    dispatched_experts,
    perceptron,
    sorted_experts,
)


@pytest.mark.parametrize(
    ("program", "shape", "ranks"),
    [
        (partial(perceptron, pairs=2), (2, 4), ("x",)),
        (partial(decoder, layers=2, scanned=True, checkpoints=True), (2, 4), ("x",)),
        (partial(decoder, layers=2, scanned=True), (8,), ("x",)),
        (partial(convolutions, normed=False), (2, 4), ("x",)),
        (sorted_experts, (8,), ()),
        (dispatched_experts, (2, 4), ("x",)),
    ],
)
def test_bytes_are_those_that_were_priced(
    program: Callable[[], tuple[Step, Any]], shape: tuple[int, ...], ranks: tuple[str, ...]
) -> None:
    found = collective_bytes(*program(), shape)
    assert found.rank_axes == ranks
    assert found.scattered_bytes == pytest.approx(found.priced_bytes, rel=0.1)
    assert found.scattered_bytes <= found.sent_bytes


def test_at_gpt_sizes_a_grid_takes_megatrons_form_and_reduces_gradients_once() -> None:
    layers, parts = 2, 4
    step, arguments = blocks(layers)
    method = ShardParallel(mesh_shape=(2, 4), num_micro_batches=parts, hosts="8xH100")
    found = parallelize(step, method=method).lower(*arguments).collectives()
    sent = {name: one.of_arrays for name, one in found.items()}
    # Attention and feed-forward sum once forward and once backward, for the norm before them.
    assert sent["F0"] == {"all-reduce": parts * 2 * layers}
    assert sent["B0"] == {"all-reduce": 2 * layers}
    assert sent["B0+"] == {"all-reduce": (parts - 1) * 2 * layers}
    assert sent["gradients0"] == {"all-reduce": 1}
