"""Numbers that a plan of measured layers is sensitive to: the layers on each device, the links between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.sensitivity import LEAST_EFFECT, SURE_STEP, Effect
from meshwright.specs.measured import MeasuredJob, MeasuredLink, MeasuredModel
from meshwright.units import percent


def doubts_of_profile(one: PricedPlan) -> Iterator[tuple[str, float]]:
    """What becomes of a step with each number a tenth worse.

    Args:
        one: a plan of measured layers.

    Returns:
        number and change in words, and the share by which the step gets longer.
    """
    assert isinstance(one.job, MeasuredJob)
    for name, worse, _ in _doubted(one.job.profile):
        slow_s = price_job(replace(one.job, profile=worse)).step_time_s
        yield f"{name} -{percent(SURE_STEP)} [measured]", slow_s / one.step_time_s - 1.0


def effects_of_profile(job: MeasuredJob, step_time_s: float) -> list[Effect]:
    """What the step does where measured numbers are a little off, the largest effect first.

    Args:
        job: the plan with its numbers.
        step_time_s: the seconds of a step of the plan.
    """
    found = []
    for name, worse, better in _doubted(job.profile):
        slow, quick = (price_job(replace(job, profile=profile)).step_time_s for profile in (worse, better))
        if max(slow - step_time_s, step_time_s - quick) > LEAST_EFFECT * step_time_s:
            found.append(
                Effect(name=name, basis="measured", change=SURE_STEP, step_time_worse_s=slow, step_time_better_s=quick)
            )
    return sorted(found, key=lambda one: one.step_time_better_s - one.step_time_worse_s)


def _doubted(profile: MeasuredModel) -> Iterator[tuple[str, MeasuredModel, MeasuredModel]]:
    for device in dict.fromkeys(point.device for point in profile.points):
        worse, better = (_layers(profile, device, factor) for factor in (1 - SURE_STEP, 1 + SURE_STEP))
        yield f"speed of the layers on {device}", worse, better
    pairs = dict.fromkeys(tuple(sorted({link.source.device, link.target.device})) for link in profile.links)
    for pair in pairs:
        said = f"links between {' and '.join(pair)}" if len(pair) > 1 else f"links between nodes of {pair[0]}"
        worse, better = (_links(profile, set(pair), factor) for factor in (1 - SURE_STEP, 1 + SURE_STEP))
        yield f"bandwidth of {said}", worse, better


def _layers(profile: MeasuredModel, device: str, factor: float) -> MeasuredModel:
    points = tuple(
        replace(
            point,
            forward_s=tuple(time_s / factor for time_s in point.forward_s),
            backward_s=tuple(time_s / factor for time_s in point.backward_s),
        )
        if point.device == device
        else point
        for point in profile.points
    )
    return replace(profile, points=points)


def _links(profile: MeasuredModel, pair: set[str], factor: float) -> MeasuredModel:
    def scaled(link: MeasuredLink) -> MeasuredLink:
        if {link.source.device, link.target.device} != pair:
            return link
        c2, c1, c0 = (factor * c for c in (link.c2, link.c1, link.c0))
        return replace(link, c2=c2, c1=c1, c0=c0, max_gb_s=factor * link.max_gb_s)

    return replace(profile, links=tuple(scaled(link) for link in profile.links))
