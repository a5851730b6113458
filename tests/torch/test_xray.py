"""A plain module under the tape: its products, what it makes again, and the bytes that live, by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from meshwright.xray.module import trace_module_step  # noqa: E402
from meshwright.xray.tape import Tape  # noqa: E402

ROWS, WIDTH, INNER = 128, 256, 1024
SIZE = 4
"""Bytes of a number."""


class Mlp(torch.nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, INNER, bias=False), torch.nn.Linear(INNER, WIDTH, bias=False)
        self.again = again

    def body(self, x):
        return self.down(torch.relu(self.up(x)))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)


def traced(again: bool) -> Tape:
    tape = Tape()
    with FakeTensorMode(), tape.watching_checkpoints(), tape:
        model = Mlp(again)
        trace_module_step(tape, model, lambda: model(torch.empty(ROWS, WIDTH, requires_grad=True)).sum())
    return tape


def products(tape: Tape) -> dict[tuple[str, tuple[int, ...]], int]:
    return {(one.phase, one.shape): one.count for one in tape.traced_operators() if one.is_gemm}


def test_products_are_those_of_the_module() -> None:
    assert products(traced(again=False)) == {
        ("forward", (1, ROWS, INNER, WIDTH)): 1,
        ("forward", (1, ROWS, WIDTH, INNER)): 1,
        ("backward", (1, WIDTH, INNER, ROWS)): 1,
        ("backward", (1, ROWS, INNER, WIDTH)): 1,
        ("backward", (1, INNER, WIDTH, ROWS)): 1,
        ("backward", (1, ROWS, WIDTH, INNER)): 1,
    }


def test_a_checkpoint_makes_the_forward_again() -> None:
    found = products(traced(again=True))
    forward = {shape: count for (phase, shape), count in found.items() if phase == "forward"}
    again = {shape: count for (phase, shape), count in found.items() if phase == "recompute"}
    assert again.items() <= forward.items()
    assert (1, ROWS, INNER, WIDTH) in again


def test_bytes_live_from_making_to_end() -> None:
    tape = traced(again=False)
    weights = 2 * WIDTH * INNER * SIZE
    moments = {one.name: one for one in tape.moments()}
    assert moments["gradients are allocated"].by_kind["gradients"] == weights
    assert moments["optimizer is made"].by_kind["optimizer"] == 2 * weights
    at_peak = moments["forward and backward"].by_kind
    assert at_peak["weights"] == weights
    # Of the forward pass the backward pass needs the relu's output, of INNER numbers a row.
    assert at_peak["activations"] >= ROWS * INNER * SIZE
    assert traced(again=True).peaks["forward and backward"][0] <= tape.peaks["forward and backward"][0]
    assert tape.live["backward"] <= ROWS * WIDTH * SIZE
