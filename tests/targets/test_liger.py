"""Logits that Liger makes in pieces: how many, who is told, and who refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from meshwright import check, plan
from meshwright.app.plans.plan_set import PlanSet
from meshwright.planning.repair.no_plan import NoPlanError
from meshwright.targets.liger import pieces
from tests.targets.test_round_trip import written

ASKED = {"model": "llama-3.1-8b", "gpus": "1xRTX3090", "seq_len": 8192, "lora": "r=64,base=nf4"}
SWITCHES = {
    "axolotl": ("axolotl.yaml", "liger_fused_linear_cross_entropy: true"),
    "llamafactory": ("train.yaml", "enable_liger_kernel: true"),
    "accelerate": ("accelerate.yaml", '"use_liger_kernel": true'),
    "deepspeed": ("ds_config.json", '"use_liger_kernel": true'),
}


def test_pieces_are_those_of_ligers_function() -> None:
    assert pieces(4096, 4096, 128_256) == 32  # of 128 tokens each
    assert pieces(9000, 5120, 151_936) == 18  # 300 tokens are rounded up to 512
    assert pieces(1, 4096, 128_256) == 1


@given(some.integers(1, 10**6), some.integers(64, 20_000), some.integers(64, 300_000))
def test_pieces_hold_all_tokens_in_as_few_as_there_are_rows_for(tokens: int, hidden: int, vocab: int) -> None:
    count = pieces(tokens, hidden, vocab)
    assert 1 <= count <= -(-vocab // hidden)
    assert count <= tokens


@pytest.mark.parametrize("target", SWITCHES)
def test_pieces_are_switched_on_in_files_that_read_back_with_them(target: str, tmp_path: Path) -> None:
    answer = plan(**ASKED, loss_tiles=32, target=target)
    assert isinstance(answer, PlanSet)
    files, (file, switch) = written(target, answer.best.job), SWITCHES[target]
    assert any(switch in text for text in files.values())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = check("llama-3.1-8b", source=tmp_path / file, cluster="1xRTX3090", search=False)
    assert report.inputs is not None
    assert report.inputs.workload.loss_tiles == 32


def test_another_number_is_refused_with_that_of_liger() -> None:
    answer = plan(**ASKED, loss_tiles=16)
    assert isinstance(answer, PlanSet)
    assert "Liger makes 32 of the tokens of a micro-batch" in str(answer.to_dict())


def test_pieces_are_the_repair_that_costs_nothing() -> None:
    with pytest.raises(NoPlanError) as raised:
        plan(**ASKED)
    repairs = {one.option: one for one in raised.value.repairs}
    assert repairs["--loss-tiles 32"].run_by == ("accelerate", "axolotl", "llamafactory", "deepspeed")
    again = plan(**ASKED, loss_tiles=32)
    assert isinstance(again, PlanSet)
    assert again.best.name == repairs["--loss-tiles 32"].plan
    assert again.best.estimate.step_time_s == repairs["--loss-tiles 32"].step_time_s
