"""The best plan after a cluster lost or gained devices, and the state that has to move for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.app.plan_job import plan_job
from meshwright.app.plan_mixed import Asked, mixed_answer
from meshwright.app.plan_set import PlanSet, RankedPlan
from meshwright.app.requests.plan import PlanRequest
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.formats.plan_json import read_job
from meshwright.planning.changed_cluster import ChangedCluster, changed_cluster
from meshwright.planning.compose.moved_state import MovedState, moved_state
from meshwright.planning.job_inputs import job_fields, job_inputs
from meshwright.planning.mixed.again import plans_again
from meshwright.planning.reason import idle_reason
from meshwright.planning.usable_islands import usable_islands
from meshwright.report.words.reasons import reason_text
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.units import gib, seconds

SAME = 0.01
"""Plans this near in time count as equal, so that the one that moves least is taken."""
KEPT_AXES = ("tp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One plan of the answer and what it moves."""

    plan: RankedPlan
    state: MovedState

    @property
    def step_time_s(self) -> float:
        """Of the plan."""
        return self.plan.estimate.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The plans after a change, the one to take first."""

    before: Job
    change: ChangedCluster
    moves: tuple[Move, ...]
    answer: PlanSet
    notes: tuple[str, ...]

    @property
    def best(self) -> Move:
        """The quickest; of equally quick ones that which moves least."""
        return self.moves[0]

    @property
    def text(self) -> str:
        """The answer in sentences."""
        state, left = self.best.state, self.change.cluster
        lines = [
            f"{self.before.model.name} on {left.devices:,} devices, {left.name}, "
            f"after {self.change.lost:,} lost and {self.change.added:,} added: "
            f"{self.best.plan.title}, {seconds(self.best.step_time_s)} per step.",
            "",
            f"to move: {gib(state.moved_bytes)} in {seconds(state.time_s)} or more; "
            f"{gib(state.kept_bytes)} stay where they are",
        ]
        lines += [f"  {flow.link}: {gib(flow.size_bytes)}" for flow in state.flows]
        if state.lost_bytes > 0.5:
            lines.append(f"  held by no device that is left: {gib(state.lost_bytes)}, to be read from a checkpoint")
        lines += [f"{note}" for note in self.notes]
        lines += [
            f"or: {move.plan.title}, {seconds(move.step_time_s)} per step, moves {gib(move.state.moved_bytes)} "
            f"in {seconds(move.state.time_s)}"
            for move in self.moves[1:]
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
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
            "moves": [
                {
                    "rank": move.plan.rank,
                    "name": move.plan.name,
                    "title": move.plan.title,
                    "step_time_s": move.step_time_s,
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
) -> Replanned:
    """The best plans after a change of the cluster, with what each moves.

    On one kind of device, tensor, context and expert degrees stay those of the earlier plan where nothing else is
    pinned: shards stay whole. Where no plan has them, and on several kinds, all degrees are searched.

    Args:
        source: the earlier plan: a plan file, or a job.
        lost: device numbers and ranges, `16-23`, or counts of a group or device, `8xH100`.
        added: as `--gpus` takes it.
        top: how many plans.
        pin: axes fixed to values, instead of the earlier plan's.
        forbid: axes left at their plain value.

    Raises:
        InputError: the plan file or the change cannot be used.
        UnsupportedError: an unknown device.
        InfeasibleError: no plan fits what is left.
    """
    job = source if isinstance(source, Job) else read_job(source).job
    change = changed_cluster(job.cluster, lost=lost, added=added)
    notes = []
    if change.stranded:
        notes.append(f"{change.stranded} devices are idle: their nodes lost others, and a group has equal nodes")
    pins = tuple(pin) or (_degrees(job) if change.cluster.homogeneous else ())
    answer = _again(job, change.cluster, top, pins, forbid)
    if answer is None and pins and not tuple(pin):
        notes.append(f"no plan keeps {', '.join(pins)}: all degrees were searched")
        pins = ()
        answer = _again(job, change.cluster, top, pins, forbid)
    if answer is None:
        # Once more, for its error that says what binds.
        answer = _planned(job, change.cluster, top, pins, forbid)
    elif pins:
        notes.append(f"searched with {', '.join(pins)}{'' if tuple(pin) else ' of the earlier plan'}")
    found = sorted((_move(job, change, one) for one in answer), key=lambda move: move.step_time_s)
    near = [move for move in found if move.step_time_s <= found[0].step_time_s * (1 + SAME)]
    first = min(near, key=lambda move: (move.state.moved_bytes, move.step_time_s))
    ordered = [first, *(move for move in found if move is not first)]
    used, devices = first.plan.plan.devices, change.cluster.devices
    if used < devices:
        notes.append(reason_text(idle_reason(used, devices, "no faster plan")))
    return Replanned(before=job, change=change, moves=tuple(ordered), answer=answer, notes=tuple(notes))


def _move(job: Job, change: ChangedCluster, ranked: RankedPlan) -> Move:
    state = moved_state(job.model, job.workload, job.plan, ranked.plan, change.cluster, change.number_after)
    return Move(plan=ranked, state=state)


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


def _again(job: Job, cluster: ClusterSpec, top: int, pins: Iterable[str], forbid: Iterable[str]) -> PlanSet | None:
    """The quickest plans on the later cluster; None where none fits."""
    inputs, left_out = job_inputs(_step_asked(job, cluster)), tuple[str, ...]()
    if not cluster.homogeneous:
        inputs, left_out = usable_islands(inputs, None)
    source, found = plans_again(inputs, job, top=top, pin=pins, forbid=forbid)
    if found is None:
        return None
    asked = Asked(model=inputs.model, workload=inputs.workload, assumptions=inputs.assumptions, top=top, brief=True)
    answer = mixed_answer(asked, source, found)
    return replace(answer, warnings=(*left_out, *answer.warnings))


def _planned(job: Job, cluster: ClusterSpec, top: int, pins: Iterable[str], forbid: Iterable[str]) -> PlanSet:
    asked = _step_asked(job, cluster)
    space = SpaceFields(pin=tuple(pins), forbid=tuple(forbid))
    return plan_job(PlanRequest(job=asked, space=space, top=top))
