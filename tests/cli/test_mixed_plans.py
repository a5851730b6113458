"""Verbs on the file of a plan of unequal pipelines over two kinds of device."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.formats.plan_json import write_job
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import resolve
from meshwright.specs import Workload
from meshwright.specs.job import Job
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from tests.cli.conftest import Run
from tests.estimate.mixed import Stage, plan_of


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    whole, half = LayerStrategy(tensor=Tensor1D(degree=4)), LayerStrategy(tensor=Tensor1D(degree=2))
    plan = plan_of(([Stage(0, whole, 7), Stage(8, whole, 5)], 1, 3), ([Stage(4, half, 12)], 1, 2))
    workload = Workload(seq_len=1024, global_batch=plan.global_batch)
    job = Job(model=resolve("gpt2"), cluster=resolve_gpus("8xH100,8xA100-80"), workload=workload, plan=plan)
    path = tmp_path / "mixed.json"
    path.write_text(write_job(job))
    return str(path)


@pytest.mark.parametrize("words", [("estimate", "--plan"), ("check", "--plan"), ("trace",)])
def test_stages_are_named_with_their_pipeline(run: Run, plan_file: str, words: tuple[str, ...]) -> None:
    found = run(*words, plan_file)
    assert found.code == 0, found.err
    for place in ("pipeline 0 stage 0", "pipeline 0 stage 1", "pipeline 1 stage 0"):
        assert place in found.out


def test_two_plans_over_two_kinds_are_compared(run: Run, plan_file: str) -> None:
    found = run("compare", plan_file, plan_file)
    assert found.code == 0, found.err
    assert "1 x 4 H100 > 1 x 4 A100-80 | 1 x 2 H100" in found.out


@pytest.mark.parametrize("target", ["megatron", "torch-csv"])
def test_frameworks_of_equal_pipelines_refuse_it(run: Run, plan_file: str, target: str, tmp_path: Path) -> None:
    found = run("export", plan_file, "--to", target, "-o", str(tmp_path / "launch"))
    assert found.code == 4
    assert "2 pipelines" in found.err
    assert not (tmp_path / "launch").exists()
