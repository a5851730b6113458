"""Products and sums that people check a plan by."""

from __future__ import annotations

from dataclasses import replace

from meshwright.estimate.layout import expand
from meshwright.library.clusters import resolve_gpus
from meshwright.report.words.identities import identities
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import Lora, Tuning
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE, MIXED


def said(row: PlanRow, model: ModelSpec = DENSE, gpus: str = "8xH100") -> list[str]:
    plan = expand(row, model, 2048)
    work = Workload(seq_len=2048, global_batch=row.gbs)
    return list(identities(Job(model=model, cluster=resolve_gpus(gpus), workload=work, plan=plan), row))


def test_devices_layers_and_the_batch() -> None:
    assert said(PlanRow(tp=2, pp=2, dp=2, mbs=2, gbs=16)) == [
        "8 = tp2 x pp2 x dp2",
        "layers 6+6 = 12",
        "16 sequences of 2,048 tokens = dp2 x mbs2 x 4 micro-batches",
    ]
    assert said(PlanRow(tp=8, gbs=1))[1:] == ["layers 12", "1 sequence of 2,048 tokens = dp1 x mbs1 x 1 micro-batch"]


def test_ranks_of_a_stage_share_its_experts() -> None:
    assert said(PlanRow(dp=8, ep=4, gbs=8), MIXED)[-1] == "experts: 8 ranks of a stage = ep4 x 2"
    assert said(PlanRow(tp=2, dp=4, ep=2, etp=2, gbs=8), MIXED)[-1] == "experts: 8 ranks of a stage = ep2 x etp2 x 2"


def test_what_is_trained_and_which_devices_idle() -> None:
    adapted = replace(DENSE, tuning=Tuning(lora=Lora(rank=16)))
    lines = said(PlanRow(dp=4, gbs=8), adapted)
    assert "parameters trained" in lines[2]
    assert lines[-1] == "4 of 8 devices used"


def test_numbers_of_four_digits_are_written_alike() -> None:
    lines = said(PlanRow(dp=1024, gbs=1024 * 2000), gpus="2048xH100")
    assert lines[2].endswith("x 2,000 micro-batches")
    assert lines[-1] == "1,024 of 2,048 devices used"
