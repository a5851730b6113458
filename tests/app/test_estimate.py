"""`estimate`: one plan, from any of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import estimate
from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.plan_json import write_job
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from tests.app.questions import GPUS, MODEL, best_plans

ROW = "tp2.pp2.z1.mbs1.rc-sel"


STEP = Workload(seq_len=1024, global_batch=64)


def test_one_plan_and_no_search() -> None:
    found = estimate(MODEL, ROW, gpus=GPUS)
    document = found.to_dict()
    assert len(document["plans"]) == 1
    assert "search" not in document
    assert document["plans"][0]["name"] == "tp2.pp2.dp2.z1.mbs1.gbs128.rc-sel"


def test_a_plan_of_a_search_is_priced_the_same() -> None:
    for entry in best_plans():
        if entry.name is not None:
            assert estimate(MODEL, entry.name, GPUS)[0].estimate == entry.estimate


def test_every_form_of_a_plan_is_the_same_plan(tmp_path: Path) -> None:
    best = best_plans()[0]
    file, many = tmp_path / "plan.json", tmp_path / "plans.json"
    file.write_text(write_job(best.job))
    many.write_text(json.dumps(best_plans().to_dict()))
    forms: list[object] = [best.job, best, str(file), file, f"{many}#1"]
    for form in forms:
        assert estimate(None, form)[0].estimate == best.estimate
    assert estimate(MODEL, best.plan, GPUS)[0].estimate == best.estimate
    assert best.row is not None
    assert estimate(MODEL, best.row, GPUS)[0].estimate == best.estimate


def test_a_plan_file_may_meet_another_cluster(tmp_path: Path) -> None:
    file = best_plans()[0].save(tmp_path / "plan.json")
    moved = estimate(None, file, "8xA100-80")
    assert moved[0].estimate.step_time_s > best_plans()[0].estimate.step_time_s
    assert any("8xA100-80 is priced" in text for text in moved.warnings)


def test_a_plan_that_does_not_fit_is_an_answer() -> None:
    found = estimate("llama-3-70b", "tp8", gpus=GPUS)
    assert found[0].estimate.fits == "no"
    assert "does not fit" in found.verdict.text


def test_a_default_batch_follows_the_plan() -> None:
    found = estimate(MODEL, "dp6.z1.mbs5", gpus="6xH100")
    assert found.workload.global_batch % 30 == 0
    assert any(a.name == "global_batch" for a in found.assumptions)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("tp3.pp2", ["6 = tp3 x pp2 x dp1", "heads"]),
        ("tp2.dp2", ["4 = tp2 x dp2", "8 devices"]),
        ("pp8.vpp5", ["layers"]),
        ("ep2", ["no experts"]),
        ("tp2.mbs3.gbs1024", ["1024"]),
        ("tq2.tp0", ["unknown token", "tp is 0"]),
        ("", ["no plan"]),
    ],
)
def test_illegal_plans_are_refused_with_all_their_problems(row: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        estimate(MODEL, row, gpus=GPUS)
    for word in words:
        assert word in str(caught.value)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gbs512"):
        estimate(MODEL, "tp2.gbs512", gpus=GPUS, global_batch=1024)
    file = best_plans()[0].save(tmp_path / "plan.json")
    with pytest.raises(InputError, match="64 sequences"):
        estimate(None, file, global_batch=512)
    with pytest.raises(InputError, match=r"80 layers|32 layers"):
        estimate("llama-3-70b", file)
    with pytest.raises(InputError, match="no model"):
        estimate(None, "tp2", gpus=GPUS)


def test_a_workload_states_the_whole_step() -> None:
    """What was stated beside it was dropped in silence."""
    with pytest.raises(InputError) as caught:
        estimate("gpt2", "dp8", gpus="8xH100", workload=STEP, seq_len=512, dtype="fp16")
    assert {problem.field for problem in caught.value.problems} == {"seq_len", "dtype"}


def test_the_run_and_what_is_trained_are_stated_beside_a_workload() -> None:
    whole, tuned = (
        estimate("gpt2", "dp8.mbs1", gpus="8xH100", workload=STEP, **beside)
        for beside in ({"tokens": 1e9}, {"lora": "r=8"})
    )

    assert whole.run is not None
    assert tuned.model.tuning is not None


def test_a_plan_has_the_batch_that_is_stated_in_tokens() -> None:
    with pytest.raises(InputError, match="the plan says gbs16, --tokens-per-step says 65,536"):
        estimate("gpt2", "dp8.gbs16", gpus="8xH100", seq_len=1024, tokens_per_step=65536)
    assert estimate("gpt2", "dp8.gbs64", gpus="8xH100", seq_len=1024, tokens_per_step=65536)[0].name == "dp8.mbs1.gbs64"


def test_a_plan_file_on_a_larger_cluster_says_how_much_of_it_runs(tmp_path: Path) -> None:
    file = best_plans()[0].save(tmp_path / "plan.json")
    found = estimate(None, file, gpus="16xH100")
    assert any("runs on 8 of these 16 devices" in warning for warning in found.warnings)


def test_unknown_schedules_are_unknown_tokens() -> None:
    with pytest.raises((InputError, UnsupportedError), match="zbx"):
        estimate(MODEL, "tp2.zbx", gpus=GPUS)


@given(tp=st.sampled_from([1, 2, 4, 8]), mbs=st.sampled_from([1, 2, 4]), sharding=st.sampled_from(["z0", "z1", "fsdp"]))
@settings(max_examples=12)
def test_a_larger_micro_batch_never_needs_less_memory(tp: int, mbs: int, sharding: str) -> None:
    dp = 8 // tp
    rows = [PlanRow(tp=tp, dp=dp, sharding=sharding if dp > 1 else "z0", mbs=m, gbs=64) for m in (mbs, 2 * mbs)]
    small, large = (estimate(MODEL, row, GPUS)[0].estimate.peak_memory_bytes for row in rows)
    assert small <= large
