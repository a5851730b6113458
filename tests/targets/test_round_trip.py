"""Plan to files to plan, for every target whose files say a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import homogeneous, row_from
from meshwright.targets import TARGETS, readers, target_of_file
from tests.targets.cases import job, runs_of

LEAST = 40


@cache
def any_estimate() -> StepEstimate:
    """Files name predicted numbers in comments only, so that those of one plan do for all."""
    one = job("tp8")
    return estimate_plan(one.plan, one.model, one.cluster, one.workload)


def written(target: str, one: Job) -> dict[str, str]:
    files = dict(TARGETS[target].files(one, any_estimate()).files)
    assert files.pop("plan.json")
    return files


def row_of(one: Job) -> PlanRow:
    found, problems = homogeneous(one.plan)
    assert found is not None, problems
    row = row_from(found, gbs=one.plan.global_batch)
    assert row is not None
    return row


def some(target: str) -> Iterator[Job]:
    """About 50, spread over the grid."""
    found = runs_of(target)
    yield from (one.job() for one in found[:: max(1, len(found) // 50)])


@pytest.mark.parametrize("target", readers())
def test_files_read_back_as_the_plan(target: str) -> None:
    plans = list(some(target))
    assert len(plans) >= LEAST, f"{target} runs only {len(plans)} plans of the grid"
    read = TARGETS[target].read
    assert read is not None
    for one in plans:
        files = written(target, one)
        launch = read(files, None)
        assert not launch.problems, (one.name, launch.problems)
        assert launch.row is not None
        assert launch.row.format() == row_of(one).format(), one.name
        assert not launch.unresolved, one.name
        assert launch.said, one.name
        if target != "galvatron":  # its options of the model stand in the script that starts it
            assert launch.workload.get("seq_len") == one.workload.seq_len, one.name


@pytest.mark.parametrize("target", readers())
def test_its_own_files_are_recognised(target: str) -> None:
    files = written(target, runs_of(target)[0].job())
    assert target in {target_of_file(name, text) for name, text in files.items()}


@pytest.mark.parametrize("target", TARGETS)
def test_unequal_stages_are_refused(target: str) -> None:
    """What no target says of a plan is a problem with a reason and something to do."""
    for line in ("tp2.pp2.dualpipev", "off-w.z3", "tp8-2d"):
        for problem in TARGETS[target].refused(job(line)):
            assert problem.what
            assert problem.why


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "automodel", "maxtext", "galvatron"])
def test_every_key_written_is_one_the_target_knows(target: str) -> None:
    """The readers tell unknown keys by the target's table of facts; none of ours is one, and a misspelt one is."""
    read = TARGETS[target].read
    assert read is not None
    files = written(target, runs_of(target)[0].job())
    name = next(name for name, text in files.items() if TARGETS[target].recognised(name, text))
    for right, wrong in (("overlap_comm", "overlap_com"), ("fsdp_version", "fsdp_versions"), ("dp_size", "dp_sizes")):
        if right in files[name]:
            broken = read(files | {name: files[name].replace(right, wrong)}, 16)
            assert any(wrong in problem.what and right in problem.fix for problem in broken.problems)
