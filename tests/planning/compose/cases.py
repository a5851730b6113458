"""Published plans of two planners on mixed clusters, where the reference shelf lies beside the checkout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.sailor_rule import Replica, UniformStage
from meshwright.formats.profiles import ProfileSet, read_profiles
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.units import GIB

SHELF = Path(__file__).parents[4] / "shared" / "hetero"
TINY = Path(__file__).parents[2] / "data" / "profiles"
MEMORY_GIB = {"V100-16": 16, "A100-40": 40, "GH-96": 96, "Alpha-32": 32, "Beta-12": 12}


@dataclass(frozen=True)
class PublishedPlan:
    """A plan and what Sailor's simulator says of it."""

    name: str
    stages: tuple[UniformStage, ...]
    micro_batch: int
    step_time_s: float


@cache
def shelf_profiles() -> ProfileSet:
    """The measured profiles."""
    return read_profiles(SHELF / "data")


@cache
def tiny_profiles() -> ProfileSet:
    """Two invented devices and a model of six layers."""
    return read_profiles(TINY)


def published_cases() -> list[dict[str, Any]]:
    """The mixed clusters, none without the shelf."""
    file = SHELF / "cases.json"
    return json.loads(file.read_text())["cases"] if file.is_file() else []


def kinds_of(case: dict[str, Any]) -> list[DeviceKind]:
    """The devices of a case."""
    return [kind(name, count, case["gpus_per_node"], case["zone"]) for name, count in case["cluster"].items()]


def kind(name: str, count: int, per_node: int = 4, zone: str = "z1") -> DeviceKind:
    """Devices of one name."""
    return DeviceKind(
        name=name, device=name, count=count, devices_per_node=per_node, memory_bytes=MEMORY_GIB[name] * GIB, zone=zone
    )


def costs_of(case: dict[str, Any]) -> ProfileCosts:
    """The case's model on its devices."""
    return ProfileCosts(shelf_profiles(), case["model"], kinds_of(case))


def published_plans(case: dict[str, Any]) -> list[PublishedPlan]:
    """Plans of both planners whose simulated time is exact."""
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
        stages, first_device = [], 0
        for index, (size, (dp, tp)) in enumerate(zip(plan["device_groups"], degrees, strict=True)):
            first, end = plan["layer_partition"][index : index + 2]
            ranks = tuple(Replica(devices[first_device + rank * tp], tp) for rank in range(dp))
            stages.append(UniformStage(first, end - first, ranks))
            first_device += size
        micro_batch = case["global_batch"] // plan["num_microbatches"] // degrees[0][0]
        plans.append(PublishedPlan(f"metis {name}", tuple(stages), micro_batch, plan["sailor_simulator_s"]))
    return plans


def baseline_s(case: dict[str, Any]) -> float:
    """The better of both planners."""
    return min(
        case["sailor"]["best_of_list_by_simulator"]["sailor_simulator_s"],
        case["metis"]["best_uniform_by_sailor_simulator"]["sailor_simulator_s"],
    )
