"""A pyramid of residual experts (DeepSpeed-MoE) on 8 devices: as one device, at the bytes that are priced."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from meshwright.kernels.exchange import Routing
from meshwright.ops.layers import layer_work
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.step_collectives import step_collectives
from meshwright.runtime.training.run import Training
from meshwright.specs.operators import Exchange
from meshwright.specs.row_text import parse_row
from meshwright.strategies.expert import exchange_calls
from meshwright.zoo.experts import CAPACITY_FACTOR
from meshwright.zoo.tiny import TINY
from tests.strategies.columns import columns

LENGTH = 64
SPEC = TINY["pr-moe-tiny"]
ELEMENT = 4


def training(plan: str) -> Training:
    row = parse_row(plan, devices=8, global_batch=16, schedules=())
    stages = (SPEC.num_layers // row.pp,) * row.pp
    return Training(spec=SPEC, row=row, stage_layers=stages, seq_len=LENGTH)


@pytest.mark.parametrize(
    ("plan", "dtype", "steps"),
    [("dp8.ep4", "fp32", 5), ("tp2.dp4.ep4.ep2h", "fp64", 2), ("pp2.dp4.ep4.mbs2.rc-full", "fp64", 2)],
)
def test_a_pyramid_ends_where_one_device_ends(plan: str, dtype: str, steps: int) -> None:
    """On two stages one has layers of 4 experts and one of 8."""
    with jax_precision(dtype):
        one = training(plan)
        state = one.initial()
        parity = parity_of(run_parallel(one, jax.devices(), steps, state), run_alone(one, steps, state), dtype)
    assert parity.holds
    assert parity.routed > 0


def priced_bytes(one: Training) -> float:
    """Bytes of all-to-alls of a micro-batch, forward and backward, in layers of 4 experts and of 8."""
    row = one.row
    own = columns(ep=row.ep, mbs=row.mbs, seq_len=LENGTH, capacity=CAPACITY_FACTOR)
    works = [layer_work(layer, SPEC.hidden, "flash") for layer in SPEC.layers()]
    calls = [
        call
        for work in works
        for op in work.ops
        if isinstance(op, Exchange)
        for call in exchange_calls(op, own, Routing(copies=work.top_k), ELEMENT)
    ]
    return sum(float(np.sum(np.asarray(call.payload_bytes))) for call in calls if call.kind == "all_to_all")


def test_every_layer_of_a_pyramid_sends_what_is_priced() -> None:
    one = training("dp8.ep4.mbs2")
    compiled: Any = one.step(jax.devices()).lower(one.initial(), one.batch(0))
    found = step_collectives(compiled.runtime)
    sent = sum(found[name].result_bytes["all-to-all"] for name in ("F0", "B0"))
    assert sent == pytest.approx(priced_bytes(one), rel=0.01)
