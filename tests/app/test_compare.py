"""`compare`: where the seconds and bytes of two plans differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import estimate
from meshwright.app.compare import Difference, compare
from meshwright.app.explain import explain
from meshwright.errors import InputError
from meshwright.library.calibration import calibration
from meshwright.library.clusters import resolve_gpus
from meshwright.specs import Workload
from meshwright.specs.job import Job
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from tests.app.questions import GPUS, MODEL, best_plans
from tests.estimate.cases import DENSE
from tests.estimate.mixed import Stage, plan_of


def test_parts_sum_to_both_steps_and_peaks() -> None:
    a, b = (estimate(MODEL, row, gpus=GPUS)[0] for row in ("tp2.z1", "tp8.rc-full"))
    found = compare(a, b)
    assert sum(d.first for d in found.seconds) == pytest.approx(a.estimate.step_time_s)
    assert sum(d.second for d in found.seconds) == pytest.approx(b.estimate.step_time_s)
    assert sum(d.change for d in found.bytes) == pytest.approx(
        b.estimate.fullest.peak_memory_bytes - a.estimate.fullest.peak_memory_bytes
    )
    assert ("tp", "2", "8") in found.settings
    assert ("recompute", "none", "full") in found.settings
    assert found.text.startswith("the second is ")
    assert "as slow" in found.text
    assert not found.tied


def test_a_plan_ties_with_itself() -> None:
    best = best_plans()[0]
    found = compare(best, best)
    assert found.text.startswith("tie")
    assert found.to_dict()["tie"] == {"within": calibration().tie, "tied": True}
    assert not found.settings
    assert all(d.change == 0 for d in (*found.seconds, *found.bytes))


def test_turning_it_round_turns_the_changes() -> None:
    a, b = best_plans()[0], best_plans()[2]
    forth, back = compare(a, b), compare(b, a)
    assert [d.change for d in forth.seconds] == [-d.change for d in back.seconds]


def test_other_workloads_are_compared_by_tokens() -> None:
    a = estimate(MODEL, "tp2.z1", gpus=GPUS, seq_len=4096)[0]
    b = estimate(MODEL, "tp2.z1", gpus=GPUS, seq_len=8192, global_batch=1024)[0]
    found = compare(a, b)
    assert "tokens/s" in found.text
    assert any("compare tokens/s" in note for note in found.notes)


def test_plans_of_one_line_say_what_they_are_for(tmp_path: Path) -> None:
    """Beside a file, a line is for the file's model, cluster and workload; two lines are told theirs."""
    lines = ("tp2.z1", "tp8.rc-full")
    a, b = (estimate(MODEL, row, gpus=GPUS, seq_len=8192)[0] for row in lines)
    expected = compare(a, b)
    found = mw.compare(*lines, model=MODEL, gpus=GPUS, seq_len=8192)
    own = {"made_by": None, "notes": [*expected.notes]}
    assert {**found.to_dict(), **own} == {**expected.to_dict(), **own}
    file = a.save(tmp_path / "plan.json")
    assert mw.compare(str(file), lines[1]).to_dict()["text"] == expected.text
    told = mw.explain(lines[0], model=MODEL, gpus=GPUS, seq_len=8192).to_dict()
    assert {**told, "made_by": None} == {**explain(a).to_dict(), "made_by": None}
    with pytest.raises(InputError, match=r"'tp2\.z1' is no plan file"):
        mw.compare(*lines)
    with pytest.raises(InputError, match="beside a plan file"):
        mw.explain(str(file), gpus=GPUS)


def test_plan_files_of_a_set(tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    file.write_text(json.dumps(best_plans().to_dict()))
    found = compare(f"{file}#1", f"{file}#2")
    assert found.titles == (best_plans()[0].title, best_plans()[1].title)
    json.dumps(found.to_dict(), allow_nan=False)


def test_rounding_is_no_difference() -> None:
    assert Difference(name="pp", first=0.3, second=0.1 + 0.2).change == 0.0
    assert Difference(name="pp", first=0.3, second=0.4).change > 0.0


def test_unequal_pipelines_differ_in_layers_shares_and_strategies() -> None:
    whole, half = LayerStrategy(tensor=Tensor1D(degree=4)), LayerStrategy(tensor=Tensor1D(degree=2))

    def job(first: int, share: int) -> Job:
        made = plan_of(
            ([Stage(0, whole, first), Stage(8, whole, 12 - first)], 1, share), ([Stage(4, half, 12)], 1, 8 - share)
        )
        workload = Workload(seq_len=2048, global_batch=8)
        return Job(model=DENSE, cluster=resolve_gpus("8xH100,8xA100-80"), workload=workload, plan=made)

    found = compare(job(8, 6), job(7, 5))
    assert {name: (one, two) for name, one, two in found.settings} == {
        "layers": ("8+4 | 12", "7+5 | 12"),
        "micro-batches": ("6 of 1 | 2 of 1", "5 of 1 | 3 of 1"),
    }
    assert found.titles[0].startswith("1 x 4 H100 > 1 x 4 A100-80")
    assert len(found.pictures()[0].workers) == 3


def test_adapters_beside_full_training_are_a_setting_and_memory_goes_one_way() -> None:
    a, b = (
        estimate(MODEL, row, gpus=GPUS, lora=lora, software="megatron-core")[0]
        for row, lora in (("z1.mbs2", "r=16"), ("tp2.z1", None))
    )
    found = compare(a, b)
    assert ("training", "LoRA of rank 16 on all-linear", "all weights") in found.settings
    memory = next(note for note in found.notes if note.startswith("memory: "))
    assert ("more" in memory) == ("+" in memory)


def test_formats_of_roles_that_differ_are_named() -> None:
    a = estimate(MODEL, "tp2.z1", gpus=GPUS)[0]
    b = estimate(MODEL, "tp2.z1", gpus=GPUS, grad_dtype="bf16", moment_dtype="bf16")[0]
    settings = {name: values for name, *values in compare(a, b).settings}
    assert settings["grad_dtype"] == ["fp32", "bf16"]
    assert settings["moment_dtype"] == ["fp32", "bf16"]
