"""Context ranks for each sequence: none for what fits one rank, all of them for what fills a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.sequences import WHOLE, fullest_pairs, parts_of, ranks_for, rows_of, spans_of
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE
from tests.strategies.columns import columns

LENGTHS = ((500, 0.6), (3000, 0.3), (9000, 0.07), (32768, 0.03))
RING = PlanRow(cp=(("p2p", 8),), dp=4, gbs=32)
BOTH = PlanRow(cp=(("a2a", 4), ("p2p", 8)), gbs=32)


def step(row: PlanRow, lengths: object, *, dynamic: bool) -> StepEstimate:
    work = Workload(seq_len=32768, global_batch=row.gbs, sequence_lengths=lengths, dynamic_cp=dynamic)
    return estimate_plan(expand(row, DENSE, 32768), DENSE, resolve_gpus(f"{row.devices}xH100"), work)


@pytest.mark.parametrize("row", [RING, BOTH])
def test_sequences_that_fit_a_rank_send_nothing(row: PlanRow) -> None:
    lengths = ((1024, 1.0),)
    fixed, dynamic = (dict(step(row, lengths, dynamic=own).breakdown_s)["cp"] for own in (False, True))
    assert dynamic == 0.0 < fixed


@pytest.mark.parametrize("row", [RING, BOTH])
def test_sequences_of_whole_rows_take_all_ranks(row: PlanRow) -> None:
    fixed, dynamic = (step(row, ((32768, 1.0),), dynamic=own) for own in (False, True))
    assert dynamic.step_time_s == pytest.approx(fixed.step_time_s, rel=1e-9)
    assert dynamic.filling is not None
    assert dynamic.filling.fixed_cp_step_time_s == fixed.step_time_s


@pytest.mark.parametrize("row", [RING, BOTH])
def test_mixed_sequences_send_less_than_with_all_ranks(row: PlanRow) -> None:
    fixed, dynamic = (step(row, LENGTHS, dynamic=own) for own in (False, True))
    assert 0.0 < dict(dynamic.breakdown_s)["cp"] < dict(fixed.breakdown_s)["cp"]
    assert dynamic.peak_memory_bytes == fixed.peak_memory_bytes


def test_a_sequence_gets_the_fewest_ranks_that_hold_it() -> None:
    assert [ranks_for(length, 32768, 8) for length in (1, 4096, 4097, 9000, 16385, 32768)] == [1, 1, 2, 4, 8, 8]
    assert [ranks_for(length, 30000, 6) for length in (5000, 5001, 15001)] == [1, 2, 6]


def test_shares_are_of_tokens() -> None:
    work = Workload(seq_len=32768, global_batch=1, sequence_lengths=LENGTHS, dynamic_cp=True)
    total = sum(length * share for length, share in LENGTHS)
    spans = spans_of(work, 8)
    assert sum(spans.values()) == pytest.approx(1.0)
    assert spans == pytest.approx({1: (300 + 900) / total, 4: 630 / total, 8: 983.04 / total})


def test_parts_of_ranks_hold_the_pairs_of_their_rows() -> None:
    work = Workload(seq_len=32768, global_batch=1, sequence_lengths=LENGTHS, dynamic_cp=True)
    rows, parts = rows_of(work), parts_of(work, 8)
    assert rows is not None
    assert parts.pairs(WHOLE) / parts.tokens == pytest.approx(rows.pairs(WHOLE) / rows.tokens, rel=1e-9)
    assert parts.seq_len == 4096
    assert 0.5 < parts.filled <= 1.0


def test_ranks_of_their_own_sequences_wait_for_the_one_with_most_pairs() -> None:
    """Sixteen rows on two data ranks of eight context ranks each: sixteen ranks among which pairs differ."""
    work = Workload(seq_len=32768, global_batch=16, sequence_lengths=LENGTHS, dynamic_cp=True)
    both = replace(columns(p2p=8, seq_len=32768), data_ranks=np.array([2]))
    alone = replace(columns(p2p=8, seq_len=32768), data_ranks=np.array([1]))
    loads = [float(fullest_pairs(WHOLE, one, work)[0]) for one in (alone, both)]
    assert loads == [
        pytest.approx(float(parts_of(work, 8).load(WHOLE, np.array([ranks]), np.array([rows]), dealt=True)[0]))
        for ranks, rows in ((8, 16), (16, 8))
    ]
    assert 1.0 < loads[0] < loads[1]


def test_the_planner_says_what_it_gains() -> None:
    found = mw.plan(
        DENSE,
        gpus="16xH100",
        lengths=LENGTHS,
        seq_len=32768,
        global_batch=16,
        dynamic_cp=True,
        pin=("tp=1", "pp=1", "cp=8"),
    )
    assert found.best.estimate.filling is not None
    assert found.best.estimate.filling.fixed_cp_step_time_s > found.best.estimate.step_time_s
    assert "over all context ranks" in found.verdict.text
    again = mw.estimate(plan=found.best)
    assert again.best.estimate == found.best.estimate
    assert found.to_dict()["plans"][0]["estimate"]["filling"]["fixed_cp_step_time_s"]


def test_only_packed_lengths_have_context_ranks_of_their_own() -> None:
    with pytest.raises(InputError, match="without --lengths"):
        mw.plan(DENSE, gpus="8xH100", dynamic_cp=True)
    with pytest.raises(InputError, match="packing pad"):
        mw.plan(DENSE, gpus="8xH100", lengths=LENGTHS, packing="pad", dynamic_cp=True)
    with pytest.raises(InputError, match="dynamic_cp"):
        Workload(seq_len=8, global_batch=1, dynamic_cp=True)
