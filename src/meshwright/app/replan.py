"""The best plan after a cluster lost or gained devices, and the state that has to move for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.plans.job import plan_job
from meshwright.app.plans.mixed_answer import Asked, mixed_answer
from meshwright.app.plans.plan_set import PlanSet, RankedPlan
from meshwright.app.requests.plan import PlanRequest
from meshwright.errors import Problem
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.formats.plan_json import read_job
from meshwright.library.made_with import changes_since
from meshwright.planning.changed_cluster import ChangedCluster, changed_cluster
from meshwright.planning.compose.moved_state import MovedState, lost_share_bytes, moved_state
from meshwright.planning.goodput import USUAL
from meshwright.planning.mixed.again import plans_again
from meshwright.planning.mixed.kept import kept_plans
from meshwright.planning.mixed.mixing import idle_devices
from meshwright.planning.mixed.search import MixedPlans
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.question.job_inputs import job_fields, job_inputs
from meshwright.planning.reason import idle_reason
from meshwright.planning.usable_islands import left_out_note, usable_islands
from meshwright.report.words.mixed import idle_lines
from meshwright.report.words.reasons import reason_text
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan
from meshwright.units import HOUR_S, gib, percent, seconds, significant

SAME = 0.01
"""Plans this near in time count as equal, so that the one that moves least is taken."""
KEPT = 3
"""The quickest plans that leave most of the state in place, of which it is counted what they move."""
LITTLE = 3.0
"""Times what the lost devices held that a plan may move to be named for moving little."""
LESS = 0.5
"""Times what the first plan moves that another may move to be named where none moves that little."""
KEPT_AXES = ("tp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One plan of the answer and what it moves."""

    plan: RankedPlan
    state: MovedState

    @property
    def step_time_s(self) -> float:
        """Step time of the plan."""
        return self.plan.estimate.step_time_s

    def worth_s(self, horizon_s: float) -> float:
        """Seconds of a step with its part of the seconds that moving takes: step x H / (H - moving).

        Args:
            horizon_s: the horizon in seconds that the plan is used for, moving included.
        """
        return _worth_s(self.step_time_s, self.state, horizon_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned(Answer):
    """The plans after a change, the one to take first."""

    before: Job
    change: ChangedCluster
    moves: tuple[Move, ...]
    answer: PlanSet
    notes: tuple[str, ...]
    horizon_s: float
    """Seconds that the plan is used for."""
    stated: bool
    """Whether somebody stated them."""
    lost_share_bytes: float
    """What the lost devices held."""

    @property
    def best(self) -> Move:
        """The one that trains the most within the horizon; of those about equal that which moves least."""
        return self.moves[0]

    @property
    def text(self) -> str:
        """The answer in sentences."""
        state, left = self.best.state, self.change.cluster
        basis = "" if self.stated else ", until the next failure at 2e-5 per device and hour [assumed]"
        lines = [
            f"{self.before.model.name} on {left.devices:,} devices ({_counted(left)}) "
            f"after {self.change.lost:,} lost and {self.change.added:,} added: "
            f"{self.best.plan.title}, {seconds(self.best.step_time_s)} per step.",
            "",
            f"state to move: {gib(state.moved_bytes)}, at least {seconds(state.time_s)}; "
            f"{gib(state.kept_bytes)} stay in place",
        ]
        if self.lost_share_bytes > 0.5:
            lines[-1] += f"; the lost devices held {gib(self.lost_share_bytes)}"
        lines += [f"  {flow.link}: {gib(flow.size_bytes)}" for flow in state.flows]
        if state.lost_bytes > 0.5:
            lines.append(f"  no copy on the remaining devices: {gib(state.lost_bytes)}, to be read from a checkpoint")
        lines += [f"{note}" for note in self.notes]
        if len(self.moves) > 1:
            hours = f"the steps trained in {significant(self.horizon_s / HOUR_S)} h, moving included{basis}"
            most = min(move.worth_s(self.horizon_s) for move in self.moves)
            near = f"; first, of those within {percent(SAME)} of the most, the one that moves least"
            lines.append(f"ordered by {hours}{near if self.best.worth_s(self.horizon_s) > most else ''}")
        lines += [
            f"or: {move.plan.title}, {seconds(move.step_time_s)} per step, moves {gib(move.state.moved_bytes)} "
            f"in {seconds(move.state.time_s)}{self._little(move)}"
            for move in self.moves[1:]
        ]
        return "\n".join(lines)

    def _little(self, move: Move) -> str:
        """How many times what was lost a plan moves, where that is little."""
        times = move.state.moved_bytes / self.lost_share_bytes if self.lost_share_bytes else 0.0
        if not 0 < times <= LITTLE:
            return ""
        return f", {times:.1f} times what the lost devices held"

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return self.answer.priced_by

    def data(self) -> dict[str, Any]:
        """`meshwright.replan/1`."""
        return {
            "schema": "meshwright.replan/1",
            "text": self.text,
            "devices_before": self.before.cluster.devices,
            "devices_after": self.change.cluster.devices,
            "lost": self.change.lost,
            "added": self.change.added,
            "stranded": self.change.stranded,
            "notes": list(self.notes),
            "horizon_s": self.horizon_s,
            "lost_share_bytes": self.lost_share_bytes,
            "moves": [
                {
                    "rank": move.plan.rank,
                    "name": move.plan.name,
                    "title": move.plan.title,
                    "step_time_s": move.step_time_s,
                    "worth_s": move.worth_s(self.horizon_s),
                    "moved_bytes": move.state.moved_bytes,
                    "kept_bytes": move.state.kept_bytes,
                    "lost_bytes": move.state.lost_bytes,
                    "move_time_s": move.state.time_s,
                    "flows": [{"link": flow.link, "bytes": flow.size_bytes} for flow in move.state.flows],
                }
                for move in self.moves
            ],
            "plan_set": self.answer.to_dict(),
        }


def replan(
    source: str | Path | Job,
    *,
    lost: str | None = None,
    added: str | None = None,
    top: int = 3,
    pin: Iterable[str] = (),
    forbid: Iterable[str] = (),
    horizon_s: float | None = None,
) -> Replanned:
    """The best plans after a change of the cluster, with what each moves.

    On one kind of device, tensor, context and expert degrees stay those of the earlier plan where nothing else is
    pinned: shards stay whole. Where no plan has them, and on several kinds, all degrees are searched.

    Args:
        source: the earlier plan: a plan file, or a job.
        lost: device numbers and ranges, `16-23`, or counts of a group or device, `8xH100`.
        added: the devices added, as `--gpus` takes them.
        top: how many plans.
        pin: axes fixed to values, instead of the earlier plan's.
        forbid: axes left at their plain value.
        horizon_s: seconds that the plan is used for, moving included; None for the mean time until the next failure
            of a cluster of this size.

    Raises:
        InputError: the plan file or the change cannot be used.
        UnsupportedError: an unknown device.
        InfeasibleError: no plan fits what is left.
    """
    job, notes = _earlier(source)
    change = changed_cluster(job.cluster, lost=lost, added=added)
    notes += _stranded_notes(change)
    pins = tuple(pin) or (_degrees(job) if change.cluster.homogeneous else ())
    stated = horizon_s is not None
    horizon_s = horizon_s if horizon_s is not None else _until_failure_s(change.cluster)
    kept = () if tuple(pin) or tuple(forbid) else tuple(kept_plans(job, change))
    states: dict[ExecutionPlan, MovedState] = {}

    def state_of(plan: ExecutionPlan) -> MovedState:
        if plan not in states:
            states[plan] = moved_state(job.model, job.workload, job.plan, plan, change.cluster, change.number_after)
        return states[plan]

    lost_bytes = lost_share_bytes(job.model, job.workload, job.plan, change.number_after)
    first_of = partial(
        _most_trained, top=top, kept=kept, horizon_s=horizon_s, little_bytes=LITTLE * lost_bytes, state_of=state_of
    )
    search = partial(_again, job, change, top, forbid=forbid, kept=kept, first_of=first_of)
    answer = search(pins)
    if answer is None and pins and not tuple(pin):
        notes.append(f"no plan keeps {', '.join(pins)}: all degrees were searched")
        pins = ()
        answer = search(pins)
    if answer is None:
        # Once more, for its error that says what binds.
        answer = _planned(job, change.cluster, top, pins, forbid)
    elif pins:
        notes.append(f"searched with {', '.join(pins)}{'' if tuple(pin) else ' of the earlier plan'}")
    moves = _ordered([Move(plan=one, state=state_of(one.plan)) for one in answer], horizon_s)
    return Replanned(
        before=job,
        change=change,
        moves=moves,
        answer=answer,
        notes=(*notes, *_idle_notes(change, moves[0].plan)),
        horizon_s=horizon_s,
        stated=stated,
        lost_share_bytes=lost_bytes,
    )


def _counted(cluster: ClusterSpec) -> str:
    """How many devices of each group."""
    return ", ".join(f"{group.devices:,} {group.name}" for group in cluster.groups)


def _stranded_notes(change: ChangedCluster) -> Iterator[str]:
    if change.broken:
        some = "a group" if len(change.broken) == 1 else "groups"
        yield f"nodes that lost some of their devices are {some} of their own: {', '.join(change.broken)}"
    if change.stranded:
        yield f"{change.stranded} remaining devices are idle: nodes of a group are equal, and theirs lost devices"


def _idle_notes(change: ChangedCluster, best: RankedPlan) -> Iterator[str]:
    used = best.plan.devices
    if not change.cluster.homogeneous:
        yield from idle_lines(idle_devices(change.cluster, best.estimate, rented=False))
    elif used < change.cluster.devices:
        yield reason_text(idle_reason(used, change.cluster.devices, "no faster plan"))


def _ordered(moves: Iterable[Move], horizon_s: float) -> tuple[Move, ...]:
    """Moves by what they are worth within the horizon; of those as good as the best, the one that moves least first."""
    found = sorted(moves, key=lambda move: move.worth_s(horizon_s))
    near = [move for move in found if move.worth_s(horizon_s) <= found[0].worth_s(horizon_s) * (1 + SAME)]
    first = min(near, key=lambda move: (move.state.moved_bytes, move.step_time_s))
    return (first, *(move for move in found if move is not first))


def _earlier(source: str | Path | Job) -> tuple[Job, list[str]]:
    """The earlier plan's job, and what has changed since its file was made."""
    if isinstance(source, Job):
        return source, []
    file = read_job(source)
    return file.job, [*file.warnings, *changes_since(file)]


def _until_failure_s(cluster: ClusterSpec) -> float:
    """Mean seconds until one of the devices fails, at the rate of public runs."""
    return HOUR_S / (USUAL["rate_per_device_hour"].value * cluster.devices)


def _degrees(job: Job) -> tuple[str, ...]:
    """The earlier plan's tensor, context and expert degrees as pins."""
    used = {
        "tp": {strategy.tp for strategy in job.plan.strategies},
        "cp": {strategy.cp for strategy in job.plan.strategies},
        "ep": {strategy.expert.ep for strategy in job.plan.strategies},
    }
    return tuple(f"{axis}={','.join(map(str, sorted(used[axis])))}" for axis in KEPT_AXES)


def _step_asked(job: Job, cluster: ClusterSpec) -> JobFields:
    """The job on another cluster, for a step: the days of its run were asked of the cluster before."""
    return replace(job_fields(job.model, cluster, job.workload), tokens=None, failures=None)


def _again(
    job: Job,
    change: ChangedCluster,
    top: int,
    pins: Iterable[str],
    forbid: Iterable[str],
    kept: Sequence[ExecutionPlan],
    first_of: Callable[[MixedPlans], MixedPlans],
) -> PlanSet | None:
    """The plans on the later cluster that train the most within the horizon; None where none fits."""
    cluster = change.cluster
    inputs, left_out = job_inputs(_step_asked(job, cluster)), tuple[Problem, ...]()
    if not cluster.homogeneous:
        inputs, left_out = usable_islands(inputs, None)
    source, found = plans_again(inputs, job, top=top, pin=pins, forbid=forbid, kept=kept, broken=change.broken)
    if found is None:
        return None
    found = first_of(found)
    asked = Asked(model=inputs.model, workload=inputs.workload, assumptions=inputs.assumptions, top=top, brief=True)
    answer = mixed_answer(asked, source, found)
    return replace(answer, warnings=(*map(left_out_note, left_out), *answer.warnings))


def _most_trained(
    found: MixedPlans,
    top: int,
    kept: Sequence[ExecutionPlan],
    horizon_s: float,
    little_bytes: float,
    state_of: Callable[[ExecutionPlan], MovedState],
) -> MixedPlans:
    """The first plans by the steps they train within the horizon, and the best that moves little, or far less."""
    places = {_workers(plan) for plan in kept}
    near = [one for one in found.candidates if _workers(one.plan) in places]
    looked_at = {one.plan: one for one in (*found.candidates[: max(top, 2)], *near[:KEPT], *near[-1:])}
    worth_s = {plan: _worth_s(one.step_time_s, state_of(plan), horizon_s) for plan, one in looked_at.items()}
    ordered = sorted(looked_at.values(), key=lambda one: (worth_s[one.plan], state_of(one.plan).moved_bytes))
    first = ordered[: max(top, 1)]
    if top > 1:
        # Of the others the quickest that moves little, where none of these does.
        others = (one for one in near if one.plan not in looked_at)
        little = (one for one in chain(ordered, others) if state_of(one.plan).moved_bytes <= little_bytes)
        least = min(ordered, key=lambda one: state_of(one.plan).moved_bytes)
        less = state_of(least.plan).moved_bytes <= LESS * state_of(first[0].plan).moved_bytes
        first = _with_one_of(first, next(little, least if less else None), top)
    return replace(found, candidates=tuple(first))


def _with_one_of(first: list[PricedPlan], wanted: PricedPlan | None, top: int) -> list[PricedPlan]:
    """The plans with the one that is wanted among them, at most `top`."""
    if wanted is None or any(one is wanted for one in first):
        return first
    return [*first[: top - 1], wanted]


def _workers(plan: ExecutionPlan) -> tuple[object, ...]:
    """What decides where state lies."""
    return tuple(pipeline.workers for pipeline in plan.pipelines)


def _worth_s(step_time_s: float, state: MovedState, horizon_s: float) -> float:
    """Seconds of a step with its part of the seconds that moving takes: step x H / (H - moving)."""
    left_s = horizon_s - state.time_s
    return step_time_s * horizon_s / left_s if left_s > 0 else inf


def _planned(job: Job, cluster: ClusterSpec, top: int, pins: Iterable[str], forbid: Iterable[str]) -> PlanSet:
    asked = _step_asked(job, cluster)
    space = SpaceFields(pin=tuple(pins), forbid=tuple(forbid))
    return plan_job(PlanRequest(job=asked, space=space, top=top))
