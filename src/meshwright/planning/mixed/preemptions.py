"""What preemptions of spot nodes leave of the time that a plan trains."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.planning.goodput import goodput
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.whole_run import preemptions_per_hour
from meshwright.specs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """A plan on spot nodes."""

    groups: tuple[str, ...]
    """Groups of spot nodes that are in use."""
    per_day: float
    """Preemptions of any node in use."""
    kept: float
    """Share of the time that they leave."""
    step_time_s: float
    """Seconds of a step that nothing interrupts."""


def preempted(one: PricedPlan) -> Preempted | None:
    """What preemptions take of a plan; None where it uses no spot nodes.

        kept = goodput with failures and preemptions / goodput with failures alone

    Args:
        one: the plan, priced.
    """
    job, cluster = one.job, one.job.cluster
    rate = preemptions_per_hour(cluster, one.estimate)
    if not rate:
        return None
    devices = sum(stage.devices for stage in one.estimate.stages)
    per_node = max(group.devices_per_node for group in cluster.groups)
    failures = job.workload.failures if isinstance(job, Job) else None
    spot = {group.name for group in cluster.groups if group.preemptions_per_node_hour}
    both, alone = (goodput(devices, failures, 0.0, per_node, taken).share for taken in (rate, 0.0))
    return Preempted(
        groups=tuple(dict.fromkeys(stage.group for stage in one.estimate.stages if stage.group in spot)),
        per_day=24.0 * rate,
        kept=both / alone,
        step_time_s=one.step_time_s,
    )
