"""Published plans of two planners on mixed clusters, where the reference shelf lies beside the checkout."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.formats.profiles import ProfileSet, read_profiles
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.units import GIB

SHELF = Path(__file__).parents[4] / "shared" / "hetero"
TINY = Path(__file__).parents[2] / "data" / "profiles"
MEMORY_GIB = {"V100-16": 16, "A100-40": 40, "GH-96": 96, "Alpha-32": 32, "Beta-12": 12}


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


def baseline_s(case: dict[str, Any]) -> float:
    """The better of both planners."""
    return min(
        case["sailor"]["best_of_list_by_simulator"]["sailor_simulator_s"],
        case["metis"]["best_uniform_by_sailor_simulator"]["sailor_simulator_s"],
    )
