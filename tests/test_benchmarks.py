"""The measured pages of the documentation can be made, and say what they are."""

from __future__ import annotations

import csv
import importlib
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as speed
from benchmarks import accuracy, accuracy_classes, calculon, machine, peers, version
from benchmarks import fit as benchmarks_fit
from benchmarks.headlines import HEADLINES, Headline
from benchmarks.one_step import on_left_out
from meshwright.library.calibration import calibration
from tests.calibrate import test_fit

BENCHMARKS = sorted(path.stem for path in Path(speed.__file__).parent.glob("[!_]*.py"))
SAMPLE = Path(__file__).parent / "app" / "data" / "measured_sample.csv"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module_that_imports(name: str) -> None:
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_the_accuracy_page_shows_every_scored_run(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, tmp_path / "throughput.csv")
    parts = accuracy.read_parts(tmp_path)
    assert [part.name for part in parts] == ["throughput.csv"]
    text = accuracy.page(parts)
    assert "| throughput.csv | time | 7 | 7 (100%) |" in text
    assert f"fitted on {calibration().date}" in text
    assert "| gpt3-175B, 64 x A100-SXM (" in text
    assert version() in text
    assert machine() in text


def test_runs_of_adapters_are_a_part_of_their_own(tmp_path: Path) -> None:
    with SAMPLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    said = {"why_not": "LoRA fine-tuning", "arch_source": "adapters of rank 16 on attention projections"}
    tuned = [{**row, **said, "usable": "False", "source": "MLPerf Training v5.0 Somebody x"} for row in rows]
    other = {**rows[0], "why_not": "LoRA fine-tuning; precision not known", "usable": "False"}
    with (tmp_path / "mlperf_v50.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *(name for name in said if name not in rows[0])])
        writer.writeheader()
        writer.writerows([*tuned, other])
    (part,) = accuracy.read_parts(tmp_path)
    assert part.name == accuracy.ADAPTERS
    assert len(part.records) == len(rows)
    assert {run.group for run in part.compared("source")} == {"MLPerf Training v5.0"}
    assert "## Adapters" in accuracy.part_text(part)


def test_classes_of_runs_stand_beside_each_other_seen_and_unseen(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, tmp_path / "throughput.csv")
    (part,) = accuracy.read_parts(tmp_path)
    rows = [(row, True) for row in part.rows("source")]
    known = {run.id: (0.10, 0.20) for _, _, run in part.rows("source")}
    text = accuracy_classes.classes_text(rows, known)
    assert "| dense | " in text
    assert "10.5% and 10.5%" in text
    assert "100%" in text
    unseen = accuracy_classes.never_seen(rows[0][0][2], {}, fitted=True)
    assert unseen is None


def test_other_estimators_price_the_runs_they_can(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, tmp_path / "throughput.csv")
    (part,) = accuracy.read_parts(tmp_path)
    assert "| Calculon | " in peers.peers_text(part.rows("source"))


def test_the_measured_folder_is_the_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(accuracy.VARIABLE, raising=False)
    assert accuracy.find_folder(str(tmp_path)) is None
    shutil.copy(SAMPLE, tmp_path / "throughput.csv")
    assert accuracy.find_folder(str(tmp_path)) == tmp_path
    monkeypatch.setenv(accuracy.VARIABLE, str(tmp_path))
    assert accuracy.find_folder(None) == tmp_path


def test_a_process_is_measured_whole() -> None:
    found = speed.run([sys.executable, "-c", "print('done')"])
    assert (found.code, found.output) == (0, "done\n")
    assert found.wall_s > 0
    assert found.peak_bytes > 1e6
    assert speed.median_run([sys.executable, "-c", "raise SystemExit(3)"], 1) is None


def test_the_speed_page_says_what_was_not_measured() -> None:
    lines = [speed.Line("a", 0.125, 0.25, "s"), speed.Line("b", None, 130, "MB", note="`--install`")]
    text = speed.page(lines, 5)
    assert "| a | 0.125 s | at most 0.25 s | 0.50 |  |" in text
    assert "| b | not measured | at most 130 MB | - | `--install` |" in text


def test_the_calculon_lines_price_and_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculon, "ROWS", 4096)
    once = calculon.best_of
    monkeypatch.setattr(calculon, "best_of", lambda one, times: once(one, 1))
    monkeypatch.setattr(calculon, "SEARCHES", (("gpt3-13B", "a100_80g", 8, 8, "optimal-execution", 1.0),))
    lines = [*calculon.pricing_lines(), calculon.estimate_line(1), *calculon.search_lines(1)]
    assert len(lines) == 5
    assert all(line.found is not None and line.found > 0 for line in lines)
    assert "with one process and with two" in lines[3].note


def test_memory_of_all_processes_is_added_up() -> None:
    grow = "import subprocess, sys, time; held = bytearray(60_000_000); "
    other = "held = bytearray(60_000_000); import time; time.sleep(1)"
    found = speed.run([sys.executable, "-c", f"{grow}subprocess.run([sys.executable, '-c', {other!r}])"])
    assert found.code == 0
    assert found.peak_bytes > 120e6


@pytest.mark.parametrize("run", HEADLINES, ids=[run.what for run in HEADLINES])
def test_headline_runs_are_priced_near_what_was_published(run: Headline) -> None:
    """All but two within 12%; every command says the whole run."""
    ours_s = run.predicted().plans[0].estimate.step_time_s
    assert ours_s == pytest.approx(run.published_s, rel=0.2)
    assert run.command.startswith(f"meshwright estimate {run.model} --plan {run.plan} --gpus ")
    assert run.source
    assert run.date


def test_errors_of_rows_read_anew_are_summed_up_beside_numbers_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sources, one whose two runs a range of 10% holds, one where it holds one of two."""
    record = {
        "numbers": {"device.hopper.gemm_fraction": {"value": 0.8}},
        "errors": {"before": {"median": 0.1}},
        "ranges": {"left_out": {"median_high_over_low": 1.2}},
    }
    packaged, errors = tmp_path / "calibration.json", tmp_path / "left_out.csv"
    packaged.write_text(json.dumps(record), encoding="utf-8")
    rows = ("a,one,0.05,0.1", "b,one,-0.02,0.1", "c,two,0.3,0.1", "d,two,0.0,0.1")
    errors.write_text("id,source,left_out,half_width\n" + "\n".join(rows), encoding="utf-8")
    monkeypatch.setattr(benchmarks_fit, "PACKAGED", packaged)
    monkeypatch.setattr(benchmarks_fit, "LEFT_OUT", errors)

    benchmarks_fit.write_errors(np.zeros(4))

    found = json.loads(packaged.read_text(encoding="utf-8"))
    assert found["numbers"] == record["numbers"]
    assert found["errors"]["before"] == {"median": 0.1}
    assert found["errors"]["left_out"]["median"] == pytest.approx(math.expm1(0.035), abs=2e-3)
    ranges = found["ranges"]["left_out"]
    assert (ranges["inside"], ranges["inside_by_source"], ranges["sources"]) == (0.75, 0.75, {"one": 1.0, "two": 0.5})
    assert ranges["median_high_over_low"] == 1.2


def test_a_step_of_a_source_left_out_tells_of_its_others() -> None:
    """Where all runs of a source are off alike, one of them brings the others nearer, and never beyond."""
    steps = list(test_fit.steps())
    found = replace(test_fit.found(), left_out=np.full(len(steps), 0.2))
    rests = list(on_left_out(found, steps))
    sources = {step.source for step in steps}

    assert len(rests) == 4 * len(sources)
    assert all((rest.after >= 0.0).all() and (rest.after < rest.before).all() for rest in rests)
    assert {len(rest.measured) for rest in rests} == {4}
