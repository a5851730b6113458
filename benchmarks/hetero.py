"""Mixed clusters against Sailor and Metis: `python -m benchmarks.hetero --cases FILE --profiles DIR`.

The file holds clusters and the times Sailor's simulator gives to the plans of both planners; the folder, the layer
profiles it used. Every plan is priced by the simulator's own rule
(`benchmarks.sailor_rule`, and `set_price` of `meshwright.planning.compose.sources.profiles` for pipelines of unequal
shape), as published and with their replicas at their own pace (`benchmarks.published_plans`). Seconds of planning
are processor time, the comparisons with parts of the cluster included. The largest clusters join kinds between which
nobody measured a link: there the slower of the two kinds' own links stands for it, and those of A100-40 for A100-80.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks import markdown_table
from benchmarks.published_plans import best_at_own_pace_s
from meshwright.formats.profiles import End, ProfileSet, Route, read_profiles
from meshwright.planning.compose.sources.profiles.bounds import compute_bound_s
from meshwright.planning.compose.sources.profiles.costs import BETWEEN, ProfileCosts
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.planning.compose.sources.profiles.search import ComposedShapes, ShapeComposer
from meshwright.units import GIB

MEMORY_GIB = {"V100-16": 16, "A100-40": 40, "A100-80": 80, "GH-96": 96, "Titan-RTX": 24, "RTX-3090": 24}
"""Capacities Sailor plans with."""
ZONE = "us-central1-a"
PER_NODE = 4

BEYOND = (
    ("OPT-350", {"A100-40": 8, "V100-16": 8}, 1024, 22.99, "Sailor"),
    ("OPT-350", {"GH-96": 8, "A100-40": 8, "V100-16": 16}, 512, 5.745, "Sailor on the 8 GH-96 alone"),
    ("OPT-350", {"GH-96": 32, "A100-40": 32, "V100-16": 64}, 1024, 3.71, "Sailor, 32 GH-96 of them"),
    ("OPT-350", {"A100-40": 128, "V100-16": 128}, 1024, 2.40, "Sailor"),
)
"""Model, devices, batch, and what the best published plan takes by Sailor's simulator; nodes of 4."""

LARGE = (
    ({"GH-96": 128, "A100-80": 256, "A100-40": 256, "V100-16": 384}, 8192),
    (
        {
            "GH-96": 1024,
            "A100-80": 2048,
            "A100-40": 3072,
            "V100-16": 4096,
            "Titan-RTX": 3072,
            "RTX-3090": 3072,
        },
        65536,
    ),
)
"""Devices and batch, OPT-350."""


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--profiles", type=Path, required=True)
    options = parser.parse_args()
    profiles = read_profiles(options.profiles)
    cases = json.loads(options.cases.read_text())["cases"]
    rows = [_compared(profiles, case) for case in cases]
    columns = (
        "cluster",
        "batch",
        "Sailor",
        "Metis",
        "ours",
        "below",
        "Sailor, free",
        "Metis, free",
        "below",
        "compute bound",
        "bound",
        "planning",
    )
    print(markdown_table(columns, [row.cells for row in rows]))
    print(
        f"\nGeometric mean below the better: {_mean(row.raw for row in rows)} as published, "
        f"{_mean(row.free for row in rows)} at equal freedom"
    )
    print()
    print(
        markdown_table(
            ("cluster", "batch", "published", "ours", "below", "planning"),
            [_beyond_row(profiles, *one) for one in BEYOND],
        )
    )
    print()
    joined_columns = _all_joined(profiles)
    print(
        markdown_table(
            ("cluster", "batch", "ours", "bound", "planning"), [_large_row(joined_columns, *one) for one in LARGE]
        )
    )


def planned_s(profiles: ProfileSet, case: dict[str, Any]) -> float:
    """Seconds of a step of our best plan for a case.

    Args:
        profiles: layer times, memory and links.
        case: model, cluster, nodes, zone and batch.
    """
    costs = _costs(profiles, case["model"], case["cluster"], case["gpus_per_node"], case["zone"])
    return _planned(costs, case["global_batch"])[0].time.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A case: our step over the better of both planners' as published, and with their replicas at their own pace."""

    raw: float
    free: float
    cells: list[str]


def _compared(profiles: ProfileSet, case: dict[str, Any]) -> Compared:
    costs = _costs(profiles, case["model"], case["cluster"], case["gpus_per_node"], case["zone"])
    sailor = case["sailor"]["best_of_list_by_simulator"]["sailor_simulator_s"]
    metis = case["metis"]["best_uniform_by_sailor_simulator"]["sailor_simulator_s"]
    free = [best_at_own_pace_s(costs, case, by) for by in ("sailor", "metis")]
    best, bound_s, cpu_s = _planned(costs, case["global_batch"])
    step_s = best.time.step_time_s
    raw = step_s / min(sailor, metis)
    return Compared(
        raw=raw,
        free=step_s / min(free),
        cells=[
            f"{case['model']}, {_said(case['cluster'])}",
            str(case["global_batch"]),
            f"{sailor:.2f} s",
            f"{metis:.2f} s",
            f"{step_s:.2f} s",
            f"{1 - raw:.1%}",
            *(f"{one:.2f} s" for one in free),
            f"{1 - step_s / min(free):.1%}",
            f"{compute_bound_s(costs, case['global_batch']):.2f} s",
            f"{bound_s:.2f} s",
            f"{cpu_s:.1f} s",
        ],
    )


def _mean(ratios: Iterable[float]) -> str:
    return f"{1 - geometric_mean(ratios):.1%}"


def _beyond_row(
    profiles: ProfileSet, model: str, cluster: dict[str, int], batch: int, published_s: float, by: str
) -> list[str]:
    best, _, cpu_s = _planned(_costs(profiles, model, cluster, PER_NODE, ZONE), batch)
    step_s = best.time.step_time_s
    below = f"{1 - step_s / published_s:.1%}"
    return [
        f"{model}, {_said(cluster)}",
        str(batch),
        f"{published_s:.2f} s ({by})",
        f"{step_s:.2f} s",
        below,
        f"{cpu_s:.1f} s",
    ]


def _large_row(profiles: ProfileSet, cluster: dict[str, int], batch: int) -> list[str]:
    best, bound_s, cpu_s = _planned(_costs(profiles, "OPT-350", cluster, PER_NODE, ZONE), batch)
    return [_said(cluster), str(batch), f"{best.time.step_time_s:.2f} s", f"{bound_s:.2f} s", f"{cpu_s:.1f} s"]


def _planned(costs: ProfileCosts, batch: int) -> tuple[ComposedShapes, float, float]:
    """The best set of pipelines on all kinds, on each alone and on all but one; the bound; and seconds of planning."""
    start = time.process_time()
    composer = ShapeComposer(costs, batch)
    kinds = {kind.name: kind.count for kind in costs.kinds.values()}
    parts = [{name: count} for name, count in kinds.items()]
    if len(kinds) > 2:
        parts += [{name: count for name, count in kinds.items() if name != left_out} for left_out in kinds]
    found = [composer.best(part) for part in parts] + [composer.best() if len(kinds) > 1 else None]
    best = min((one for one in found if one is not None), key=lambda one: one.time.step_time_s)
    return best, composer.bound_s(), time.process_time() - start


def _all_joined(profiles: ProfileSet) -> ProfileSet:
    """The profiles with a link between any two kinds."""
    links = dict(profiles.links)

    def own(device: str, per_node: int) -> Route:
        end = End("A100-40" if device == "A100-80" else device, per_node, ZONE)
        return Route(BETWEEN, end, end)

    for a, b in product(MEMORY_GIB, repeat=2):
        for a_count, b_count in product((1, 2, 4), repeat=2):
            route = Route(BETWEEN, End(a, a_count, ZONE), End(b, b_count, ZONE))
            if route not in links and Route(BETWEEN, route.target, route.source) not in links:
                pair = (links[own(a, a_count)], links[own(b, b_count)])
                links[route] = min(pair, key=lambda fit: fit.max_gb_s)
    return ProfileSet(source=profiles.source, models=profiles.models, links=links)


def _costs(profiles: ProfileSet, model: str, cluster: dict[str, int], per_node: int, zone: str) -> ProfileCosts:
    kinds = [
        DeviceKind(
            name=name,
            device=name,
            count=count,
            devices_per_node=per_node,
            memory_bytes=MEMORY_GIB[name] * GIB,
            zone=zone,
        )
        for name, count in cluster.items()
    ]
    return ProfileCosts(profiles, model, kinds)


def _said(cluster: dict[str, int]) -> str:
    return " + ".join(f"{count} {name}" for name, count in cluster.items())


if __name__ == "__main__":
    main()
