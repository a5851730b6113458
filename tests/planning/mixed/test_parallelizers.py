"""Plans by chosen parallelizers: a plan set as any other, and nobody's faults lose it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright import check, plan, trace
from meshwright.app.explain import explain
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InfeasibleError, InputError
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.parallelizers import SliceSource, claimed_s
from meshwright.report.words.mixed import slice_line
from meshwright.specs.model import LayerRun
from tests.planning.compose.sources.parallelizers.slices import Half, Plain, job
from tests.planning.compose.sources.parallelizers.test_guard import Raises

MODEL = replace(job().model, runs=(LayerRun(layers=job().model.runs[0].layers, repeats=4),))


def planned(parallelizer: Any, gpus: str = "2xH100,2xA100-80", **options: Any) -> PlanSet:
    return plan(MODEL, gpus=gpus, seq_len=2048, global_batch=32, parallelizer=parallelizer, **options)


@pytest.fixture(scope="module")
def mixed() -> PlanSet:
    return planned([Plain(), Half({})])


def test_every_plan_is_priced_by_estimate_and_shown_with_what_was_claimed(mixed: PlanSet) -> None:
    found = mixed.composition
    assert found is not None
    times = [one.estimate.step_time_s for one in mixed]
    assert times == sorted(times)
    assert len(found.claimed_s) == len(mixed)
    assert sum(last - first + 1 for first, last in (one.layers for one in found.slices)) >= MODEL.num_layers
    for one in found.slices:
        assert one.parallelizer in ("plain", "half")
        assert one.priced_s > 0
        assert slice_line(one) in mixed.verdict.why
    assert found.own_s is not None
    assert found.own_s <= 1.02 * times[0]


def test_the_answer_is_a_plan_set_with_the_parts_of_its_composition(mixed: PlanSet) -> None:
    document = mixed.to_dict()
    entry = document["composition"]
    assert entry["parallelizers"] == ["plain", "half"]
    assert entry["slices"][0]["micro_batch_s"] == mixed.composition.slices[0].priced_s
    search = document["search"]
    assert search["looked_at"]["questions"] > 0
    assert all(":" in name for name in search["pruned"])
    assert search["feasible"] == search["priced"] - search["pruned"].get("priced in full: too large", 0)
    assert search["feasible"] >= len(mixed)
    assert document["mixing"]["alone"][0]["step_time_s"] >= mixed.best.estimate.step_time_s


def test_verbs_read_its_file(mixed: PlanSet, tmp_path: Path) -> None:
    path = mixed.best.save(tmp_path / "plan.json")
    assert check(None, path).to_dict()["legal"]
    assert explain(path).to_dict()["estimate"]["step_time_s"] == pytest.approx(mixed.best.estimate.step_time_s)
    assert trace(path).to_dict()["step_time_s"] == pytest.approx(mixed.best.estimate.step_time_s)


def test_one_more_parallelizer_is_never_a_loss(mixed: PlanSet) -> None:
    for alone in (Plain(), Half({})):
        assert mixed.best.estimate.step_time_s <= planned(alone).best.estimate.step_time_s * (1 + 1e-9)


def test_a_claim_that_is_too_hopeful_does_not_win() -> None:
    class Hopeful:
        name = "hopeful"

        def plan(self, *asked: Any) -> list[Any]:
            slow = [one for one in Plain().plan(*asked) if one.strategies[0].tp > 1]
            return [replace(one, forward_s=0.7 * one.forward_s, backward_s=0.7 * one.backward_s) for one in slow]

    both, honest = planned([Hopeful(), Plain()], gpus="4xA100-80"), planned(Plain(), gpus="4xA100-80")
    assert both.best.estimate.step_time_s <= honest.best.estimate.step_time_s * (1 + 1e-9)


def test_what_raises_or_lies_is_a_reported_skip() -> None:
    found = planned([Raises(), Half({"forward_s": 1e-9}), Plain()], gpus="2xH100", top=1)
    assert found.composition is not None
    skipped = " ".join(line for line in found.verdict.why if line.startswith("skipped: "))
    assert "raised ZeroDivisionError" in skipped
    assert "at their peak" in skipped
    assert len(found) == 1


def test_where_nobody_answers_the_reasons_are_said() -> None:
    with pytest.raises(InfeasibleError) as raised:
        planned(Raises(), gpus="2xH100")
    assert "was found with raises" in str(raised.value)
    assert "raised ZeroDivisionError" in str(raised.value)


def test_pins_and_limits_hold_for_every_slice() -> None:
    found = planned([Plain(), Half({})], gpus="2xH100,2xA100-80", pin="tp=2")
    assert {strategy.tp for one in found for strategy in one.plan.strategies} == {2}
    assert any(one.name == "only tp" for one in found.assumptions)
    two = planned(Plain(), gpus="4xH100", pin="pp=2")
    assert {len(pipeline.workers) for one in two for pipeline in one.plan.pipelines} == {2}
    with pytest.raises(InfeasibleError, match="keeps to"):
        planned(Plain(), gpus="2xH100", objective="time", max_step_time="1ms")


@pytest.mark.parametrize("pins", [{"schedule": "interleaved"}, {"schedule": "dualpipe"}, {"pin": "vpp=2"}])
def test_schedules_of_several_chunks_are_refused_up_front(pins: dict[str, str]) -> None:
    with pytest.raises(InputError, match="one chunk of layers per worker"):
        planned(Plain(), gpus="4xH100", **pins)


def test_a_named_schedule_is_that_of_every_pipeline() -> None:
    found = planned(Plain(), gpus="4xH100", schedule="gpipe", pin="pp=2")
    assert {pipeline.schedule.name for one in found for pipeline in one.plan.pipelines} == {"gpipe"}


def test_the_cheapest_plan_rents_what_pays() -> None:
    cheap = planned(Plain(), gpus="2xH100,2xA100-80", price=2.0, objective="cost")
    quick = planned(Plain(), gpus="2xH100,2xA100-80", price=2.0)
    prices = [one.best.estimate.price_per_step for one in (cheap, quick)]
    assert prices[0] is not None
    assert prices[1] is not None
    assert prices[0] <= prices[1]


def test_the_front_is_that_of_our_own_search() -> None:
    with pytest.raises(InputError, match="--pareto with --parallelizer"):
        planned(Plain(), pareto=True)


def test_pipeline_sets_are_priced_until_enough_fit_and_no_further() -> None:
    inputs = replace(job("llama-3-8b", "2xH100,2xA100-80"), model=MODEL)
    source = SliceSource(inputs, [Plain()])
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    sets = list(source.composer.sets(parts, 8))
    assert len(sets) > 4
    for most in (1, 2):
        left = iter(sets)
        found = source._first_fitting(left, most)
        looked_at = len(sets) - len(list(left))
        fits = [source._candidate(one) for one in sets]
        enough = [number for number, one in enumerate(fits, 1) if one is not None and one.estimate.fits == "yes"]
        assert looked_at == enough[most - 1]
        assert found == [one for one in fits[:looked_at] if one is not None]


def test_a_micro_batch_more_is_claimed_to_take_the_pace_of_its_pipeline() -> None:
    inputs = replace(job("llama-3-8b", "2xH100,2xA100-80"), model=MODEL)
    source = SliceSource(inputs, [Plain()])
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    for one in source.together(parts, thorough=False):
        assert one.slices is not None
        for pipeline in one.slices.pipelines:
            fill_s, period_s, sync_s = pipeline.claimed
            for micro_batches in range(1, 7):
                alone = replace(one.slices, pipelines=(pipeline,), shares=(float(micro_batches),))
                took_s = claimed_s(replace(one, slices=alone))
                assert took_s == pytest.approx(fill_s + sync_s + period_s * (micro_batches - 1))
        each = zip(one.slices.pipelines, one.slices.shares, strict=True)
        own = [replace(one.slices, pipelines=(pipeline,), shares=(share,)) for pipeline, share in each]
        assert claimed_s(one) == max(claimed_s(replace(one, slices=alone)) for alone in own)
