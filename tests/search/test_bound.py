"""The bound of a row, against what its plans take."""

from __future__ import annotations

import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.ops.counts import trained_parameters
from meshwright.search.bound import Factored, least_state_bytes
from meshwright.search.legal_rows import build_grid
from meshwright.search.space import Space
from meshwright.specs import PlanRow, Workload
from meshwright.specs.precision import precision
from tests.estimate.cases import DENSE


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_fewest_bytes_of_states_are_nearly_those_of_a_plan_that_shards_them_all(dtype: str) -> None:
    workload = Workload(seq_len=1024, global_batch=8, precision=precision(dtype))
    cluster = resolve_gpus("8xH100")
    row = PlanRow(pp=1, dp=8, mbs=1, gbs=8, sharding="z3")
    stage = estimate_plan(expand(row, DENSE, 1024), DENSE, cluster, workload).stages[0]
    held = dict(stage.memory_bytes)
    states = sum(held[name] for name in ("weights", "gradients", "optimizer")) * 8 / trained_parameters(DENSE)
    grid = build_grid(DENSE, workload, 8, Space(pins=(("pp", (1,)),)))
    least = least_state_bytes(Factored(grid, hardware_of(cluster.groups[0], workload), workload))
    assert 0.75 * states < least <= states
