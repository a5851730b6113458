"""Products quantised when they run, experts launched one by one, scores that go to memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layers.work_seconds import WorkSeconds
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.ops.layers import layer_work
from meshwright.specs.operators import CoreAttention, Exchange, Linear, Scores
from meshwright.specs.precision import Precision, precision
from meshwright.specs.tuning import STORED_BYTES, Lora, Tuning
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


@pytest.mark.parametrize(("dtype", "launches"), [("bf16", 1), ("fp8", 2)])
def test_a_rank_launches_the_products_of_each_of_its_experts(dtype: str, launches: int) -> None:
    """Qwen3-30B on ep = 8: 16 of 128 experts a rank, an up and a down product each."""
    model = spec("qwen3-30b-a3b")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    workload = Workload(seq_len=TOKENS, global_batch=8, precision=precision(dtype))
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)

    def priced(apart: bool) -> WorkSeconds:
        driver = replace(hardware.software, launches_experts=apart)
        return price_work(work, columns(mbs=1, ep=8), replace(hardware, software=driver), workload)

    each, together = priced(True), priced(False)
    more = 2 * 15 * launches * hardware.efficiency.dispatch_s / hardware.operator_s
    assert np.ravel(each.forward.operators - together.forward.operators)[0] == pytest.approx(more)
    assert np.ravel(each.backward.operators - together.backward.operators)[0] == pytest.approx(2 * more)
    starts_s = 2 * 15 * hardware.efficiency.launch_s
    assert float(each.forward.compute_s[0] - together.forward.compute_s[0]) == pytest.approx(starts_s)
    assert float(each.backward.compute_s[0] - together.backward.compute_s[0]) == pytest.approx(2 * starts_s)


def test_scores_are_swept_by_softmax_as_the_framework_does_and_by_dropout_where_they_are_dropped() -> None:
    model = spec("gpt3-175b")
    workload = Workload(seq_len=TOKENS, global_batch=1, attention_kernel="materialised", software="megatron-lm")
    hardware = hardware_of(resolve_gpus("1xA100-80").groups[0], workload)

    def forward_s(passes: float, *, dropout: bool) -> float:
        layer = replace(model.last_layer(), dropout=dropout)
        ops = tuple(op for op in layer_work(layer, model.hidden, "materialised").ops if isinstance(op, CoreAttention))
        work = replace(layer_work(layer, model.hidden, "materialised"), ops=ops)
        driver = replace(hardware.software, score_passes=passes, vector_passes=9 * passes)
        priced = price_work(work, columns(mbs=1), replace(hardware, software=driver), workload)
        return float(priced.forward.compute_s[0])

    sweep_s = 96 * TOKENS**2 * 2 / hardware.achieved_memory_bytes_per_s
    assert forward_s(2.0, dropout=False) - forward_s(1.0, dropout=False) == pytest.approx(2 * sweep_s)
    assert forward_s(1.0, dropout=True) - forward_s(1.0, dropout=False) == pytest.approx(2.5 * sweep_s)


def test_written_scores_of_heads_that_tensor_cores_read_are_quicker_than_those_of_narrower_ones() -> None:
    """Rows of 127 numbers of two bytes do not start on 16 bytes, be they of keys or of values."""
    model = spec("gpt3-175b")
    workload = Workload(seq_len=TOKENS, global_batch=1, attention_kernel="materialised", software="megatron-lm")
    hardware = hardware_of(resolve_gpus("1xA100-80").groups[0], workload)
    work = layer_work(model.last_layer(), model.hidden, "materialised")

    def step_s(head_dim: int, value_dim: int) -> float:
        ops = [replace(op, head_dim=head_dim, value_dim=value_dim) for op in work.ops if isinstance(op, CoreAttention)]
        priced = price_work(replace(work, ops=tuple(ops)), columns(mbs=1), hardware, workload)
        return float(priced.forward.compute_s[0] + priced.backward.compute_s[0])

    assert step_s(128, 128) < min(step_s(127, 128), step_s(128, 127))
    assert step_s(127, 127) < step_s(127, 128)


@pytest.mark.parametrize("ep", [1, 8])
def test_tokens_sent_to_experts_are_held_as_they_come_and_as_they_are_laid_out(ep: int) -> None:
    """Qwen3-30B: eight copies of each token, as many received as sent, in bf16."""
    model = spec("qwen3-30b-a3b")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    work = replace(work, ops=tuple(op for op in work.ops if isinstance(op, Exchange)))
    workload = Workload(seq_len=TOKENS, global_batch=8)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    held = float(price_work(work, columns(mbs=2, ep=ep), hardware, workload).transient_bytes[0])
    assert held == (2 * 2 * TOKENS * 8 * model.hidden * 2 if ep > 1 else 0)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
def test_a_row_costs_the_same_alone_and_among_thousands(model: str, dtype: str) -> None:
    """Few rows are priced all products and sums of a layer together, many of them one after the other."""
    layer = spec(model).last_layer()
    work = layer_work(layer, spec(model).hidden, "flash")
    workload = Workload(seq_len=TOKENS, global_batch=8, precision=precision(dtype))
    hardware = hardware_of(resolve_gpus("64xH100").groups[0], workload)
    degrees = [1, 2, 8]
    for overlap in ("none", "bulk", "ring"):
        together = price_work(work, columns(tp=degrees * 2000, sp=True, overlap=overlap), hardware, workload)
        for row, tp in enumerate(degrees):
            alone = price_work(work, columns(tp=tp, sp=True, overlap=overlap), hardware, workload)
            for way in ("forward", "backward"):
                one, every = getattr(alone, way), getattr(together, way)
                assert (one.compute_s[0], one.tp_s[0]) == pytest.approx(
                    (every.compute_s[row], every.tp_s[row]), rel=1e-14
                )


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_weights_stored_in_few_bits_are_copied_one_matrix_at_a_time(base: str, tp: int) -> None:
    """Of few tokens, whose activations need less."""
    model = replace(spec("llama-3.1-8b"), tuning=Tuning(lora=Lora(rank=16, base=base)))
    work = layer_work(model.last_layer(), model.hidden, "flash")
    workload = Workload(seq_len=64, global_batch=8)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    held = float(price_work(work, columns(tp=tp, sp=tp > 1, seq_len=64), hardware, workload).transient_bytes[0])
    largest = max(
        sum(units * width for units, width in op.inputs) * sum(units * width for units, width in op.outputs)
        for op in work.ops
        if isinstance(op, Linear) and not op.adapter
    )
    assert held == 2 * largest / tp


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_weights_stored_in_few_bits_are_read_and_made_again_before_each_product(base: str, tp: int) -> None:
    """Beside weights in 16 bits: each pass reads those of a rank in few bits and writes them in 16."""
    plain, stored = (replace(spec("llama-3.1-8b"), tuning=Tuning(lora=Lora(rank=16, base=one))) for one in (None, base))
    workload = Workload(seq_len=TOKENS, global_batch=8)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    works = [layer_work(model.last_layer(), model.hidden, "flash") for model in (plain, stored)]
    before, after = (price_work(work, columns(tp=tp, sp=tp > 1), hardware, workload) for work in works)
    weights = sum(
        sum(units * width for units, width in op.inputs) * sum(units * width for units, width in op.outputs)
        for op in works[0].ops
        if isinstance(op, Linear) and not op.adapter
    )
    moved_s = weights / tp * (STORED_BYTES[base] + 2) / hardware.achieved_memory_bytes_per_s
    for way in ("forward", "backward"):
        more_s = getattr(after, way).compute_s - getattr(before, way).compute_s
        assert float(more_s[0]) == pytest.approx(moved_s, rel=1e-6)


def test_scores_that_pick_keys_compare_all_keys_forward_and_the_picked_ones_twice_backward() -> None:
    model = spec("deepseek-v3.2")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    picking = replace(work, ops=tuple(op for op in work.ops if isinstance(op, Scores)))
    assert picking.ops

    def times_longer_backward(seq_len: int) -> float:
        workload = Workload(seq_len=seq_len, global_batch=8)
        hardware = hardware_of(resolve_gpus("8xH200").groups[0], workload)
        found = price_work(picking, columns(seq_len=seq_len), hardware, workload)
        return float(found.backward.compute_s[0] / found.forward.compute_s[0])

    # 2,048 keys are picked.
    assert 1.5 < times_longer_backward(2048) < 2.5
    assert times_longer_backward(131072) < 0.25
