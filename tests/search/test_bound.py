"""The bound of a row, against what its plans take."""

from __future__ import annotations

import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.ops.counts import trained_parameters
from meshwright.search.bound import Factored, RowBounds, least_state_bytes
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


def test_the_bound_of_a_row_is_below_its_plain_plan_and_near_it() -> None:
    workload, cluster = Workload(seq_len=1024, global_batch=64), resolve_gpus("8xH100")
    grid = build_grid(DENSE, workload, 8, Space(pins=(("tp", (1, 2)), ("cp", (1,)))))
    bounds = RowBounds(grid, DENSE, hardware_of(cluster.groups[0], workload), workload).time_s
    assert grid.rows > 40
    for number, bound_s in enumerate(bounds.tolist()):
        tp, pp, dp, mbs, m = (int(getattr(grid, name)[number]) for name in ("tp", "pp", "dp", "mbs", "m"))
        overlap = "ring" if grid.overlap[number] and tp > 1 else "bulk"
        row = PlanRow(tp=tp, pp=pp, dp=dp, mbs=mbs, gbs=64, tp_overlap=overlap)
        step_s = estimate_plan(expand(row, DENSE, 1024), DENSE, cluster, workload).step_time_s
        assert bound_s <= step_s, row.format()
        # With one micro-batch, or very many, there is little that a bound can miss.
        assert bound_s > (0.85 if pp > 1 and m == 1 else 0.7 if pp == 8 else 0.6) * step_s, row.format()
