"""Compiled steps send what their shardings were priced at, on rows and grids, in loops and checkpoints too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.runtime.collective_programs import (
    Step,
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
)  # fmt: skip
def test_bytes_are_those_that_were_priced(
    program: Callable[[], tuple[Step, Any]], shape: tuple[int, ...], ranks: tuple[str, ...]
) -> None:
    found = collective_bytes(*program(), shape)
    assert found.rank_axes == ranks
    assert found.scattered_bytes == pytest.approx(found.priced_bytes, rel=0.1)
    assert found.scattered_bytes <= found.sent_bytes
