"""Products whose two sides are quantised whenever one runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.work import price_work
from meshwright.estimate.work_seconds import WorkSeconds
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.ops.layers import layer_work
from meshwright.specs.operators import Linear
from meshwright.specs.precision import Precision, precision
from meshwright.specs.workload import Workload
from tests.strategies.columns import columns

TOKENS = 4096


def test_int8_reads_both_sides_twice_and_writes_them_once_in_each_of_three_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = spec("llama-3.1-8b")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    workload = Workload(seq_len=TOKENS, global_batch=1, precision=precision("int8"))
    hardware = hardware_of(resolve_gpus("1xTPU-v5p").groups[0], workload)

    def priced() -> WorkSeconds:
        return price_work(work, columns(mbs=1), hardware, workload)

    quantised = priced()
    monkeypatch.setattr(Precision, "quantised_when_run", False)
    hardware = replace(hardware, software=replace(hardware.software, cast_passes=0.0))
    plain = priced()
    inputs = weights = outputs = 0
    for op in work.ops:
        if isinstance(op, Linear):
            m, k, n = TOKENS, *(sum(units * width for units, width in side) for side in (op.inputs, op.outputs))
            inputs, weights, outputs = inputs + m * k, weights + k * n, outputs + m * n
    each_s = (2 + 2 + 1) / hardware.achieved_memory_bytes_per_s
    forward = quantised.forward.compute_s - plain.forward.compute_s
    backward = quantised.backward.compute_s - plain.backward.compute_s
    assert float(forward[0]) == pytest.approx((inputs + weights) * each_s)
    assert float(backward[0]) == pytest.approx((outputs + weights + inputs + outputs) * each_s)
