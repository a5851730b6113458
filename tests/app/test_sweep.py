"""Sweeps of plans: rows are the answers of `plan` and `estimate`, the file is gone on with, values are compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.app.studies.file import read_study
from meshwright.app.sweep import Sweep, main_effects
from meshwright.app.verbs import VERBS
from meshwright.errors import InputError, StoppedError
from meshwright.formats.sweep_file import read_sweep
from meshwright.library.changed_device import changed_device
from meshwright.library.devices import device

STUDY: dict[str, Any] = {
    "model": ["gpt2", "llama-3-8b"], "gpus": ["8xH100", "8xnext"], "gbs": 64, "seq": 1024,
    "gpu": {"next": {"like": "H100", "memory_gib": [12, 160]}},
}  # fmt: skip


def swept(path: Path, on_progress: Any = None, **options: Any) -> Sweep:
    verb = VERBS["sweep"]
    found = verb.answer(verb.request.read({"study": STUDY, "output": str(path), **options}), on_progress=on_progress)
    assert isinstance(found, Sweep)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sweep]:
    path = tmp_path_factory.mktemp("sweep") / "whole.parquet"
    return path, swept(path, top=2)


def test_rows_are_what_plan_answers(whole: tuple[Path, Sweep]) -> None:
    path, found = whole
    rows = list(read_sweep(path))
    assert found.to_dict()["rows"] == len(rows)
    for design in found.designs:
        own = [row for row in rows if row["design"] == design["design"]]
        if design["values"]["gpus"] != "8xH100":
            continue
        alone = mw.plan(design["values"]["model"], gpus="8xH100", global_batch=64, seq_len=1024, top=2)
        assert [row["plan"] for row in own] == [plan.title for plan in alone]
        assert [row["step_time_s"] for row in own] == [plan.estimate.step_time_s for plan in alone]
        assert own[0]["tokens_per_s"] == pytest.approx(64 * 1024 / own[0]["step_time_s"])
        assert own[0]["optimal"] == alone.certificate.optimal
        assert sum(own[0][f"{part}_s"] for part, _ in alone[0].estimate.breakdown_s) == pytest.approx(
            own[0]["step_time_s"]
        )
        assert own[0]["next.memory_gib"] is None


def test_a_device_of_the_study_plans_as_one_of_a_file_would(whole: tuple[Path, Sweep]) -> None:
    path, _ = whole
    rows = [row for row in read_sweep(path) if row["next.memory_gib"] == 160 and row["rank"] == 1]
    next_one = changed_device(device("H100"), {"memory_gib": 160}, name="next", source="a test")
    from meshwright.formats.gpus import parse_gpus

    cluster = parse_gpus("8xnext", lambda _: next_one)
    for row in rows:
        alone = mw.plan(row["model"], cluster=cluster, global_batch=64, seq_len=1024)
        assert (row["plan"], row["step_time_s"]) == (alone[0].title, alone[0].estimate.step_time_s)
        assert row["capacity_bytes"] == 160 * 2**30


def test_a_combination_without_a_plan_says_why(whole: tuple[Path, Sweep]) -> None:
    _, found = whole
    (none,) = [one for one in found.designs if not one["plan"]]
    assert none["values"]["model"] == "llama-3-8b"
    assert none["values"]["next.memory_gib"] == 12
    assert "fits" in none["why_not"]
    assert none["rows"] == 0


def test_values_are_compared_with_all_else_equal(whole: tuple[Path, Sweep]) -> None:
    _, found = whole
    found_effects = {(one["axis"], one["to"]): one for one in main_effects(found.study, found.designs)}
    assert set(found_effects) == {("model", "llama-3-8b"), ("gpus", "8xnext"), ("next.memory_gib", 160)}
    memory = found_effects["next.memory_gib", 160]
    assert (memory["pairs"], memory["compared"], memory["gained"], memory["lost"]) == (2, 1, 1, 0)
    assert memory["tokens_per_s_ratio"] >= 1
    assert (found_effects["model", "llama-3-8b"]["pairs"], found_effects["model", "llama-3-8b"]["lost"]) == (3, 1)
    assert found_effects["gpus", "8xnext"]["pairs"] == 4


def test_stated_plans_are_priced_whether_they_fit_or_not(tmp_path: Path) -> None:
    study = {"model": "llama-3-8b", "plan": ["tp1", "tp16"], "gpus": ["8xH100", "16xH100"], "price": [2, 4]}
    found = swept(tmp_path / "s.parquet", study=study)
    rows = list(read_sweep(tmp_path / "s.parquet"))
    assert [(row["stated_plan"], row["gpus"], row["fits"]) for row in rows[::2]] == [
        ("tp1", "8xH100", "no"),
        ("tp1", "16xH100", "no"),
        ("tp16", "16xH100", "yes"),
    ]
    (price,) = [one for one in main_effects(found.study, found.designs) if one["axis"] == "price"]
    assert price["tokens_per_s_ratio"] == pytest.approx(1)
    assert price["price_per_token_ratio"] == pytest.approx(2)


def test_an_interrupted_sweep_is_valid_and_goes_on(tmp_path: Path, whole: tuple[Path, Sweep]) -> None:
    path = tmp_path / "s.parquet"

    def stop_after_two(progress: Any) -> None:
        assert progress.noun == "plans"
        if progress.designs == 2:
            raise KeyboardInterrupt

    with pytest.raises(StoppedError, match="after 2 of 6 designs"):
        swept(path, on_progress=stop_after_two, top=2)
    assert {row["design"] for row in read_sweep(path)} == {0, 1}
    with pytest.raises(InputError, match="exists"):
        swept(path, top=2)
    with pytest.raises(InputError, match="another question"):
        swept(path, top=1, resume=True)
    found = swept(path, top=2, resume=True)
    assert found.before == 2
    assert list(read_sweep(path)) == list(read_sweep(whole[0]))
    assert found.designs == whole[1].designs


def test_a_killed_sweep_loses_nothing_that_was_done(tmp_path: Path, whole: tuple[Path, Sweep]) -> None:
    path = tmp_path / "s.parquet"
    code = (
        "import os, signal, sys; from pathlib import Path; import meshwright.formats.sweep_parts as parts\n"
        "from tests.app.test_sweep import swept\n"
        "parts.PART_S = parts.PART_SHARE = 0.0\n"
        "def stop(progress):\n"
        "    if progress.designs == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "swept(Path(sys.argv[1]), on_progress=stop, top=2)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], check=False, capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    assert swept(path, top=2, resume=True).before == 3
    assert list(read_sweep(path)) == list(read_sweep(whole[0]))
    assert not list(tmp_path.glob(".*"))


def test_the_command_reads_a_file_and_prints_what_each_value_is_worth(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('model = "gpt2"\ngpus = ["4xH100", "8xH100"]\ngbs = 64\nseq = "1k"\n')
    command = [sys.executable, "-m", "meshwright", "sweep", "study.toml", "-o", "s.parquet"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"}
    )
    assert ran.stdout.startswith("2 designs = 2 gpus\n  2 with a plan, 2 rows in s.parquet")
    assert "What each value is worth" in ran.stdout
    assert ran.stdout.count("4xH100") == 2


def test_a_sweep_on_ray_finds_the_same(tmp_path: Path, whole: tuple[Path, Sweep]) -> None:
    pytest.importorskip("ray")
    found = swept(tmp_path / "s.parquet", top=2, ray="local")
    assert found.designs == whole[1].designs


def test_numbers_beyond_64_bits_are_cells_too(tmp_path: Path) -> None:
    study = {"model": "gpt2", "gpus": "1xH100", "plan": "tp1", "gpu": {"H100": {"host_gb_s": [10**30, 64]}}}
    swept(tmp_path / "s.parquet", study=study)
    assert [row["H100.host_gb_s"] for row in read_sweep(tmp_path / "s.parquet")] == [1e30, 64.0]


def test_python_sweeps_a_table(tmp_path: Path) -> None:
    found = mw.sweep({"model": "gpt2", "gpus": ["1xH100"], "seq_len": 1024}, output=str(tmp_path / "s.parquet"))
    assert [one["plan"] for one in found.designs] == [mw.plan("gpt2", gpus="1xH100", seq_len=1024)[0].title]
    assert read_study({"model": "gpt2", "gpus": "1xH100"}).size == 1
