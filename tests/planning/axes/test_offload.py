"""What is assumed of hosts that nobody described, where a plan keeps states there."""

from __future__ import annotations

from dataclasses import replace

import meshwright as mw
from meshwright.planning.axes.offload import host_assumptions


def assumed(plan: str, **stated: float) -> set[str]:
    """Names of the assumptions, the group's left out."""
    (found,) = mw.estimate("llama-3.1-8b", plan, gpus="1xRTX-4090", global_batch=4, nvme="2TB@7GB/s")
    (group,) = found.job.cluster.groups
    cluster = replace(found.job.cluster, groups=(replace(group, host=replace(group.host, **stated)),))
    return {one.name.removeprefix(f"{group.name} ") for one in host_assumptions(cluster, found.estimate)}


def test_speeds_are_assumed_where_states_are_away_and_nobody_stated_them() -> None:
    assert assumed("mbs1.rc-full") == set()
    assert assumed("mbs1.rc-full.off-wog") == {"host link", "host update"}
    assert assumed("mbs1.rc-full.off-wog-nvme") == {"host link", "host update", "NVMe"}
    stated = {"link_bytes_per_s": 50e9, "memory_bytes_per_s": 200e9}
    assert assumed("mbs1.rc-full.off-wog-nvme", **stated) == {"NVMe"}
    assert assumed("mbs1.rc-full.off-wog-nvme", **stated, disk_write_bytes_per_s=3e9) == set()
