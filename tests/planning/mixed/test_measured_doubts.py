"""Each doubt about measured numbers changes what it names, by as much as it says, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.planning.mixed import measured_doubts
from meshwright.planning.mixed.measured_doubts import _doubted, doubts_of_profile, effects_of_profile
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.sensitivity import LEAST_EFFECT, SURE_STEP
from meshwright.specs.measured import MeasuredJob
from tests.planning.mixed.test_profiles import planned


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> MeasuredJob:
    found = planned(tmp_path_factory.mktemp("doubted"))[0].job
    assert isinstance(found, MeasuredJob)
    return found


def test_only_the_named_numbers_change_and_by_a_step(job: MeasuredJob) -> None:
    profile = job.profile
    said = list(_doubted(profile))
    assert len({name for name, _, _ in said}) == len(said)
    for name, worse, better in said:
        for changed, factor in ((worse, 1 - SURE_STEP), (better, 1 + SURE_STEP)):
            for before, after in zip(profile.points, changed.points, strict=True):
                own = name == f"speed of the layers on {before.device}"
                for mine, its in ((before.forward_s, after.forward_s), (before.backward_s, after.backward_s)):
                    assert its == pytest.approx([time_s / (factor if own else 1.0) for time_s in mine], rel=1e-12)
            for one, other in zip(profile.links, changed.links, strict=True):
                ends = {one.source.device, one.target.device}
                named = set(name.removeprefix("bandwidth of links between ").removeprefix("nodes of ").split(" and "))
                scale = factor if name.startswith("bandwidth") and ends == named else 1.0
                numbers = [(link.c2, link.c1, link.c0, link.max_gb_s) for link in (one, other)]
                assert numbers[1] == pytest.approx([scale * number for number in numbers[0]], rel=1e-12)
    devices = {point.device for point in profile.points}
    pairs = {frozenset((link.source.device, link.target.device)) for link in profile.links}
    assert len(said) == len(devices) + len(pairs)


def test_doubts_are_what_the_worse_numbers_make_of_the_step(job: MeasuredJob) -> None:
    price = price_job(job)
    doubts = dict(doubts_of_profile(PricedPlan(job=job, estimate=price)))
    assert any(share > 0.01 for share in doubts.values())
    for (name, worse, _), (said, share) in zip(_doubted(job.profile), doubts.items(), strict=True):
        assert said.startswith(f"{name} -")
        slow_s = price_job(replace(job, profile=worse)).step_time_s
        assert share == pytest.approx(slow_s / price.step_time_s - 1.0)


def test_effects_are_those_that_matter_the_largest_first(job: MeasuredJob) -> None:
    step_s = price_job(job).step_time_s
    found = {one.name: one for one in effects_of_profile(job, step_s)}
    widths = [one.step_time_worse_s - one.step_time_better_s for one in found.values()]
    assert widths == sorted(widths, reverse=True)
    for name, worse, better in _doubted(job.profile):
        slow_s, quick_s = (price_job(replace(job, profile=profile)).step_time_s for profile in (worse, better))
        matters = max(slow_s - step_s, step_s - quick_s) > LEAST_EFFECT * step_s
        assert (name in found) == matters
        if matters:
            assert (found[name].step_time_worse_s, found[name].step_time_better_s) == (slow_s, quick_s)
            assert slow_s >= step_s >= quick_s
    # A step that is itself the slower one of all counts as an effect by what is gained alone.
    assert len(effects_of_profile(job, 2.0 * step_s)) == len(list(_doubted(job.profile)))
    assert len(effects_of_profile(job, 0.5 * step_s)) == len(list(_doubted(job.profile)))


def test_a_number_that_changes_nothing_is_no_effect(job: MeasuredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_doubts, "_doubted", lambda profile: iter([("nothing", profile, profile)]))
    assert effects_of_profile(job, price_job(job).step_time_s) == []


def test_links_to_a_place_of_its_own_are_named_by_their_ends(tmp_path: Path) -> None:
    found = planned(tmp_path)[0].job
    assert isinstance(found, MeasuredJob)
    names = [name for name, _, _ in _doubted(found.profile)]
    for link in found.profile.links:
        ends = sorted({link.source.device, link.target.device})
        wanted = f"links between {' and '.join(ends)}" if len(ends) > 1 else f"links between nodes of {ends[0]}"
        assert f"bandwidth of {wanted}" in names
