"""The fit finds numbers that made the data, says how sure it is, and keeps what it cannot see."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright import calibrate
from meshwright.app.calibrate import NoBetter, measured_step
from meshwright.calibrate.file import fit_record, write_calibration
from meshwright.calibrate.fit import MOST_RUNS, Fit, MeasuredStep, fit, spread_out, touches
from meshwright.calibrate.parameters import Parameter, fitted_quantities, hardware_with
from meshwright.errors import InputError
from meshwright.library.calibration import calibration_record, read_calibration

TRUTH = {"device.hopper.gemm_fraction": 0.62, "software.megatron-core.vector_passes": 1.4}
ROW = {
    "year": "2025",
    "model_name": "a model",
    "ffn_hidden": "14336",
    "n_kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "gated_mlp": "True",
    "gpu": "H100-SXM",
    "gpu_mem_gb": "80",
    "nodes_gpus": "8",
    "seq_len": "4096",
    "pp": "1",
    "vpp": "1",
    "cp": "1",
    "dtype": "bf16",
    "recompute": "none",
    "attention": "flash",
    "zero_stage": "1",
    "framework": "Megatron-Core",
}


def made(parameters: tuple[Parameter, ...]) -> dict[Parameter, float]:
    return {parameter: TRUTH[parameter.name] for parameter in parameters if parameter.name in TRUTH}


@lru_cache(maxsize=1)
def rows() -> tuple[dict[str, str], ...]:
    """20 runs of four sources whose times follow from TRUTH; one of them was written down wrong."""
    found = []
    for number in range(20):
        hidden, tp, mbs = (2048, 4096, 8192)[number % 3], (1, 2, 4, 8)[number % 4], (1, 2)[number // 10]
        row = ROW | {
            "id": f"run-{number}",
            "source": f"source {number % 4}",
            "hidden": str(hidden),
            "n_layers": str(8 + number % 5),
            "n_heads": str(hidden // 128),
            "n_gpus": "8",
            "tp": str(tp),
            "dp": str(8 // tp),
            "micro_batch": str(mbs),
            "global_batch_seqs": str(64 * mbs),
        }
        step = measured_step(row | {"target_iter_time_s": "1"})
        assert isinstance(step, MeasuredStep), step
        run = step.chosen.run
        values = made(fitted_quantities(["hopper"], ["megatron-core"]))
        seconds = step.chosen.step_time_s(hardware_with(values, run.cluster.groups[0], run.workload))
        found.append(row | {"target_iter_time_s": str(seconds * (3.0 if number == 7 else 1.0))})
    return tuple(found)


@lru_cache(maxsize=1)
def steps() -> tuple[MeasuredStep, ...]:
    found = [measured_step(row) for row in rows()]
    return tuple(step for step in found if isinstance(step, MeasuredStep))


FEW = ("gemm_fraction", "gemm_fraction_fp8", "product_share", "vector_passes", "cast_passes")
"""Fields that the fit may move here."""


@lru_cache(maxsize=1)
def few() -> tuple[Parameter, ...]:
    every = fitted_quantities(["hopper"], ["megatron-core"])
    return tuple(parameter for parameter in every if parameter.quantity.field in FEW)


@lru_cache(maxsize=1)
def found() -> Fit:
    return fit(steps(), rounds=1, parameters=few())


@lru_cache(maxsize=1)
def record() -> dict[str, Any]:
    return fit_record(found(), steps(), date="2026-01-01", source="these")


def test_the_numbers_behind_the_data_are_found_in_spite_of_a_wrong_row() -> None:
    values = {parameter.name: math.exp(x) for parameter, x in zip(found().parameters, found().log_values, strict=True)}
    # Only the product of the device's and the framework's share of products can be seen.
    products = values["device.hopper.gemm_fraction"] * values["software.megatron-core.product_share"]
    assert products == pytest.approx(0.62 * 0.92, rel=0.08)
    good = np.array([step.id != "run-7" for step in steps()])
    assert np.median(np.abs(found().before[good])) > 0.1
    assert np.median(np.abs(found().after[good])) < 0.03
    assert np.median(np.abs(found().left_out[good])) < 0.05
    assert found().improves


def test_a_number_no_run_touches_keeps_its_prior_and_its_doubt() -> None:
    for parameter, x, deviation in zip(found().parameters, found().log_values, found().deviations, strict=True):
        if not any(touches(parameter, step) for step in steps()):
            assert x == pytest.approx(math.log(parameter.prior))
            assert deviation == pytest.approx(parameter.quantity.spread)
    assert not any(name.endswith(("gemm_fraction_fp8", "cast_passes")) for name in record()["numbers"])


def test_every_number_lies_in_its_range_and_comes_back_from_the_file(tmp_path: Path) -> None:
    assert record()["numbers"]
    for number in record()["numbers"].values():
        assert number["low"] <= number["value"] <= number["high"]
    path = tmp_path / "calibration.json"
    write_calibration(record(), path)
    read = read_calibration(path)
    assert read == calibration_record(record())
    name, number = read.numbers[0]
    scope, owner, field = name.split(".")
    assert read.of(scope, owner)[field] == number.value
    with pytest.raises(InputError, match="cannot be written"):
        write_calibration(record(), tmp_path / "nowhere" / "calibration.json")


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    for text in ("{}", '{"schema": "meshwright.plan/1"}', '{"schema": "meshwright.calibration/1", "numbers": 3}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="not a calibration"):
            read_calibration(path)


def test_large_sources_are_thinned_evenly() -> None:
    many = [replace(steps()[0], id=str(number)) for number in range(3 * MOST_RUNS)]
    few = [replace(step, source="small") for step in steps()[:5]]
    thinned = spread_out([*many, *few])
    assert [step.id for step in thinned if step.source != "small"] == [str(3 * n) for n in range(MOST_RUNS)]
    assert sum(step.source == "small" for step in thinned) == 5


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(InputError, match="3 runs can be priced"):
        fit(steps()[:3])


def written(path: Path, measured: tuple[dict[str, str], ...]) -> Path:
    columns = list(measured[0])
    lines = [",".join(columns), *(",".join(row[column] for column in columns) for row in measured)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_file_of_runs_becomes_a_file_of_numbers_only_if_it_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runs twice: as they are, and with times that contradict each other."""
    broken = rows()[0] | {"id": "broken", "gpu": "H1000"}
    monkeypatch.setattr("meshwright.calibrate.fit.ROUNDS", 1)
    monkeypatch.setattr("meshwright.calibrate.fit.fitted_quantities", lambda *owners: few())
    source = written(tmp_path / "runs.csv", (*rows(), broken))
    result = calibrate([source], tmp_path / "calibration.json")
    assert [name for name, _ in result.left_out] == ["broken"]
    assert json.loads((tmp_path / "calibration.json").read_text("utf-8")) == result.record
    assert result.record["errors"]["left_out"]["median"] < result.record["errors"]["before"]["median"]
    monkeypatch.setattr("meshwright.app.calibrate.fit", lambda steps: replace(found(), left_out=found().before))
    with pytest.raises(NoBetter, match="held-out sources no better"):
        calibrate([source], tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_a_machine_that_is_slow_alone_moves_numbers_for_others_less() -> None:
    """All runs of one of four sources take a tenth longer."""
    slow = [replace(one, measured_s=one.measured_s * (1.1 if one.source == "source 0" else 1.0)) for one in steps()]
    moved = [one for one in fitted_quantities(["hopper"], ["megatron-core"]) if one.name in TRUTH]
    off = {}
    for between in (0.0, 0.05):
        found = fit(slow, 2, moved, between=between)
        assert len(found.log_values) == len(moved)
        others = [error for one, error in zip(slow, found.after, strict=True) if one.source != "source 0"]
        off[between] = abs(float(np.median(others)))
    assert off[0.05] < 0.5 * off[0.0]


def test_numbers_of_a_generation_leave_devices_with_numbers_of_their_own_alone() -> None:
    """An H100 of 500 W states its own rates of products and attention, not that of its memory."""
    step = measured_step(dict(rows()[0]) | {"gpu": "H100-96", "gpu_mem_gb": "96", "target_iter_time_s": "1"})
    assert isinstance(step, MeasuredStep), step
    for run, own in ((step, True), (steps()[0], False)):
        every = fitted_quantities(["hopper"], ["megatron-core"])
        reached = {one.quantity.field for one in every if touches(one, run)}
        assert {"memory_fraction", "product_share"} <= reached
        assert ("gemm_fraction" in reached) == (not own)
        assert ("flash_forward_fraction" in reached) == (not own)


def test_a_framework_like_another_one_runs_under_its_numbers_but_for_those_it_states() -> None:
    """nanotron is eager PyTorch with FlashAttention-2 and plain NCCL calls."""
    step = measured_step(dict(rows()[0]) | {"framework": "nanotron", "target_iter_time_s": "1"})
    assert isinstance(step, MeasuredStep), step
    assert (step.owners[1], step.software) == ("pytorch-eager", "pytorch-eager")
    every = {one.quantity.field: one for one in fitted_quantities(["hopper"], ["pytorch-eager"])}
    reached = {field for field, one in every.items() if touches(one, step)}

    assert {"vector_passes", "flash_fa2_share"} <= reached
    assert reached.isdisjoint({"link_share", "flash_fa1_share"})
    run = step.chosen.run
    moved = hardware_with({every["vector_passes"]: 3.0, every["link_share"]: 0.4}, run.cluster.groups[0], run.workload)
    assert (moved.software.vector_passes, moved.software.link_share) == (3.0, 0.85)
