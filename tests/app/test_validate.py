"""Validation: one row out per row in, scores that add up, limits that bite."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import validate
from meshwright.app import validate as verb
from meshwright.app.validate import COLUMNS, AboveLimit, BrokenRows, predict
from meshwright.errors import InputError
from meshwright.formats.measured import read_rows
from meshwright.library.devices import device
from meshwright.report.score_table import Compared, quantile, score, score_by_group, score_table
from meshwright.units import GIB
from tests.formats.measured.row import LLAMA

SAMPLE = Path(__file__).parent / "data" / "measured_sample.csv"
MEASURED = Path(__file__).parents[2].parent / "shared" / "measured"
"""A larger set of published runs, where somebody put one beside the repository."""


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_one_row_out_for_each_row_in(tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    result = validate(SAMPLE, out)
    written = rows_of(out)
    assert tuple(written[0]) == COLUMNS
    assert [row["id"] for row in written] == [row["id"] for row in rows_of(SAMPLE)]
    assert [found.id for found in result.predictions] == [row["id"] for row in written]
    for row in written:
        numbers = [row[name] for name in COLUMNS[1:7]]
        assert all(numbers) != bool(row["why_not"])
        assert not any(numbers) or row["verdict"] in ("yes", "tight", "no")
        if all(numbers):
            low, high = float(row["pred_iter_time_lo_s"]), float(row["pred_iter_time_hi_s"])
            assert 0 < low < float(row["pred_iter_time_s"]) < high
            low, high = float(row["pred_peak_mem_lo_gib"]), float(row["pred_peak_mem_hi_gib"])
            assert 0 < low < float(row["pred_peak_mem_gib"]) < high


def test_reasons_for_what_is_not_predicted() -> None:
    reasons = {found.id: found.why_not for found in validate(SAMPLE).predictions if found.why_not}
    assert set(reasons) == {"nemo-llama2-70b-lora", "mixed-gpus"}
    assert "lora" in reasons["nemo-llama2-70b-lora"]


def test_public_runs_are_predicted_in_their_order() -> None:
    """Selective recompute and sequence parallelism are worth what the paper says: 1.42 s become 1.10 s."""
    found = {record["id"]: predict(record) for record in read_rows(SAMPLE)}
    full, selective = found["korthikanti-22b-full"], found["korthikanti-22b-selective"]
    assert full.step_time_s is not None
    assert selective.step_time_s is not None
    assert full.step_time_s / selective.step_time_s == pytest.approx(1.42 / 1.10, rel=0.1)
    assert 0.5 < full.step_time_s / 1.42 < 1.5


def test_memory_is_counted_as_the_row_counts_it() -> None:
    record = next(row for row in read_rows(SAMPLE) if row["id"] == "zero-bubble-1.5b-1f1b")
    sizes = [predict(record | {"mem_kind": kind}).peak_memory_bytes for kind in ("allocated", "reserved", "device")]
    assert all(size is not None for size in sizes)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3


def test_what_the_allocator_holds_for_later_is_seen_from_outside_and_never_exceeds_the_device() -> None:
    """DeepSpeed's runs are known by whole-device figures: the cache counts there, up to the device's memory."""
    record = next(row for row in read_rows(SAMPLE) if row["id"] == "zero-bubble-1.5b-1f1b")
    record |= {"framework": "Megatron-DeepSpeed", "attention": "standard (fused softmax)", "mem_kind": "device"}
    small, large = (predict(record | {"micro_batch": size}) for size in ("1", "6"))
    assert (small.verdict, large.verdict) == ("yes", "yes")
    for found in (small, large):
        assert found.peak_memory_bytes is not None
        assert found.peak_memory_bytes <= device("A100-80").memory_bytes
    allocated = predict(record | {"mem_kind": "allocated"}).peak_memory_bytes
    reserved = predict(record | {"mem_kind": "reserved"}).peak_memory_bytes
    assert allocated is not None
    assert reserved == pytest.approx(allocated * 1.24)


def test_published_runs_that_come_with_the_tests_are_predicted_as_well_as_ever() -> None:
    """A regression of the numbers or the formulas fails here, wherever it comes from."""
    result = validate(SAMPLE, fail_above=7)

    for metric, found in result.scores:
        assert found[0].p90_error is not None, metric
        assert found[0].p90_error < 0.17, metric


def test_only_usable_rows_count() -> None:
    result = validate(SAMPLE)
    overall = {metric: scores[0] for metric, scores in result.scores}
    assert overall["time"].runs == 7
    assert overall["time"].predicted == 7
    assert overall["memory"].runs == 2
    groups = [found.group for found in dict(result.scores)["memory"]]
    assert groups == ["ALL", "Qi et al. 2024 (arXiv 2401.10241), table 4"]
    assert result.to_dict()["schema"] == "meshwright.validation/1"


def test_a_limit_that_is_not_met_is_a_violation_after_writing(tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    with pytest.raises(AboveLimit) as caught:
        validate(SAMPLE, out, fail_above=0)
    assert caught.value.exit_code == 5
    assert caught.value.result.predicted == 7
    assert len(rows_of(out)) == 9
    assert validate(SAMPLE, fail_above=100).predicted == 7


@pytest.mark.parametrize("limit", [-1.0, float("nan"), float("inf")])
def test_limits_that_are_none_are_refused(limit: float) -> None:
    with pytest.raises(InputError, match="fail_above"):
        validate(SAMPLE, fail_above=limit)


def test_an_error_of_ours_costs_one_row_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verb.read_run

    def broken(record: dict[str, str], *lookups: object) -> object:
        if record["id"] == "torchtitan-llama3-8b":
            raise ZeroDivisionError("division by zero")
        return real(record, *lookups)

    monkeypatch.setattr(verb, "read_run", broken)
    out = tmp_path / "predictions.csv"
    with pytest.raises(BrokenRows) as caught:
        validate(SAMPLE, out)
    assert caught.value.exit_code == 1
    reasons = {row["id"]: row["why_not"] for row in rows_of(out)}
    assert reasons["torchtitan-llama3-8b"] == "internal: ZeroDivisionError: division by zero"
    assert reasons["korthikanti-22b-full"] == ""


def test_nothing_is_left_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        validate(SAMPLE, tmp_path / "absent" / "predictions.csv")
    folder = tmp_path / "taken"
    folder.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        validate(SAMPLE, folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_scores_of_known_numbers() -> None:
    """The worked values of a scorer written apart from this one."""
    runs = [
        Compared(id="a", group="g", measured=1, predicted=1.1, low=0.9, high=1.2),
        Compared(id="b", group="g", measured=2, predicted=1.0, low=0.9, high=1.2),
        Compared(id="c", group="h", measured=4, predicted=4),
        Compared(id="d", group="g", measured=2.02, predicted=None),
        Compared(id="f", group="g", measured=3, predicted=3.6),
    ]
    found = score("ALL", runs)
    assert (found.runs, found.predicted, found.coverage) == (5, 4, 0.8)
    assert found.median_error == pytest.approx(0.15)
    assert found.p90_error == pytest.approx(0.41)
    assert found.bias == pytest.approx(0.05)
    assert found.in_interval == 0.5
    assert [group.group for group in score_by_group(runs)] == ["ALL", "g", "h"]
    assert score("none", []).median_error is None
    assert score_table("time", score_by_group(runs)).row_count == 3


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_between_the_ends(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found is not None
    assert min(values) <= found <= max(values)


@given(
    st.lists(
        st.builds(
            Compared,
            id=st.just("r"),
            group=st.sampled_from("ab"),
            measured=st.floats(0.01, 100),
            predicted=st.none() | st.floats(0.01, 100),
        ),
        max_size=20,
    )
)
def test_groups_add_up_to_all(runs: list[Compared]) -> None:
    overall, *groups = score_by_group(runs)
    assert overall.runs == sum(found.runs for found in groups) == len(runs)
    assert overall.predicted == sum(found.predicted for found in groups)


@pytest.mark.skipif(
    not (MEASURED / "score.py").is_file(), reason="no larger set of measured runs beside the repository"
)
@pytest.mark.parametrize(("name", "most_percent", "most_p90"), [("throughput.csv", 6, 0.20), ("memory.csv", 5, 0.12)])
def test_every_published_run_has_a_row_and_both_scorers_agree(
    name: str, most_percent: float, most_p90: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(MEASURED))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    other = __import__("score")
    out = tmp_path / "predictions.csv"
    result = validate(MEASURED / name, out, fail_above=most_percent)
    records, written = rows_of(MEASURED / name), rows_of(out)
    assert [row["id"] for row in written] == [row["id"] for row in records]
    (metric, scores) = result.scores[0]
    theirs = other.score(records, written, metric)["ALL"]
    ours = scores[0]
    assert (ours.runs, ours.predicted) == (theirs["n"], theirs["predicted"])
    assert ours.coverage > 0.95
    assert ours.p90_error is not None
    assert ours.p90_error <= most_p90
    for mine, yours in (("median_error", "median_ape"), ("p90_error", "p90_ape"), ("bias", "bias")):
        assert 100 * getattr(ours, mine) == pytest.approx(theirs[yours], abs=0.01)
    assert ours.in_interval == pytest.approx(theirs["in_interval"], abs=0.01)


@pytest.mark.parametrize(
    ("framework", "devices", "measured_gib"),
    [
        ("torchtitan eager", 8, 82.4),
        ("torchtitan +torch.compile", 8, 77.0),
        ("torchtitan eager", 128, 67.0),
        ("torchtitan +torch.compile", 128, 62.0),
    ],
)
def test_selective_recompute_of_torchtitan_takes_what_was_measured(
    framework: str, devices: int, measured_gib: float
) -> None:
    """Llama 3 8B, two sequences of 8,192 tokens a device: benchmarks/llama3_h100_202412_torchtitan.md of torchtitan."""
    row = LLAMA | {"framework": framework, "n_gpus": str(devices), "dp": str(devices), "tp": "1", "pp": "1"}
    row |= {"zero_stage": "FSDP2", "micro_batch": "2", "global_batch_seqs": str(2 * devices), "gpu_mem_gb": "96"}
    found = predict(row | {"recompute": "selective (torchtitan selective AC)", "mem_kind": "reserved"})
    assert found.peak_memory_bytes is not None
    assert found.peak_memory_bytes / GIB == pytest.approx(measured_gib, rel=0.03)
