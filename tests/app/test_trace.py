"""One step of a plan: the files it is written to, and the shares of every stage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import estimate, trace
from meshwright.app.compare import compare
from meshwright.app.trace import Trace
from meshwright.errors import InputError
from meshwright.library.clusters import resolve_gpus
from meshwright.specs import Workload
from meshwright.specs.job import Job
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from tests.estimate.cases import DENSE
from tests.estimate.mixed import Stage, plan_of

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


def test_workers_of_all_pipelines_are_processes() -> None:
    """Two pipelines over two kinds of device: four processes, each with its own layers and devices."""
    whole, half = LayerStrategy(tensor=Tensor1D(degree=4)), LayerStrategy(tensor=Tensor1D(degree=2))
    plan = plan_of(([Stage(0, whole, 7), Stage(8, whole, 5)], 1, 3), ([Stage(4, half, 8), Stage(12, half, 4)], 1, 2))
    job = Job(
        model=DENSE,
        cluster=resolve_gpus("8xH100,8xA100-80"),
        workload=Workload(seq_len=2048, global_batch=plan.global_batch),
        plan=plan,
    )
    found = trace(job)
    events = json.loads(found.chrome(compress=False))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == [
        "pipeline 0 stage 0: layers 0-6, 4 x H100",
        "pipeline 0 stage 1: layers 7-11, 4 x A100-80",
        "pipeline 1 stage 0: layers 0-7, 2 x H100",
        "pipeline 1 stage 1: layers 8-11, 2 x A100-80",
    ]
    tasks = [event["pid"] for event in events if event["ph"] == "X" and event.get("cat") == "compute"]
    assert [tasks.count(worker) for worker in range(4)] == [6, 6, 4, 4]
    assert found.svg().startswith("<svg")
    stages = found.to_dict()["stages"]
    assert isinstance(stages, list)
    for stage in stages:
        parts = [stage[name] for name in ("busy_s", "idle_s", "data_parallel_s", "optimizer_s")]
        assert sum(parts) == pytest.approx(found.step.estimate.step_time_s)
