"""Plans that Sailor and Metis made for mixed clusters, and what they take with the freedom that ours have.

`uniform_step` of `benchmarks.sailor_rule` has every replica do as many micro-batches as the slowest. At its own pace a
replica of all stages is a pipeline that takes as much of the batch as it has time for, in micro-batches that suit it,
priced as our pipeline sets are; stages, layers and tensor degrees stay those of the plan. What is left between the two
is the plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.sailor_rule import Replica, UniformStage
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.improve import merged_set
from meshwright.planning.compose.sources.profiles.pipeline_set import EqualPipelines, PipelineShape, StageShape
from meshwright.planning.compose.sources.profiles.set_price import SetPricer

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class PublishedPlan:
    """A plan and what Sailor's simulator says of it."""

    name: str
    stages: tuple[UniformStage, ...]
    micro_batch: int
    step_time_s: float

    @property
    def by(self) -> str:
        """The planner."""
        return self.name.split()[0]


def published_plans(case: dict[str, Any]) -> list[PublishedPlan]:
    """Plans of both planners whose simulated time is exact.

    Args:
        case: of the file of cases.
    """
    plans = []
    for name in ("top_ranked_plan", "best_of_list_by_simulator"):
        plan = case["sailor"][name]
        stages = tuple(
            UniformStage(
                stage["first_layer"],
                stage["num_layers"],
                tuple(Replica(r["gpu"], r["tp"]) for r in stage["replicas"] for _ in range(r["count"])),
            )
            for stage in plan["stages"]
        )
        plans.append(PublishedPlan(f"sailor {name}", stages, plan["micro_batch"], plan["sailor_simulator_s"]))
    for name, plan in case["metis"].items():
        if not isinstance(plan, dict) or plan["sailor_simulator_note"] != "uniform":
            continue
        degrees = plan["strategies_dp_tp"]
        devices = [device for device in plan["node_sequence"] for _ in range(case["cluster"][device])]
        own, first_device = [], 0
        for index, (size, (dp, tp)) in enumerate(zip(plan["device_groups"], degrees, strict=True)):
            first, end = plan["layer_partition"][index : index + 2]
            ranks = tuple(Replica(devices[first_device + rank * tp], tp) for rank in range(dp))
            own.append(UniformStage(first, end - first, ranks))
            first_device += size
        micro_batch = case["global_batch"] // plan["num_microbatches"] // degrees[0][0]
        plans.append(PublishedPlan(f"metis {name}", tuple(own), micro_batch, plan["sailor_simulator_s"]))
    return plans


def own_pace_s(costs: ProfileCosts, plan: PublishedPlan, global_batch: int) -> float | None:
    """Seconds of a step of a plan each of whose replicas takes what it has time for; None where one cannot run.

    Args:
        costs: the case's model on its devices.
        plan: with as many replicas in every stage.
        global_batch: sequences per step.
    """
    if len({len(stage.replicas) for stage in plan.stages}) != 1:
        return None
    chains = Counter(
        tuple(
            StageShape(replica.device, replica.tp, 1, stage.layers)
            for replica, stage in zip(chain, plan.stages, strict=True)
        )
        for chain in zip(*(stage.replicas for stage in plan.stages), strict=True)
    )
    pricer, best_s = SetPricer(costs, global_batch), None
    for sizes in product(MICRO_BATCHES, repeat=len(chains)):
        parts = (EqualPipelines(PipelineShape(b, one), n) for b, (one, n) in zip(sizes, chains.items(), strict=True))
        time = pricer.price(merged_set(parts))
        if time is not None and (best_s is None or time.step_time_s < best_s):
            best_s = time.step_time_s
    return best_s


def best_at_own_pace_s(costs: ProfileCosts, case: dict[str, Any], by: str) -> float:
    """The quickest plan of a planner, its replicas at their own pace where that is quicker.

    Args:
        costs: as `own_pace_s`.
        case: of the file of cases.
        by: `sailor` or `metis`.
    """
    plans = [plan for plan in published_plans(case) if plan.by == by]
    free = [own_pace_s(costs, plan, case["global_batch"]) for plan in plans]
    return min(*(plan.step_time_s for plan in plans), *(one for one in free if one is not None))
