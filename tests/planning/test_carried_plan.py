"""A plan file priced with another model, cluster or step than its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import InputError, check, estimate, plan
from meshwright.specs.job import Job


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan("llama-3.2-1b", gpus="8xH100", global_batch=64, top=1).best.save(path)
    return path


def warned(file: Path, **asked: object) -> list[str]:
    answer = estimate(plan=str(file), **asked)
    return [text for text in answer.warnings if "the plan was made for" in text]


def test_a_plan_as_it_is_warns_of_nothing(file: Path) -> None:
    assert not warned(file)
    assert not warned(file, global_batch=64, seq_len=4096, gpus="8xH100")


def test_what_the_plan_was_not_made_for_is_said(file: Path) -> None:
    assert warned(file, seq_len=8192) == ["seq_len 8192 is used, the plan was made for 4096"]
    (cluster,) = warned(file, gpus="2x8xA100-80")
    assert "A100-80 is priced, the plan was made for 8xH100" in cluster
    assert "runs on 8 of these 16 devices" in cluster
    (lora,) = warned(file, lora="r=16")
    assert "LoRA of rank 16" in lora
    assert lora.endswith("the plan was made for training in full")


def test_another_batch_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match="runs 64 sequences per step, 128 are asked for"):
        estimate(plan=str(file), global_batch=128)


def test_a_model_of_other_layers_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match=r"the plan holds 16 layers, llama-3\.1-8b has 32"):
        estimate("llama-3.1-8b", str(file))


def test_a_plan_whose_schedule_pairs_no_passes_runs_nothing_beside_its_exchanges() -> None:
    job = estimate("qwen3-30b-a3b", "pp2.ep4.epdedup.dp4.mbs1", gpus="8xH100").best.job
    assert isinstance(job, Job)
    (strategy,) = job.plan.strategies
    beside = replace(strategy, expert=replace(strategy.expert, overlap="paired-wgrad"))
    stated = replace(job, plan=replace(job.plan, strategies=(beside,)), name=None)
    report = check(None, stated)
    assert (report.exit_code, report.estimate) == (5, None)
    assert report.text.startswith("pp2.ep4.epdedup.epov-wgrad.dp4.mbs1.gbs128 is not legal")
    assert any("runs no forward together with a backward" in one.why for one in report.violations)
    with pytest.raises(InputError, match="epov-wgrad with schedule 1f1b"):
        estimate(None, stated)
