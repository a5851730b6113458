"""What a target can run of a space is asked before it is searched."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import meshwright as mw
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.planning.axes import space_of
from meshwright.planning.for_target import priced_as, refusals_in_search
from meshwright.planning.objectives import QUICKEST
from meshwright.planning.one_kind_plans import one_kind_search
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.target_space import restricted
from meshwright.search.search import search
from meshwright.search.space import Space

MOE = JobFields(model="qwen3-30b-a3b", gpus="8xH100")
DENSE = JobFields(model="llama-3.1-8b", gpus="8xH100")


@pytest.mark.parametrize("job", [MOE, DENSE], ids=["experts", "dense"])
@pytest.mark.parametrize("target", ["torchtitan", "automodel"])
def test_a_target_is_searched_once_for_its_best_plan(job: JobFields, target: str) -> None:
    spaces: list[Space] = []

    def searched(model: Any, cluster: Any, workload: Any, space: Space, **settings: Any) -> Any:
        spaces.append(space)
        return search(model, cluster, workload, space, **settings)

    inputs = job_inputs(priced_as(job, target))
    found = one_kind_search(
        inputs, SpaceFields(), QUICKEST, top=5, target=target, near=1.02, searched=searched
    ).found.result

    assert len(spaces) == 1
    assert found.plans
    assert found.certificate.optimal


def test_ways_of_tokens_and_blocks_that_files_cannot_say_are_left_out() -> None:
    inputs = job_inputs(MOE)
    one = {
        target: restricted(Space(), inputs.model, inputs.cluster, inputs.workload, refusals_in_search(target))
        for target in ("torchtitan", "megatron")
    }

    assert one["torchtitan"].pinned("dispatcher") == ("alltoall",)
    assert one["torchtitan"].pinned("ep_overlap") == ("none",)
    assert "block" not in (one["torchtitan"].pinned("recompute") or ())
    assert one["megatron"].pinned("dispatcher") is None
    assert one["megatron"].pinned("recompute") is None


def test_experts_may_move_where_their_load_is_stated() -> None:
    inputs = job_inputs(replace(MOE, expert_load="zipf:1.2"))
    asked = partial(restricted, Space(), inputs.model, inputs.cluster, inputs.workload)

    left = asked(lambda job: tuple(one for one in refusals_in_search("torchtitan")(job) if "dedup" in one.what))
    assert set(left.pinned("dispatcher") or ()) >= {"alltoall", "move-experts"}
    assert "deduplicated" not in (left.pinned("dispatcher") or ())


def test_a_block_that_is_asked_of_a_target_without_blocks_is_refused() -> None:
    with pytest.raises(mw.UnsupportedError, match="block"):
        mw.plan("llama-3.1-8b", gpus="8xH100", target="torchtitan", pin="recompute=block")


@pytest.mark.parametrize("pinned", ["deduplicated", "deduplicated,hierarchical"])
def test_dispatchers_that_files_cannot_say_are_refused(pinned: str) -> None:
    with pytest.raises(mw.UnsupportedError, match="token dispatcher"):
        mw.plan("qwen3-30b-a3b", gpus="8xH100", target="torchtitan", pin=f"dispatcher={pinned}")


@pytest.mark.parametrize(
    ("axis", "left"), [("ep_order", ("shared",)), ("hot_experts", ("kept",)), ("dispatcher", ("alltoall",))]
)
def test_methods_of_experts_that_a_target_refuses_are_left_out_before_the_search(axis: str, left: tuple[str]) -> None:
    inputs = job_inputs(replace(MOE, expert_load="zipf:1.2"))
    every = space_of(inputs.model, inputs.workload, inputs.cluster.devices, methods="all")

    narrowed = restricted(every, inputs.model, inputs.cluster, inputs.workload, refusals_in_search("torchtitan"))
    assert narrowed.pinned(axis) == left
    assert set(every.pinned(axis) or ()) > set(left)


@pytest.mark.parametrize("gpus", ["1xH100", "2xH100"])
def test_overlaps_are_asked_of_as_many_devices_as_there_are(gpus: str) -> None:
    inputs = job_inputs(replace(DENSE, model="gpt2", gpus=gpus))
    every = space_of(inputs.model, inputs.workload, inputs.cluster.devices, methods="tp_overlap,prefetch")

    narrowed = restricted(every, inputs.model, inputs.cluster, inputs.workload, refusals_in_search("megatron"))
    left = narrowed.pinned("tp_overlap") or ()
    assert "bulk" in left
    assert ("halves" in left) == (gpus == "1xH100")  # no ranks, nothing to leave out
    assert narrowed.pinned("prefetch") == ("1",)
