"""What there is to say about plans over several kinds of device, and about plans that parallelizers made parts of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from meshwright.planning.mixed.mixing import EqualRanks, HeldLayers, IdleDevices, Mixing, Subset
from meshwright.planning.mixed.preemptions import Preempted
from meshwright.planning.mixed.slices import MOST_SKIPS, Composition, PlannedSlice
from meshwright.planning.mixed.source import SearchRecord
from meshwright.planning.objectives.base import Objective
from meshwright.planning.reason import idle_reason
from meshwright.records import fields_of
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.titles import group_text, shortened_title, strategy_text
from meshwright.specs.cluster import AND
from meshwright.units import gib, percent, seconds, signed_percent, significant, slower, usd

MOST_HELD = 12
"""Runs of stages whose layers are told one by one; all of them are in the data."""
MOST_SLICES = 8
"""Stages whose planner is told; all of them are in the data."""
LEAST_ABOVE = 0.0005
"""How far above the mean the slowest stage is told: 0.1% as it is written."""


def worth(mixing: Mixing) -> str:
    """What mixing is worth, in one sentence."""
    best, gain, by = mixing.best_alone, mixing.gain, mixing.by
    if best is None or gain is None or best.amount is None:
        return "No plan on one kind of device alone fits what is asked."
    if mixing.used == 1 and mixing.per_step is not None:
        within = "" if by.rents else " within its price"
        return f"One group by itself makes the {by.best} step found{within}; the others are not rented."
    if mixing.used == 1 and mixing.idle and all(one.strangers for one in mixing.idle):
        return f"The kinds cannot train together: {_alone(best)} {_verb(best)} the best found."
    if mixing.used == 1:
        what = "Mixing does" if mixing.kinds > 1 else "Joining groups does"
        return f"{what} not pay: {_alone(best)} {_verb(best)} the best found."
    counted = ", preemptions counted" if mixing.preempted else ""
    if mixing.per_step is not None and not by.rents:
        return (
            f"The {by.best} found within its price; {_alone(best)} would take {by.compared_text(best.amount)}{counted}."
        )
    if gain <= 0:
        return f"{_alone(best)} would take {by.compared_text(best.amount)}{counted}."
    pays = "Mixing pays" if mixing.kinds > 1 else "Joining groups pays"
    sentence = f"{pays}: {percent(gain)} {by.less} than the {by.compared_text(best.amount)} of {_alone(best)}{counted}"
    return (
        f"{sentence}."
        if by.rents
        else f"{sentence} ({percent(best.amount / mixing.amount - 1.0)} more tokens per second)."
    )


def _verb(best: Subset) -> str:
    return "is" if best.devices.startswith("1 ") else "are"


def _alone(best: Subset) -> str:
    """`32 H100 by themselves`, `1 RTX-4090 by itself`."""
    return f"{best.devices} by {'itself' if best.devices.startswith('1 ') else 'themselves'}"


def mixing_lines(mixing: Mixing, *, held: bool = True) -> tuple[str, ...]:
    """The comparisons and facts behind the sentence.

    Args:
        mixing: the facts.
        held: whether to say who holds which layers.
    """
    return tuple(line for line in _mixing_lines(mixing, held=held) if line)


def _mixing_lines(mixing: Mixing, *, held: bool) -> Iterator[str]:
    if held:
        shown = mixing.held[:MOST_HELD]
        for run, before in zip(shown, (None, *shown), strict=False):
            yield held_line(run, follows=before is not None and before.pipelines == run.pipelines)
        if len(mixing.held) > MOST_HELD:
            yield f"and {len(mixing.held) - MOST_HELD} more runs of stages; --json has them"
    yield from map(equal_line, mixing.equal)
    if mixing.slowest.above_mean >= LEAST_ABOVE:
        yield slowest_line(mixing)
    lasting_s = mixing.step_time_s / mixing.kept
    for name, rest in mixing.without:
        if rest.step_time_s is None:
            yield f"without {name}: nothing fits"
        else:
            loss = rest.step_time_s / rest.kept / lasting_s - 1.0
            yield f"without {name}: {_taken(mixing, rest)}, {slower(loss) if loss > 0 else 'no slower'}"
    for one in mixing.alone:
        yield f"{one.devices} alone: {_taken(mixing, one)}"
    yield sensitivity_line(mixing)
    yield from framework_lines(mixing)
    # A plan that rents fewer devices is longer than the bound of all of them on purpose: no gap of it is told.
    yield from search_lines(mixing.searched, None if mixing.per_step is not None else mixing.step_time_s)


def _taken(mixing: Mixing, one: Subset) -> str:
    """A step on a part of the cluster: `25.6 s, 42.7 s with preemptions, 0.228 USD`."""
    if one.step_time_s is None or one.amount is None:
        return "does not fit"
    said = seconds(one.step_time_s)
    if one.kept < 1.0:
        said += f", {seconds(one.step_time_s / one.kept)} with preemptions"
    if mixing.by.counts_energy:
        return f"{said}, {mixing.by.compared_text(one.amount)}"
    return said if one.price_per_step is None else f"{said}, {usd(one.price_per_step / one.kept)}"


def equal_line(one: EqualRanks) -> str:
    """What groups lose that count as one: each rank works at the pace and in the memory of the weakest."""
    every = "both" if len(one.groups) == 2 else "all"
    return (
        f"{AND.join(one.groups)}: every rank has the same work, so {every} are priced as {one.device} "
        f"of {gib(one.memory_bytes)}"
    )


def held_line(one: HeldLayers, *, follows: bool = False) -> str:
    """Who holds which layers: `pipeline 0: 59 layers (30+29) on 2 stages of 32 H100, tp4 dp8 z1, 128 x mbs1`.

    Args:
        one: neighbouring stages.
        follows: whether the line before is about the same pipelines: `then 21 layers (10+11) on ...`.
    """
    first, last = one.pipelines
    name = "then" if follows else f"pipeline {first}:" if first == last else f"pipelines {first}-{last}:"
    count, layers = len(one.layers), sum(one.layers)
    each = f" ({shortened_title(one.layers)})" if count > 1 else ""
    ordered = "" if follows or one.schedule == "1f1b" else f", {one.schedule}"
    if ordered and one.chunks > 1:
        ordered += f" in {one.chunks} chunks"
    return (
        f"{name} {layers} layer{'s' * (layers != 1)}{each} on {count} stage{'s' * (count > 1)} of "
        f"{group_text(one.group, one.devices)}, "
        f"{strategy_text(one.strategy)}, {one.micro_batches} x mbs{one.mbs}{ordered}"
    )


def slowest_line(mixing: Mixing) -> str:
    """The bottleneck against the mean of its pipeline."""
    one = mixing.slowest
    return (
        f"slowest stage: stage {one.stage} of pipeline {one.pipeline} on {one.group}, busy {seconds(one.busy_s)} of "
        f"the step, {percent(one.above_mean)} above the mean of its pipeline"
    )


def sensitivity_line(mixing: Mixing) -> str:
    """The number whose doubt moves the step the most, and the link that does."""
    if not mixing.doubts:
        return ""
    name, effect = max(mixing.doubts, key=lambda one: (one[1], one[0]))
    links = [
        f"; {e_name} -> step {signed_percent(max(e, 0.0))}"
        for e_name, e in mixing.doubts
        if e_name.startswith("link") and e_name != name
    ]
    more = links[0] if len(links) == 1 else ""
    return f"sensitivity: {name} -> step {signed_percent(max(effect, 0.0))}{more}"


def framework_lines(mixing: Mixing) -> Iterator[str]:
    """Which frameworks can run the plan, and why others cannot."""
    of_reason: dict[str, list[str]] = {}
    for name, reason in mixing.frameworks:
        of_reason.setdefault(reason, []).append(name)
    if of_reason and "" not in of_reason:
        other = mixing.launched
        if other is None:
            yield "no framework known here can run it; `plan --target NAME` finds the best plan that one can"
        else:
            loss = slower(other.step_time_s / mixing.step_time_s - 1.0)
            found = f"a plan of {seconds(other.step_time_s)}, {loss}"
            yield f"no framework known here can run it; {other.target} can run {found}: plan --target {other.target}"
    elif mixing.launched and mixing.passed_over_s is not None:
        less = percent(1.0 - mixing.passed_over_s / mixing.step_time_s)
        yield f"quickest found: {seconds(mixing.passed_over_s)}, {less} less, which {mixing.launched.target} cannot run"
    for reason, names in of_reason.items():
        some = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
        yield f"{some} cannot run it: {reason}" if reason else f"{some} can run it: export --to {names[0]}"


def idle_lines(idle: Iterable[IdleDevices]) -> tuple[str, ...]:
    """Devices that are left out, and why."""
    return tuple(
        reason_text(
            idle_reason(
                one.devices - one.idle,
                one.devices,
                _why_idle(one),
                of=one.group,
                rented=one.rented,
                **({"libraries": one.strangers} if one.strangers else {}),
            )
        )
        for one in idle
    )


def _why_idle(one: IdleDevices) -> str:
    if one.strangers:
        return "strangers"
    if one.preempted:
        return "preempted"
    return "no better plan" if one.rented else "no faster plan"


def preemption_line(one: Preempted, *, chosen: bool) -> str:
    """What preemptions take of a plan on spot nodes, which is the best or would be without them."""
    groups, often = " and ".join(one.groups), f"{significant(one.per_day, 2)} times a day"
    kept = f"{percent(one.kept)} of the time: {seconds(one.step_time_s / one.kept)} for each step"
    if chosen:
        return f"{groups} nodes are preempted {often}, which leaves {kept} of {seconds(one.step_time_s)}"
    return (
        f"with {groups} nodes a step takes {seconds(one.step_time_s)}, but they are preempted {often}, which leaves "
        f"{kept}"
    )


def search_lines(searched: SearchRecord, step_time_s: float | None) -> Iterator[str]:
    """What was looked at, and how far the step is above its lower bound; None where another aim made it longer."""
    looked = ", ".join(f"{count:,} {name}" for name, count in searched.looked_at.items())
    if searched.bound_s is None:
        yield f"search: {looked}; the best found, not proved the best"
        return
    if step_time_s is None:
        yield f"search: {looked}; the best found, not proved the best; no step is below {seconds(searched.bound_s)}"
        return
    gap = percent(step_time_s / searched.bound_s - 1.0)
    yield f"search: {looked}; lower bound {seconds(searched.bound_s)} (gap {gap})"
    if searched.bound_of_shapes_s is not None:
        gap = percent(step_time_s / searched.bound_of_shapes_s - 1.0)
        yield (
            f"lower bound of the pipelines looked at, transfers and gradients included: "
            f"{seconds(searched.bound_of_shapes_s)} (gap {gap})"
        )


def slice_line(one: PlannedSlice) -> str:
    """A stage with its planner's seconds and ours."""
    first, last = one.layers
    held = f"layer {first}" if first == last else f"layers {first}-{last}"
    return (
        f"pipeline {one.pipeline} stage {one.stage}: {held} on {one.devices} {one.group} by {one.parallelizer}, "
        f"{', '.join(run_texts(one))}; a micro-batch takes {seconds(one.priced_s)}, {one.parallelizer} says "
        f"{seconds(one.claimed_s)}"
    )


def run_texts(one: PlannedSlice) -> list[str]:
    """The strategies of a slice's runs of layers, with their numbers of layers where there are several."""
    runs = [(run.layers, strategy_text(one.strategies[run.strategy])) for run in one.runs]
    return [f"{layers} x {text}" if len(runs) > 1 else text for layers, text in runs]


def composition_lines(one: Composition) -> Iterator[str]:
    """Who planned which slice, how far off their claims are, our own search, and what was skipped."""
    yield from (slice_line(own) for own in one.slices[:MOST_SLICES])
    if len(one.slices) > MOST_SLICES:
        yield f"and {len(one.slices) - MOST_SLICES} stages more"
    said = one.claimed_s[0] / one.step_time_s - 1.0
    if abs(said) < 0.005:
        yield f"its parallelizers predict {seconds(one.claimed_s[0])} per step too"
    else:
        off = f"{percent(abs(said))} {'more' if said > 0 else 'less'}"
        yield (
            f"its parallelizers predict {seconds(one.claimed_s[0])} per step, {off} than `estimate`, which ranks plans"
        )
    if one.own_s is not None:
        change = one.own_s / one.step_time_s - 1.0
        than = "no slower" if abs(change) < 0.0005 else slower(change)
        kept = ", more memory left" if one.tight else ""
        yield f"meshwright's own search: {seconds(one.own_s)}, {than}{kept}: {one.own}"
    yield from (f"skipped: {line}" for line in one.skips[:MOST_SKIPS])
    if len(one.skips) > MOST_SKIPS:
        yield f"skipped: {len(one.skips) - MOST_SKIPS} reasons more; --json has them"


def mixing_document(mixing: Mixing) -> dict[str, Any]:
    """The `mixing` entry of a plan set."""
    best = mixing.best_alone
    return {
        "gain": mixing.gain,
        "best_alone": _subset_document(best, mixing.by) if best else None,
        "alone": [_subset_document(one, mixing.by) for one in mixing.alone],
        "without": [{"group": name, **_subset_document(rest, mixing.by)} for name, rest in mixing.without],
        "held": [held_line(one) for one in mixing.held],
        **({"equal_ranks": list(map(equal_line, mixing.equal))} if mixing.equal else {}),
        "slowest_stage": slowest_line(mixing),
        "sensitive_to": sensitivity_line(mixing),
        "frameworks": list(framework_lines(mixing)),
        "idle": list(idle_lines(mixing.idle)),
        "price_per_step": mixing.per_step,
        "map": [place.to_dict() for place in mixing.places],
    }


def _subset_document(one: Subset, by: Objective) -> dict[str, Any]:
    """A part of the cluster; what is compared has its unit in its name: `with_preemptions_usd` where cost is."""
    return {**fields_of(one, "amount"), f"with_preemptions_{by.compared_unit}": one.amount}


def composition_document(one: Composition) -> dict[str, Any]:
    """The `composition` entry of a plan set."""
    return {
        "parallelizers": list(one.parallelizers),
        "claimed_step_time_s": list(one.claimed_s),
        "slices": [
            {
                "pipeline": own.pipeline,
                "stage": own.stage,
                "layers": list(own.layers),
                "group": own.group,
                "devices": own.devices,
                "parallelizer": own.parallelizer,
                "strategies": run_texts(own),
                "claimed_micro_batch_s": own.claimed_s,
                "micro_batch_s": own.priced_s,
            }
            for own in one.slices
        ],
        "skipped": list(one.skips),
        "own_search": None if one.own_s is None else {"title": one.own, "step_time_s": one.own_s},
    }
