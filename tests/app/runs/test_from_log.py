"""One measured step: the plan's prediction moves to it, its neighbours part of the way, and ranks follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshwright import calibrate, estimate, plan
from meshwright.app.runs.from_log import FromLog
from meshwright.cli.entry import main
from meshwright.errors import InputError
from meshwright.library.calibration import calibration

MODEL, GPUS, PLAN = "llama-3.1-8b", "8xH100", "tp2.mbs1.gbs128"


def predicted(text: str = PLAN, calibrated: Path | None = None) -> float:
    return estimate(MODEL, text, gpus=GPUS, calibration=calibrated).plans[0].estimate.step_time_s


def table(path: Path, step_time_s: float, extra: str = "", value: str = "") -> Path:
    rows = "".join(f"{n},{step_time_s!r}{value}\n" for n in range(1, 4))
    path.write_text(f"step,step_time_s{extra}\n{rows}")
    return path


def learned(tmp_path: Path, over: float, text: str = PLAN, calibrated: Path | None = None) -> tuple[FromLog, Path]:
    out = tmp_path / "run.json"
    log = table(tmp_path / "steps.csv", predicted(text, calibrated) * over)
    told = {"model": MODEL, "plan": text, "gpus": GPUS, "calibration": calibrated}
    return calibrate(from_log=log, output=out, ranked=False, **told), out


@pytest.mark.parametrize("over", [0.85, 1.3])
def test_the_measured_plan_moves_fully_and_its_neighbours_partly(tmp_path: Path, over: float) -> None:
    others = ("tp4.mbs1.gbs128", "pp2.mbs1.gbs128")
    before = predicted(), *map(predicted, others)
    _, out = learned(tmp_path, over)
    after = estimate(MODEL, PLAN, gpus=GPUS, calibration=out).plans[0].estimate
    moved = [predicted(text, out) / was for text, was in zip(others, before[1:], strict=True)]
    assert after.step_time_s == pytest.approx(over * before[0], rel=1e-6)
    assert after.step_time_low_s < after.step_time_s < after.step_time_high_s < 1.05 * after.step_time_s
    assert sum(seconds for _, seconds in after.breakdown_s) == pytest.approx(after.step_time_s)
    for share in moved:
        assert min(1.0, over) < share < max(1.0, over)
    assert predicted() == before[0]


def test_mfu_follows_the_time_not_the_pace(tmp_path: Path) -> None:
    before = estimate(MODEL, PLAN, gpus=GPUS).plans[0].estimate
    _, out = learned(tmp_path, 1.25)
    after = estimate(MODEL, PLAN, gpus=GPUS, calibration=out).plans[0].estimate
    assert after.mfu == pytest.approx(before.mfu / 1.25, rel=1e-6)
    assert after.peak_memory_bytes == before.peak_memory_bytes


def test_a_slow_measurement_of_the_best_plan_puts_another_first(tmp_path: Path) -> None:
    question = {"gpus": GPUS, "global_batch": 128, "top": 3}
    best = plan(MODEL, **question).plans[0]
    out = tmp_path / "run.json"
    log = table(tmp_path / "steps.csv", 1.5 * best.estimate.step_time_s)
    found = calibrate(from_log=log, model=MODEL, plan=best.name, output=out, gpus=GPUS)
    again = plan(MODEL, calibration=out, **question).plans
    assert again[0].name != best.name
    times = [found.estimate.step_time_s for found in again]
    assert times == sorted(times)
    shown = {one.name: one for one in found.ranking}
    assert shown[best.name].measured
    assert shown[best.name].rank_before == 1
    assert shown[best.name].after_s == pytest.approx(1.5 * best.estimate.step_time_s)
    assert [one.name for one in found.ranking if one.rank_after][:3] == [one.name for one in again]
    assert found.ranking[0].after_s == pytest.approx(times[0])


def test_a_second_step_starts_from_the_first(tmp_path: Path) -> None:
    first, out = learned(tmp_path, 1.2)
    second, _ = learned(tmp_path, 1.0, calibrated=out)
    assert second.learned.deviation_before < first.learned.deviation_before
    assert "on top of one measured step" in second.record["source"]


def test_two_calibrations_are_compared_in_one_process_by_threads(tmp_path: Path) -> None:
    _, out = learned(tmp_path, 1.3)
    alone = {None: predicted(), out: predicted(calibrated=out)}
    questions = [None, out] * 4

    with ThreadPoolExecutor(len(questions)) as pool:
        found = list(pool.map(lambda calibrated: predicted(calibrated=calibrated), questions))

    assert found == [alone[calibrated] for calibrated in questions]
    assert alone[out] == pytest.approx(1.3 * alone[None])


def test_doubt_narrows_and_what_is_not_told_apart_is_named(tmp_path: Path) -> None:
    found, _ = learned(tmp_path, 1.3)
    assert found.learned.deviation_after < found.learned.deviation_before
    assert "run.hopper.megatron-core.pace" in found.learned.not_told_apart
    known = dict(calibration().numbers)
    for name, number in found.learned.numbers:
        assert number.low <= number.value <= number.high
        if name in known:
            assert number.log_deviation <= 1.001 * known[name].log_deviation


@pytest.mark.parametrize(
    ("extra", "value", "times", "said"),
    [
        ("", "", 10.0, "times apart is another run"),
        ("", "", 0.4, "of the devices' peak"),
        (",global_batch", ",256", 1.0, "line 2: a global batch of 256, the plan's is 128"),
        (",tokens_per_s_per_device", ",100", 1.0, "from its throughput"),
    ],
)
def test_a_log_of_another_run_writes_nothing(tmp_path: Path, extra: str, value: str, times: float, said: str) -> None:
    log, out = table(tmp_path / "steps.csv", predicted() * times, extra, value), tmp_path / "run.json"
    with pytest.raises(InputError, match=said):
        calibrate(from_log=log, model=MODEL, plan=PLAN, output=out, gpus=GPUS)
    assert not out.exists()


def test_shapes_that_the_log_states_must_be_the_models(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "  num_layers ...................... 40\n"
        " iteration 1/ 10 | elapsed time per iteration (ms): 9000.0 | global batch size: 128 | lm loss: 1.0 |\n"
    )
    with pytest.raises(InputError, match="line 1: the log says num_layers 40, the plan 32"):
        calibrate(from_log=log, model=MODEL, plan=PLAN, gpus=GPUS)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = table(tmp_path / "steps.csv", predicted() * 1.2), tmp_path / "run.json"
    words = ["--plan", PLAN, "--gpus", GPUS]
    assert main(["calibrate", "--from-log", str(log), "--model", MODEL, *words, "-o", str(out)]) == 0
    assert "(median of 2 of 3 steps)" in capsys.readouterr().out
    assert main(["estimate", MODEL, *words, "--calibration", str(out), "--json"]) == 0
    assert f'"step_time_s": {str(predicted() * 1.2)[:6]}' in capsys.readouterr().out
    assert main(["calibrate", "--from-log", str(log), "measured.csv", "--model", MODEL]) == 2
    assert "--plan is missing" in capsys.readouterr().err
    assert main(["calibrate", "--from-log", str(log), "plans.json#1"]) == 2
    assert "say the plan that ran: --plan plans.json#1" in capsys.readouterr().err


def test_parts_of_the_step_tell_numbers_apart(tmp_path: Path) -> None:
    """A step that is late by its tensor-parallel traffic moves links; the same step as one number, products too."""
    text = "tp4.mbs1.gbs128"
    parts = dict(estimate(MODEL, text, gpus=GPUS).plans[0].estimate.breakdown_s)
    late_s = parts["tp"]
    whole = table(tmp_path / "whole.csv", predicted(text) + late_s)
    apart = tmp_path / "apart.csv"
    row = f"{predicted(text) + late_s!r},{parts['compute']!r},{parts['tp'] + late_s!r}"
    apart.write_text("step,step_time_s,compute_s,tp_s\n" + "".join(f"{n},{row}\n" for n in range(1, 4)))
    told = {"model": MODEL, "plan": text, "gpus": GPUS, "ranked": False}
    one, several = (calibrate(from_log=log, **told).learned for log in (whole, apart))
    moved = [
        {name: abs(number.value / number.prior - 1) for name, number in learned.numbers} for learned in (one, several)
    ]
    links = "software.megatron-core.link_share"
    assert dict(several.numbers)[links].value < dict(one.numbers)[links].value
    products = "device.hopper.gemm_fraction"
    known = dict(calibration().numbers)[products].value
    change = [abs(dict(learned.numbers)[products].value / known - 1) for learned in (one, several)]
    assert change[1] < change[0]
    assert moved[1]
    assert several.own * several.moved_s == pytest.approx(predicted(text) + late_s)
