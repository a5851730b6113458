"""More chunks than usual are looked at where bubbles are long, and pinned ones are kept to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshwright import plan
from meshwright.app.plans.mixed import mixed_search
from meshwright.app.requests.plan import PlanRequest
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed import native
from meshwright.planning.mixed.more_chunks import MoreChunks, most_chunks
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan


class _UsualChunks(MoreChunks):
    """Looks at the usual numbers alone."""

    def quicker(self, parts: Sequence[IslandPart], found: Sequence[PricedPlan]) -> list[PricedPlan]:
        return []


def _quickest_of_long_bubbles() -> tuple[float, ExecutionPlan]:
    request = PlanRequest.read(
        {"model": "gpt3-175b", "gpus": "24x8xA100-80,4x8xH100", "global_batch": 48, "seq_len": 2048, "top": 3}
    )
    found = mixed_search(job_inputs(request.job), request).found.candidates[: request.top]
    best = min(found, key=lambda one: one.step_time_s)
    return best.step_time_s, best.job.plan


def test_few_micro_batches_through_many_stages_gain_by_more_chunks_than_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step_s, found = _quickest_of_long_bubbles()
    assert most_chunks(found) > 4
    monkeypatch.setattr(native, "MoreChunks", _UsualChunks)
    usual_s, usual = _quickest_of_long_bubbles()
    assert most_chunks(usual) <= 4
    assert step_s < 0.99 * usual_s


def test_a_pinned_number_of_chunks_above_the_usual_is_kept_to() -> None:
    found = plan("llama-3.1-70b", gpus="4x8xH100,4x8xA100-80", global_batch=64, pin="vpp=8", top=3)
    mixed = [one.job.plan for one in found.plans if isinstance(one.job, Job) and len(one.job.plan.pipelines) == 1]
    assert mixed
    assert {most_chunks(one) for one in mixed} == {8}
