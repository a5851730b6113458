"""What may be away from the device: rules of a strategy's offload and of the host it goes to."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import OFFLOADED, LayerStrategy, Offload
from meshwright.specs.workload import Workload


def away_problems(plan: ExecutionPlan, cluster: ClusterSpec) -> tuple[Problem, ...]:
    """What strategies of a plan move to hosts that cannot take it, together.

    Args:
        plan: only strategies that a worker's layers use count.
        cluster: its groups and their hosts.
    """
    found: dict[Problem, None] = {}
    used = {run.strategy for pipeline in plan.pipelines for chunk in pipeline.chunks() for run in chunk.runs}
    for index in sorted(used):
        strategy = plan.strategies[index]
        if not any(getattr(strategy.offload, name) for name in OFFLOADED):
            continue
        problems = [
            *strategy_problems(strategy),
            *(p for g in cluster.groups for p in host_problems(strategy.offload, g)),
        ]
        found |= dict.fromkeys(problems)
    return tuple(found)


def strategy_problems(strategy: LayerStrategy) -> Iterator[Problem]:
    """Gradients that would leave before their ranks have summed them."""
    data, ranks = strategy.data, strategy.cp * strategy.dp
    if strategy.offload.gradients and data.zero < 2 and ranks > 1:
        yield Problem(
            what=f"gradients are offloaded with z{data.zero} over {ranks} ranks",
            why="with z0 and z1 gradients are summed over ranks at the end of a step and stay on the device until then",
            fix="shard gradients with z2, z3 or fsdp, or offload the optimizer alone (off-o)",
            field="offload.gradients",
        )


def update_problems(offload: Offload, workload: Workload) -> Iterator[Problem]:
    """An update on the host that only devices compute."""
    kind = workload.update
    if offload.optimizer and not kind.on_host:
        yield Problem(
            what=f"offload.optimizer is {offload.optimizer:g} with {kind.name}",
            why=f"{kind.name} updates on the device" + (", its states in host memory" if kind.paged else ""),
            fix="leave the offload out" if kind.paged else "leave the offload out, or use adamw",
            field="offload.optimizer",
        )


def host_problems(offload: Offload, group: NodeGroup) -> Iterator[Problem]:
    """A host without the memory or the disks that states would go to."""
    if offload.tier == "nvme" and group.host.disk_read_bytes_per_s is None:
        yield Problem(
            what="states go to NVMe drives whose speed is not stated",
            why="drive speeds differ by a factor of ten, and a step waits for them",
            fix="say --nvme 7GB/s, or nvme_gb_s in the cluster file",
            field="offload.tier",
        )
    in_memory = [name for name in OFFLOADED if getattr(offload, name)]
    if offload.tier == "nvme":
        in_memory = [name for name in in_memory if name in ("activations", "gradients")]
    if group.device.unified_memory and in_memory:
        yield Problem(
            what=f"{' and '.join(in_memory)} in host memory on {group.device.name}",
            why="its processors share one memory: there is no other to move to",
            fix="keep them on the device, or move weights and the optimizer to disks (off-wo-nvme)",
            field="offload",
        )
