"""The bound of a row, against what its plans take."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.ops.counts import trained_parameters
from meshwright.search.bound import Factored, RowBounds, least_state_bytes
from meshwright.search.legal_rows import build_grid
from meshwright.search.space import Space
from meshwright.specs import ModelSpec, PlanRow, Workload
from meshwright.specs.precision import precision
from tests.estimate.cases import DENSE, MIXED, MODELS
from tests.search.naive_bound import NaiveBound


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


def test_rows_share_a_price_that_have_all_of_what_it_depends_on_alike() -> None:
    """And all that do: sequences of a rank, a fraction where several share one, and how experts are cut."""
    workload = Workload(seq_len=1024, global_batch=96)
    grid = build_grid(MIXED, workload, 48, Space())
    factored = Factored(grid, hardware_of(resolve_gpus("6x8xH100").groups[0], workload), workload)
    sequences = [Fraction(*pair) for pair in zip(grid.mbs.tolist(), (grid.cp * grid.tp).tolist(), strict=True)]
    experts = [*zip(sequences, grid.ep.tolist(), grid.etp.tolist(), grid.way.tolist(), strict=True)]
    context = map(tuple, grid.context.tolist())
    dense = [*zip(grid.tp.tolist(), context, grid.mbs.tolist(), grid.overlap.tolist(), strict=True)]
    for keys, first, place in (
        (experts, factored.expert_rows, factored.expert_of),
        (dense, factored.dense_rows, factored.dense_of),
    ):
        assert len(first) == len(set(keys))
        assert [keys[row] for row in first[place].tolist()] == keys
    assert len({one.denominator for one in sequences}) > 4
    assert np.unique(grid.ep).size > 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_bounds_of_rows_are_those_of_their_definition(model: ModelSpec, training: bool) -> None:
    """To the last digits, whatever rows are priced together."""
    workload = Workload(seq_len=1024, global_batch=48, training=training)
    hardware = hardware_of(resolve_gpus("3x8xH100").groups[0], workload)
    grid = build_grid(model, workload, 24, Space())
    bounds = RowBounds(grid, model, hardware, workload)
    least = least_state_bytes(bounds.factored)
    picked = np.random.default_rng(5).choice(grid.rows, 25, replace=False)
    for row in [*picked.tolist(), int(grid.pp.argmax()), int(grid.ep.argmax())]:
        one = NaiveBound(grid, row, model, hardware, workload)
        assert bounds.time_s[row] == pytest.approx(one.time_s, rel=1e-9), one.columns
        assert bounds.peak_bytes[row] == pytest.approx(one.peak_bytes(least), rel=1e-12), one.columns
