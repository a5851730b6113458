"""`compare PLAN --with-run LOG`: both sides, by part where the run reports parts, and what explains the difference."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import meshwright
from meshwright import estimate
from meshwright.app.plans.plan_set import RankedPlan
from meshwright.app.runs.compared import RunComparison, compare_with_run
from meshwright.calibrate.causes import Cause
from meshwright.cli.entry import main
from meshwright.errors import InputError
from meshwright.formats.logs import read_log
from meshwright.report.words.measured_run import cause_line

MODEL, GPUS, PLAN = "llama-3.1-8b", "16xH100", "tp2.pp2.mbs1.z1.gbs128"
GIB = 1024**3


@pytest.fixture(scope="module")
def planned() -> RankedPlan:
    return estimate(MODEL, PLAN, gpus=GPUS).plans[0]


def megatron(step_s: float, timers: dict[str, tuple[float, float]], gib: float = 40.0) -> str:
    """Twelve steps as Megatron prints them with --timing-log-level 2."""
    lines = [
        f"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: {1024 * gib:.1f} | reserved: 9"
    ]
    for n in range(1, 13):
        lines += [
            f" iteration {n:8d}/  500 | elapsed time per iteration (ms): {1000 * step_s:.1f} | power per GPU (W/GPU): "
            "650.0 | global batch size:   128 | lm loss: 1.0E+01 |",
            "(min, max) time across ranks (ms):",
            *(
                f"    {(name + ' ').ljust(48, '.')}: ({1000 * low:.2f}, {1000 * high:.2f})"
                for name, (low, high) in timers.items()
            ),
        ]
    return "\n".join(lines)


def compared(planned: RankedPlan, path: Path, text: str) -> RunComparison:
    path.write_text(text)
    return compare_with_run(planned, path)


def test_timers_of_megatron_stand_beside_the_parts_they_time(planned: RankedPlan, tmp_path: Path) -> None:
    parts, step_s = dict(planned.estimate.breakdown_s), planned.estimate.step_time_s
    tasks_s = sum(parts[name] for name in ("compute", "recompute", "tp", "cp", "ep", "host", "offload"))
    waits_s = parts["pp"] + parts["bubble"]
    late_s = 0.1 * step_s
    timers = {
        "forward-backward": (tasks_s, tasks_s + waits_s + late_s + parts["dp"]),
        "forward-compute": (0.2 * tasks_s, tasks_s / 3),
        "backward-compute": (0.5 * tasks_s, tasks_s * 2 / 3),
        "all-grads-sync": (parts["dp"], 3 * parts["dp"] + 0.1),
        "optimizer": (0.0, parts["optimizer"]),
    }
    found = compared(planned, tmp_path / "train.log", megatron(step_s + late_s, timers))
    changes = {term.parts: term.change_s for term in found.terms}
    # Timers are printed in hundredths of a millisecond.
    assert changes.pop(("bubble", "pp")) == pytest.approx(late_s, abs=1e-3)
    assert all(abs(change) < 1e-3 for change in changes.values())
    assert sum(term.measured_s for term in found.terms) == pytest.approx(found.run.step_time_s, rel=1e-4)
    assert sum(term.predicted_s for term in found.terms) == pytest.approx(step_s)
    assert any("stages wait for each other" in line for line in found.advice)
    assert "furthest off: pipeline bubble" in found.notes[0]


def test_a_slow_machine_is_explained_by_its_numbers_and_their_ranges(planned: RankedPlan, tmp_path: Path) -> None:
    step_s = planned.estimate.step_time_s
    text = "step,step_time_s,memory_gib\n" + "".join(f"{n},{1.1 * step_s},40\n" for n in range(1, 9))
    found = compared(planned, tmp_path / "steps.csv", text)
    step, tokens, flop, memory = found.totals
    assert step.measured / step.predicted == pytest.approx(1.1)
    assert tokens.measured / tokens.predicted == pytest.approx(1 / 1.1)
    assert flop.low is not None
    assert flop.low < flop.predicted
    assert memory.measured == 40 * GIB
    names = [cause.name for cause in found.causes]
    assert "device.hopper.gemm_fraction" in names
    assert "run.hopper.megatron-core.pace" in names
    assert all(cause.effect_s > 0 and cause.low < cause.value <= cause.high for cause in found.causes)
    assert sum(cause.effect_s for cause in found.causes) < 0.1 * step_s
    pace = next(cause for cause in found.causes if cause.name.endswith("pace"))
    assert pace.needed == pytest.approx(1 / 1.1, rel=0.01)
    assert "10% slower than the predicted" in found.text
    assert any("nvidia-smi" in line for line in found.advice)


def test_numbers_without_a_unit_are_never_said_as_times() -> None:
    pace = Cause(name="run.hopper.megatron-core.pace", value=1.0, low=0.9, high=1.1, needed=0.009, effect_s=1.0)
    assert "alone it would have to be 0.009," in cause_line(pace, 2.0)
    outside = Cause(name="software.megatron-core.step_s", value=0.07, low=0.04, high=0.1, needed=0.2, effect_s=1.0)
    assert "predicted with 70 ms (90% range 40 ms-100 ms); alone it would have to be 200 ms," in cause_line(
        outside, 2.0
    )


def test_exposed_traffic_points_at_overlap(planned: RankedPlan, tmp_path: Path) -> None:
    parts, step_s = dict(planned.estimate.breakdown_s), planned.estimate.step_time_s
    late_s, compute_s = 0.1 * step_s, parts["compute"] + parts["recompute"]
    rows = "".join(f"{n},{step_s + late_s!r},{compute_s!r},{parts['tp'] + late_s!r}\n" for n in range(1, 4))
    found = compared(planned, tmp_path / "steps.csv", "step,step_time_s,compute+recompute_s,tp_s\n" + rows)
    assert {term.parts for term in found.terms if term.name} == {("compute",), ("tp",)}
    assert "software.megatron-core.link_share" in [cause.name for cause in found.causes]
    assert "see that communication overlaps" in found.advice[0]


def trace(step_s: float) -> dict[str, object]:
    """Three steps: a product, a collective half of which it covers, an update, and nothing for the rest."""
    events: list[dict[str, object]] = []
    for n in range(3):
        start, unit = n * step_s * 1e6, step_s * 1e5
        tensor = {"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}
        for name, at, units, more in (
            ("nvjet_hsh_128x256_64x4", 0, 6, {"cat": "kernel"}),
            ("ncclDevKernel_ReduceScatter_Sum_bf16", 5, 2, {"cat": "kernel", "args": tensor}),
            ("ncclDevKernel_SendRecv", 7, 1, {"cat": "kernel", "args": {"Collective name": "send"}}),
            ("multi_tensor_apply_kernel", 8, 0.5, {"cat": "kernel"}),
            (f"ProfilerStep#{n}", 0, 10, {"cat": "user_annotation"}),
        ):
            events.append({"ph": "X", "name": name, "ts": start + at * unit, "dur": units * unit, **more})
    return {"traceEvents": events}


def test_kernels_of_a_trace_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    with gzip.open(path, "wt") as stream:
        json.dump(trace(10.0), stream)
    read = read_log(path)
    assert read.framework == "pytorch-profiler"
    assert [step.step_time_s for step in read.steps] == [pytest.approx(10.0)] * 3
    found = {term.parts: term.seconds for term in read.terms}
    assert found == {
        ("compute", "recompute"): pytest.approx(6.0),
        ("optimizer",): pytest.approx(0.5),
        ("tp",): pytest.approx(1.0),
        ("pp", "bubble"): pytest.approx(1.0),
        ("host",): pytest.approx(1.5),
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "no list of traceEvents"),
        ('{"traceEvents": []}', "no step is marked"),
        ("[", "no trace of a profiler"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5}]}',
            "no kernel",
        ),
    ],
)
def test_traces_that_say_nothing_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "step.json"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_log(path)


def test_parts_that_sum_to_more_than_the_step_are_refused(planned: RankedPlan, tmp_path: Path) -> None:
    step_s = planned.estimate.step_time_s
    with pytest.raises(InputError, match="the parts that the log reports sum to 9 s"):
        compared(planned, tmp_path / "steps.csv", f"step,step_time_s,compute_s\n1,{step_s},9\n2,{step_s},9\n")


def test_a_plan_in_one_line_takes_its_model_and_what_the_log_states(planned: RankedPlan, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("  seq_length .......... 4096\n" + megatron(planned.estimate.step_time_s, {}))
    words = PLAN.removesuffix(".gbs128")
    found = meshwright.compare(words, with_run=log, model=MODEL, gpus=GPUS)
    assert isinstance(found, RunComparison)
    assert found.run.job.plan == planned.plan
    with pytest.raises(InputError, match="model is missing"):
        meshwright.compare(words, with_run=log)
    with pytest.raises(InputError, match="gpus beside plan files"):
        meshwright.compare(planned, planned, gpus=GPUS)


def test_on_the_command_line(planned: RankedPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, log = planned.save(tmp_path / "plan.json"), tmp_path / "train.log"
    log.write_text(megatron(planned.estimate.step_time_s, {}))
    assert main(["compare", str(plan), "--with-run", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "meshwright.run-comparison/1"
    assert main(["compare", str(plan), "--with-run", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "as predicted" in shown
    assert "the log reports no parts of the step" in shown
    assert main(["compare", str(plan), str(plan), "--with-run", str(log)]) == 2
    assert "a second PLAN beside --with-run" in capsys.readouterr().err
