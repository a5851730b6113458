"""What workers of a pipeline send each other: as many bytes as pass a boundary, and none without one."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.pipeline import Placed, boundary_columns
from meshwright.kernels.collectives import all_reduce_s
from meshwright.kernels.lines import group_span
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.specs.workload import Workload
from tests.strategies.columns import columns


@pytest.mark.parametrize("mbs", [1, 2, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_activations_of_a_micro_batch_are_sent_where_there_is_a_pipeline(stages: int, mbs: int) -> None:
    model, workload = spec("llama-3.1-8b"), Workload(seq_len=4096, global_batch=64)
    hardware = hardware_of(resolve_gpus("32xH100").groups[0], workload)
    placed = Placed(pp=np.array([stages]), dp=np.array([8]))
    found = boundary_columns(columns(mbs=mbs), placed, model, hardware, workload)
    assert found.sent_bytes.tolist() == [2 * 4096 * mbs * model.hidden * (stages > 1)]
    assert (found.transfer_s[0] > found.sent_bytes[0] / hardware.rates[-1].bandwidth_bytes_per_s) == (stages > 1)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_both_ends_sum_the_gradients_of_a_table_they_share(stages: int, tp: int) -> None:
    """Two devices as far apart as the stages between them, which hold a rank's part of the table."""
    model, workload = spec("gpt2"), Workload(seq_len=1024, global_batch=64)
    hardware = hardware_of(resolve_gpus("64xH100").groups[0], workload)
    placed = Placed(pp=np.array([stages]), dp=np.array([2]))
    found = boundary_columns(columns(tp=tp, seq_len=1024), placed, model, hardware, workload)
    apart = 2 * tp * max(stages - 1, 1)
    part_bytes = -(-model.vocab // tp) * model.hidden * workload.precision.bytes_of("reduce")
    inside = group_span(np.array([apart]), np.array([2]), hardware.domain_sizes)
    expected_s = all_reduce_s(np.array([part_bytes]), inside=inside, rates=hardware.rates) * (stages > 1)
    np.testing.assert_allclose(found.tied_s, expected_s, rtol=1e-12)
    assert found.devices_apart.tolist() == [apart]
    # Groups of tensor, data and pipeline ranks; those of context and data together hold the data ranks.
    assert found.communicators.tolist() == [1 + (tp > 1) + (stages > 1)]
