"""Rooflines and operators: what each operator reaches of its device, and where time above its speed of light goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.errors import UnsupportedError
from meshwright.estimate.layers.operator_costs import Message, OperatorCost
from meshwright.estimate.operators import StageOperators, step_operators
from meshwright.estimate.result import BASIS_ORDER
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.device import Basis
from meshwright.specs.job import Job


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Operators and exchanges of a step by group of nodes, as the mean over the stages that stand there.

    Args:
        plan: the plan whose operators are priced one by one.
        source: the answer.
    """
    job = plan.job
    if not isinstance(job, Job):
        return {"absent": "the layers of this plan were measured whole; nothing is known of their operators"}
    try:
        stages = step_operators(job.plan, job.model, job.cluster, job.workload)
    except UnsupportedError as error:
        return {"absent": str(error)}
    step_s = plan.estimate.step_time_s
    used = dict.fromkeys(stage.group for stage in stages)
    groups = {group.name: group for group in job.cluster.groups}
    return {"groups": [_group(groups[name], [s for s in stages if s.group == name], step_s) for name in used]}


def _group(group: NodeGroup, stages: Sequence[StageOperators], step_s: float) -> dict[str, Any]:
    hardware = stages[0].hardware
    operators: dict[tuple[str, str, str, float], OperatorCost] = {}
    messages: dict[tuple[Any, ...], Message] = {}
    light_s: dict[tuple[str, str, str, float], float] = {}
    for stage in stages:
        for key, cost in stage.operators.items():
            own = operators.setdefault(
                key,
                OperatorCost(
                    name=cost.name,
                    module=cost.module,
                    phase=cost.phase,
                    kind=cost.kind,
                    peak_flop_per_s=cost.peak_flop_per_s,
                ),
            )
            own.seconds += cost.seconds / len(stages)
            own.flop += cost.flop / len(stages)
            own.moved_bytes += cost.moved_bytes / len(stages)
            light_s[key] = light_s.get(key, 0.0) + cost.light_s(hardware) / len(stages)
        for place, message in stage.messages.items():
            sent = messages.setdefault(
                place,
                Message(
                    **{name: getattr(message, name) for name in Message.__slots__} | {"calls": 0.0, "seconds": 0.0}
                ),
            )
            sent.calls += message.calls / len(stages)
            sent.seconds += message.seconds / len(stages)
    rows = [
        {
            "name": cost.name,
            "module": cost.module,
            "phase": cost.phase,
            "kind": cost.kind,
            "seconds": cost.seconds,
            "share": cost.seconds / step_s,
            "light_s": light_s[key],
            "above_s": cost.seconds - light_s[key],
            "flop": cost.flop,
            "peak_flop_per_s": cost.peak_flop_per_s,
            "bytes": cost.moved_bytes,
            "basis": _basis(group, "peak_flop_per_s" if cost.flop else "memory_bandwidth_bytes_per_s"),
        }
        for key, cost in operators.items()
        if cost.seconds > 0
    ]
    return {
        "name": group.name,
        "device": group.device.name,
        "stages": len(stages),
        "bytes_per_s": hardware.memory_bytes_per_s,
        "peaks": sorted({cost.peak_flop_per_s for cost in operators.values() if cost.peak_flop_per_s}),
        "operators": sorted(rows, key=lambda row: -row["above_s"]),
        "links": [
            {"name": domain.name, "bytes_per_s": domain.bandwidth_bytes_per_s, "basis": domain.basis}
            for domain in group.domains
        ],
        "messages": [
            {
                "category": message.category,
                "collective": message.collective.replace("_", "-"),
                "phase": message.phase,
                "ranks": message.ranks,
                "payload_bytes": message.payload_bytes,
                "bus_bytes_per_s": message.bus_bytes_per_s,
                "calls": message.calls,
                "seconds": message.seconds,
                "share": message.seconds / step_s,
                "link": message.domain,
            }
            for message in sorted(messages.values(), key=lambda one: -one.seconds)
        ],
    }


def _basis(group: NodeGroup, figure: str) -> Basis:
    """How well the share that kernels reach of a figure is known: it was found against the figure of a data sheet, so
    that a figure counts by itself only where it is less sure than that."""
    device = group.device
    own = device.basis_of(figure).basis
    unsure = BASIS_ORDER.index(own) > BASIS_ORDER.index("datasheet")
    return own if unsure else device.efficiency.basis
