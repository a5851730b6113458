"""One step of a plan: the files it is written to, and the shares of every stage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.app.compare import compare
from meshwright.app.estimate import estimate
from meshwright.app.trace import Trace, trace
from meshwright.errors import InputError

ROW, GPUS, MODEL = "tp2.pp4.z1.mbs1.gbs32", "16xH100", "llama-3-8b"


@pytest.fixture(scope="module")
def found() -> Trace:
    return trace(ROW, model=MODEL, gpus=GPUS)


def test_seconds_of_every_stage_sum_to_the_step(found: Trace) -> None:
    document = found.to_dict()
    stages = document["stages"]
    assert isinstance(stages, list)
    assert len(stages) == 4
    for stage in stages:
        parts = [stage[name] for name in ("busy_s", "idle_s", "data_parallel_s", "optimizer_s")]
        assert sum(parts) == pytest.approx(document["step_time_s"])
        assert min(parts) > 0
    assert document["tasks"] == 2 * 4 * 16
    assert document["transfers"] == 2 * 3 * 16
    json.dumps(document, allow_nan=False)


def test_files_hold_what_the_methods_give(found: Trace, tmp_path: Path) -> None:
    best = estimate(MODEL, ROW, gpus=GPUS)[0]
    best.save(tmp_path / "plan.json")
    for number, plan in enumerate((best, str(tmp_path / "plan.json"), tmp_path / "plan.json")):
        packed, plain, figure = (tmp_path / f"{number}.{ending}" for ending in ("json.gz", "json", "svg"))
        trace(plan, packed, svg=figure)
        trace(plan, plain)
        assert packed.read_bytes() == found.chrome()
        assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
        assert figure.read_text() == found.svg()


def test_answers_have_it_too(tmp_path: Path) -> None:
    plans = estimate(MODEL, ROW, gpus=GPUS)
    assert plans.trace(tmp_path / "a.json.gz").title == plans[0].trace().title
    assert (tmp_path / "a.json.gz").exists()
    assert mw.trace is trace


def test_the_trace_and_the_figure_need_a_file_each(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(InputError, match="over the first"):
        trace(ROW, tmp_path / "t", svg=tmp_path / "here" / ".." / "t", model=MODEL, gpus=GPUS)
    assert not (tmp_path / "t").exists()


def test_a_trace_that_no_viewer_opens_is_refused_and_still_drawn(tmp_path: Path) -> None:
    huge = trace("pp8.z1.mbs1.gbs40000", model=MODEL, gpus="8xH100")
    with pytest.raises(InputError, match="640,000 tasks"):
        huge.chrome()
    assert huge.to_dict()["tasks"] == 640_000


def test_nothing_is_written_where_one_file_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        trace(ROW, tmp_path / "t.json", svg=tmp_path / "no" / "t.svg", model=MODEL, gpus=GPUS)
    assert not list(tmp_path.iterdir())


def test_comparing_draws_both_on_one_axis() -> None:
    pair = [estimate(MODEL, row, gpus=GPUS)[0] for row in (ROW, "tp4.pp2.z1.mbs1.gbs32")]
    comparison = compare(*pair)
    first, second = comparison.pictures()
    assert (first.timeline.table.p, second.timeline.table.p) == (4, 2)
    svg = comparison.svg()
    assert "1: llama-3-8b, tp2.pp4" in svg
    assert "2: llama-3-8b, tp4.pp2" in svg


def test_a_step_without_a_flush_says_that_it_is_drawn_alone() -> None:
    found = trace("pp4.pipedream.mbs1.z1.gbs32", model=MODEL, gpus="8xH100")
    assert found.picture.end_s > found.step.estimate.step_time_s
    assert found.warnings[-1].startswith("drawn is one step with fill and drain, ")
    assert not trace("pp4.mbs1.z1.gbs32", model=MODEL, gpus="8xH100").warnings
