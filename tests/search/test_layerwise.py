"""Strategies of one layer on a stage's devices: which there are, what they hold, and what they cost each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.items import FULL, NONE, SELECTIVE
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.library.clusters import resolve_gpus
from meshwright.search.layer_programs import LayerOptions
from meshwright.search.layerwise import layer_options, room_bytes
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE

WORKLOAD = Workload(seq_len=2048, global_batch=32)
HARDWARE = hardware_of(resolve_gpus("8xH100").groups[0], WORKLOAD)


def options(devices: int = 8, samples: int = 8, micro_batches: int = 4) -> LayerOptions:
    found = layer_options(DENSE, HARDWARE, WORKLOAD, devices, samples, micro_batches)
    assert found is not None
    return found


def row(found: LayerOptions, tp: int, zero: int, recompute: object = NONE) -> int:
    (place,) = (
        number
        for number, one in enumerate(found.strategies)
        if (one.tp, one.data.zero, one.recompute) == (tp, zero, recompute)
    )
    return place


def degrees(found: LayerOptions) -> set[tuple[int, int]]:
    return {(one.tp, one.data.zero) for one in found.strategies}


def test_tensor_degrees_divide_heads_and_devices_and_data_degrees_the_samples() -> None:
    assert degrees(options()) == {(1, 1), (1, 3), (2, 1), (2, 3), (4, 1), (4, 3), (8, 0)}
    assert degrees(options(samples=2)) == {(4, 1), (4, 3), (8, 0)}
    assert degrees(options(devices=16, samples=16)) == {(tp, zero) for tp in (1, 2, 4, 8) for zero in (1, 3)}
    assert layer_options(DENSE, HARDWARE, WORKLOAD, 3, 4, 1) is None
    assert all(one.devices == 8 for one in options().strategies)


def test_states_are_sharded_as_their_zero_stage_says() -> None:
    """bf16: weights of 2 bytes, gradients of 4, and 12 of a main copy and two moments."""
    found = options()
    weights = next(DENSE.layers()).parameters(DENSE.hidden)
    for tp, zero, per_weight in ((1, 1, 6 + 12 / 8), (1, 3, 18 / 8), (2, 1, 6 + 12 / 4), (2, 3, 18 / 4), (8, 0, 18)):
        assert found.state_bytes[row(found, tp, zero)] == pytest.approx(per_weight * weights / tp, rel=1e-3)


def test_weights_that_are_gathered_need_room_beside_their_shards() -> None:
    found = options()
    weights = next(DENSE.layers()).parameters(DENSE.hidden)
    more = found.transient_bytes[row(found, 2, 3)] - found.transient_bytes[row(found, 2, 1)]
    assert more == pytest.approx((2 * 2 + 4) * weights / 2, rel=1e-3)


def test_recompute_trades_time_for_memory() -> None:
    found = options()
    for tp, zero in degrees(found):
        places = [row(found, tp, zero, recompute) for recompute in (NONE, SELECTIVE, FULL)]
        assert np.all(np.diff(found.kept_bytes[places]) < 0)
        assert np.all(np.diff(found.time_s[places]) > 0)


def test_gradients_are_summed_once_a_step_over_several_replicas() -> None:
    few, many = options(micro_batches=2), options(micro_batches=200)
    one, eight = row(few, 8, 0), row(few, 1, 1)
    assert few.sync_s[one] == 0.0 < few.sync_s[eight] == many.sync_s[eight]
    assert few.time_s[one] == many.time_s[one]
    assert few.time_s[eight] - many.time_s[eight] == pytest.approx(few.sync_s[eight] * (1 / 2 - 1 / 200))
    # ZeRO-3 gathers and scatters in every micro-batch instead.
    assert few.sync_s[row(few, 1, 3)] == 0.0
    assert few.time_s[row(few, 1, 3)] == many.time_s[row(many, 1, 3)]


def test_activations_move_where_tensor_degrees_change() -> None:
    found = options()
    groups = {one.tp: found.group[number] for number, one in enumerate(found.strategies)}
    assert len(set(groups.values())) == 4
    assert all(found.group[number] == groups[one.tp] for number, one in enumerate(found.strategies))
    part_bytes = 8 * 2048 * DENSE.hidden * 2 / 8
    assert found.move_s == pytest.approx(2 * part_bytes / 450e9)


def test_room_is_what_neither_the_reserve_nor_the_framework_nor_fragments_take() -> None:
    plain = room_bytes(HARDWARE)
    assert 0.7 * HARDWARE.memory_bytes < plain < (1 - TIGHT_SHARE) * HARDWARE.memory_bytes
    software = HARDWARE.software
    engine = replace(HARDWARE, software=replace(software, engine_bytes=software.engine_bytes + 1e9))
    assert plain - room_bytes(engine) == pytest.approx(1e9 / (1 + software.fragmentation))
    whole = replace(HARDWARE, software=replace(software, fragmentation=0.0))
    assert room_bytes(whole) == pytest.approx(plain * (1 + software.fragmentation))
