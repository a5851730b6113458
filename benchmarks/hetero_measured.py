"""Mixed pipelines against measured iterations: `python -m benchmarks.hetero_measured --measured FILE --profiles DIR`.

The file holds plans, seconds per iteration and peak bytes of real runs, and what Sailor's simulator says of them; the
folder, the layer profiles both predictions start from (`sailor_rule`, `measured_rule`). Records
marked EXCLUDE are left out, and of two records with the same digits the first: it has one replica per stage and yet
seconds of gradient reduction.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import markdown_table
from benchmarks.measured_rule import measured_peak_bytes, measured_step
from benchmarks.sailor_rule import Replica, UniformStage
from meshwright.formats.profiles import ProfileSet, read_profiles
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.units import GIB

PER_NODE = {"GH-96": 4, "Titan-RTX": 8, "RTX-2080": 8, "RTX-3090": 8}
MEMORY_GIB = {"GH-96": 96, "Titan-RTX": 24, "RTX-2080": 11, "RTX-3090": 24}
ZONE = "us-central1-a"
"""Under which the network file has these devices."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--profiles", type=Path, required=True)
    options = parser.parse_args()
    profiles = read_profiles(options.profiles)
    records = usable(json.loads(options.measured.read_text())["records"])
    clusters = sorted({record["cluster"] for record in records})
    print(
        markdown_table(
            ("cluster", "runs", "time, Sailor", "time, ours", "memory, Sailor", "memory, ours"),
            [_row(profiles, [r for r in records if r["cluster"] == cluster]) for cluster in clusters],
        )
    )


def usable(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records that are no other's copy and not marked EXCLUDE."""
    seen: dict[tuple[float, int], dict[str, Any]] = {}
    for record in records:
        if not any("EXCLUDE" in flag for flag in record["flags"]):
            seen[record["measured_iteration_s"], record["measured_peak_mem_bytes"]] = record
    return list(seen.values())


def job_of(profiles: ProfileSet, record: dict[str, Any]) -> tuple[ProfileCosts, tuple[UniformStage, ...], int, int]:
    """What a record ran: costs, stages, micro-batch, global batch."""
    names = sorted({replica["gpu"] for stage in record["stages"] for replica in stage["replicas"]})
    kinds = [
        DeviceKind(
            name=name,
            device=name,
            count=record["gpus_total"],
            devices_per_node=PER_NODE[name],
            memory_bytes=MEMORY_GIB[name] * GIB,
            zone=ZONE,
        )
        for name in names
    ]
    stages, first = [], 0
    for stage in record["stages"]:
        replicas = tuple(Replica(one["gpu"], one["tp"]) for one in stage["replicas"])
        stages.append(UniformStage(first, stage["num_layers"], replicas))
        first += stage["num_layers"]
    costs = ProfileCosts(profiles, record["model"], kinds)
    return costs, tuple(stages), record["micro_batch"], record["global_batch"]


def _row(profiles: ProfileSet, records: list[dict[str, Any]]) -> list[str]:
    jobs = [job_of(profiles, record) for record in records]
    time_s = [measured_step(*job).step_time_s for job in jobs]
    peak_bytes = [measured_peak_bytes(*job) for job in jobs]
    simulated = [record["simulators_recomputed"] for record in records]
    return [
        records[0]["cluster"],
        str(len(records)),
        _mean_error([one["iteration_s"]["SAILOR"] for one in simulated], records, "measured_iteration_s"),
        _mean_error(time_s, records, "measured_iteration_s"),
        _mean_error([one["peak_mem_bytes"]["SAILOR"] for one in simulated], records, "measured_peak_mem_bytes"),
        _mean_error(peak_bytes, records, "measured_peak_mem_bytes"),
    ]


def _mean_error(predicted: list[float], records: list[dict[str, Any]], name: str) -> str:
    measured = np.array([record[name] for record in records])
    return f"{np.abs(np.array(predicted) / measured - 1).mean():.2%}"


if __name__ == "__main__":
    main()
