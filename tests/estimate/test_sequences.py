"""Steps of unequal sequences: what is computed, what is padding, and who is waited for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.estimate.needed_flop import model_flop_per_token
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.sequences import WHOLE, rows_of, tokens_of_step
from meshwright.estimate.timeline import step_timeline
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE

MIXED_LENGTHS = ((512, 0.6), (2048, 0.3), (8192, 0.1))


def step(row: PlanRow, gpus: str = "8xH100", **work: object) -> StepEstimate:
    workload = Workload(seq_len=8192, global_batch=row.gbs, **work)
    return estimate_plan(expand(row, DENSE, 8192), DENSE, resolve_gpus(gpus), workload)


@pytest.mark.parametrize("packing", ["pack", "pad", "bins"])
def test_sequences_that_fill_their_rows_change_nothing(packing: str) -> None:
    row = PlanRow(tp=4, dp=2, gbs=8)
    alike, stated = step(row), step(row, sequence_lengths=((8192, 1.0),), packing=packing)
    assert stated.filling is not None
    assert replace(stated, filling=None) == alike
    assert (stated.filling.padding, stated.filling.cut, stated.filling.fullest_rank) == (0.0, 0.0, 1.0)


def test_packed_sequences_attend_to_themselves_alone() -> None:
    """Rows of 16 sequences of 512: 16 x 512 x 513 / 2 pairs, not 8192 x 8193 / 2."""
    work = Workload(seq_len=8192, global_batch=1, sequence_lengths=((512, 1.0),))
    rows = rows_of(work)
    assert rows is not None
    assert rows.pairs(WHOLE) == 16 * 512 * 513 / 2
    assert (rows.sequences, rows.filled) == (16, 1.0)
    row = PlanRow(tp=8, gbs=8)
    short, whole = step(row, sequence_lengths=((512, 1.0),)), step(row)
    saved = dict(whole.breakdown_s)["compute"] - dict(short.breakdown_s)["compute"]
    flop = model_flop_per_token(DENSE, 8192, training=True) - model_flop_per_token(DENSE, 512, training=True)
    assert saved > flop * 8 * 8192 / (8 * 989e12)
    assert short.peak_memory_bytes == whole.peak_memory_bytes


def test_padding_is_computed_and_not_counted() -> None:
    row = PlanRow(tp=8, gbs=8)
    padded, whole = step(row, sequence_lengths=MIXED_LENGTHS, packing="pad"), step(row)
    assert padded.step_time_s == whole.step_time_s
    mean = sum(length * share for length, share in MIXED_LENGTHS)
    assert padded.tokens_per_s_per_device == pytest.approx(whole.tokens_per_s_per_device * mean / 8192)
    assert padded.filling is not None
    assert padded.filling.padding == pytest.approx(1 - mean / 8192)
    assert padded.mfu < whole.mfu


def test_bins_pad_to_their_edges() -> None:
    """Per 10 sequences: 6 of 512 at 8 a row of 1024-bins, 3 of 2048 at 4 a row, 1 of 8192."""
    rows = rows_of(Workload(seq_len=8192, global_batch=1, sequence_lengths=MIXED_LENGTHS, packing="bins:1024,2048"))
    assert rows is not None
    number = 6 / 8 + 3 / 4 + 1
    assert rows.sequences == pytest.approx(10 / number)
    assert rows.tokens == pytest.approx((6 * 512 + 3 * 2048 + 8192) / number)
    pairs = [count * length * (length + 1) / 2 for length, count in ((1024, 6), (2048, 3), (8192, 1))]
    assert rows.pairs(WHOLE) == pytest.approx(sum(pairs) / number)


def test_windows_reach_no_further_than_their_sequence() -> None:
    rows = rows_of(Workload(seq_len=8192, global_batch=1, sequence_lengths=((512, 1.0),)))
    assert rows is not None
    wide, narrow, pieces = (replace(WHOLE, **limit) for limit in ({"window": 4096}, {"window": 128}, {"chunk": 256}))
    assert rows.pairs(wide) == rows.pairs(WHOLE)
    assert rows.pairs(narrow) < rows.pairs(WHOLE)
    assert rows.pairs(pieces) == 16 * 2 * 256 * 257 / 2


def test_longer_sequences_are_cut_to_a_row() -> None:
    work = Workload(seq_len=1024, global_batch=4, sequence_lengths=MIXED_LENGTHS, packing="pad")
    assert tokens_of_step(work) == pytest.approx(4 * (0.6 * 512 + 0.4 * 1024))


def test_more_data_ranks_wait_longer_for_the_fullest() -> None:
    loads = []
    for dp in (1, 2, 8):
        found = step(PlanRow(tp=8 // dp, dp=dp, gbs=16), sequence_lengths=MIXED_LENGTHS).filling
        assert found is not None
        loads.append(found.fullest_rank)
    assert loads[0] == 1.0 < loads[1] < loads[2] < 3.0


def test_larger_batches_even_ranks_out() -> None:
    loads = []
    for batch in (8, 64, 4096):
        found = step(PlanRow(dp=8, gbs=batch), sequence_lengths=MIXED_LENGTHS).filling
        assert found is not None
        loads.append(found.fullest_rank)
    assert loads[0] > loads[1] > loads[2] > 1.0


def test_ranks_that_gather_layer_by_layer_wait_for_every_micro_batch() -> None:
    """Random rows even out over a step, not within a micro-batch."""
    waits = {}
    for sharding in ("z1", "fsdp"):
        row = PlanRow(dp=8, gbs=256, sharding=sharding)
        alike, uneven = step(row), step(row, sequence_lengths=MIXED_LENGTHS)
        waits[sharding] = dict(uneven.breakdown_s)["dp"] - dict(alike.breakdown_s)["dp"]
    assert waits["fsdp"] > waits["z1"] + 0.01


def test_pipelines_of_unequal_rows_wait_longer() -> None:
    row = PlanRow(tp=1, pp=4, dp=2, gbs=16)
    alike, uneven = step(row), step(row, sequence_lengths=MIXED_LENGTHS)
    bubbles = [dict(found.breakdown_s)["bubble"] for found in (alike, uneven)]
    attention = dict(alike.breakdown_s)["compute"] - dict(uneven.breakdown_s)["compute"]
    assert bubbles[1] > bubbles[0] - attention
    timeline = step_timeline(
        expand(row, DENSE, 8192),
        DENSE,
        resolve_gpus("8xH100"),
        work := Workload(seq_len=8192, global_batch=16, sequence_lengths=MIXED_LENGTHS),
    )
    assert work.sequence_lengths
    assert max(phase.end_s for phase in timeline.phases) == pytest.approx(uneven.step_time_s)


def test_lengths_of_models_with_other_streams_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="whisper"):
        mw.plan("whisper-large-v3", gpus="8xH100", lengths=MIXED_LENGTHS)


@pytest.mark.parametrize("packing", ["pack", "bins"])
def test_the_search_prices_what_estimate_prices(packing: str) -> None:
    found = mw.plan(
        DENSE,
        gpus="16xH100",
        lengths="lognormal:mean=900,sigma=1.2,max=8192",
        packing=packing,
        global_batch=64,
        pin=("tp=2", "mbs=1", "pp=2"),
    )
    assert found.certificate is not None
    assert found.best.estimate.filling is not None
    again = mw.estimate(plan=found.best)
    assert again.best.estimate == found.best.estimate


def test_packing_beats_padding_and_json_says_by_what() -> None:
    uneven = ((700, 0.6), (2500, 0.3), (8192, 0.1))
    work = {"gpus": "8xH100", "lengths": uneven, "seq_len": 8192, "global_batch": 32, "pin": ("tp=2", "pp=1", "cp=1")}
    plans = {packing: mw.plan(DENSE, packing=packing, **work) for packing in ("pack", "bins", "pad")}
    rates = {name: found.best.estimate.tokens_per_s_per_device for name, found in plans.items()}
    assert rates["pack"] > rates["bins"] > rates["pad"]
    document = plans["pad"].to_dict()
    assert document["inputs"]["workload"]["lengths"]["packing"] == "pad"
    assert document["plans"][0]["estimate"]["filling"]["padding"] == pytest.approx(1 - 1989.2 / 8192)


def test_wrong_packings_are_refused_with_the_lengths() -> None:
    with pytest.raises(InputError) as caught:
        mw.plan(DENSE, gpus="8xH100", lengths="uniform:low=3,high=1", packing="bins:4,2")
    assert {problem.field for problem in caught.value.problems} == {"lengths", "packing"}
    with pytest.raises(InputError, match="without --lengths"):
        mw.plan(DENSE, gpus="8xH100", packing="pack")
    with pytest.raises(InputError, match="shares"):
        Workload(seq_len=8, global_batch=1, sequence_lengths=((4, 0.5),))


def test_quantiles_stand_for_the_distribution() -> None:
    work = Workload(seq_len=32768, global_batch=1, sequence_lengths=MIXED_LENGTHS)
    rows = rows_of(work)
    assert rows is not None
    assert np.isclose(rows.tokens / rows.sequences, 1740.8, rtol=1e-3)
