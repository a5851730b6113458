"""A lower bound for any schedule table: the critical paths that a few chosen sets of durations have in it.

Whatever the durations, no path through the table is longer than the step. The path that is critical for one set of
durations is exact there and close nearby, so a few dozen of them, for equal workers, one slow worker or chunk, slow
transfers and random stages, bound every other set well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.schedules.bounds import PathBound
from meshwright.schedules.columns import ALONG
from meshwright.schedules.simulate import Times, simulate
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Float, Int

FORWARD, BACKWARD, TRANSFER, WEIGHT, RECOMPUTE = range(5)
"""Durations that a path counts."""
RANDOM_SETS = 12
"""Sets of random durations, stages differing by up to a factor of 2, whose critical paths are kept."""
SLOW_WORKERS = 16
"""Most workers that are tried as the slow one."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CriticalPaths(PathBound):
    """Paths as counts of forward, backward, transfer, weight gradient and recomputation; `turn` is where each ends.

    An input gradient counts as a backward less a weight gradient.
    """

    def end_s(
        self,
        m: int,
        forward_s: Float[np.ndarray, "*#rows workers chunks"],
        backward_s: Float[np.ndarray, "*#rows workers chunks"],
        transfer_s: Float[np.ndarray, "*#rows workers chunks"],
        weight_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
        recompute_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
    ) -> Float[np.ndarray, "*all_rows workers"]:
        """Lower bound of when each worker ends: the longest path that ends there; arguments as `PathBound.end_s`."""
        paths, durations, p, v = self.once.shape
        zero_s = np.zeros_like(forward_s)
        weight_s = zero_s if weight_s is None else weight_s
        recompute_s = zero_s if recompute_s is None else recompute_s
        together = np.broadcast_arrays(forward_s, backward_s, transfer_s, weight_s, recompute_s)
        lead = together[0].shape[:-2]
        seconds = np.stack(together, axis=-3).reshape(-1, durations * p * v)
        length_s = seconds @ (self.once + m * self.each).reshape(paths, -1).T
        ends_s = np.stack([length_s[:, self.turn == worker].max(axis=1) for worker in range(p)], axis=1)
        return ends_s.reshape(*lead, p)


def generic_path_bound(table: ScheduleTable) -> CriticalPaths:
    """Critical paths of the table to every worker's last task, for the sets of durations of `_probes`.

    Valid for any durations; exact for those sets, so for equal workers too.

    Args:
        table: any schedule.
    """
    counts: dict[bytes, tuple[np.ndarray, int]] = {}
    for times in _probes(table):
        for path, worker in _critical(table, times):
            counts.setdefault(path.tobytes() + bytes([worker % 256, worker // 256]), (path, worker))
    once = np.stack([path for path, _ in counts.values()]).astype(float)
    return CriticalPaths(once=once, each=np.zeros_like(once), turn=np.array([worker for _, worker in counts.values()]))


def _probes(table: ScheduleTable) -> list[Times]:
    """Sets of durations that pull the critical path to different places."""
    shape = (table.p, table.v)
    rng = np.random.default_rng(0)
    probes = []

    def add(scale: np.ndarray, forward: float, weight: float, transfer: float, backward: float = 2.0) -> None:
        probes.append(
            Times(
                forward_s=forward * scale,
                backward_s=backward * scale,
                transfer_s=np.full(shape, transfer),
                weight_s=weight * scale,
                recompute_s=forward * scale,
            )
        )

    equal = np.ones(shape)
    for transfer in (0.0, 0.01, 1.0):
        add(equal, 1.0, 1.0, transfer)
        add(equal, 2.0, 1.0, transfer)
    add(equal, 1.5, 1.0, 0.0)
    add(equal, 1.0, 0.5, 0.0)
    add(equal, 1.0, 1.5, 0.0)
    for worker in sorted(set(np.linspace(0, table.p - 1, min(table.p, SLOW_WORKERS)).astype(int).tolist())):
        slow = np.ones(shape)
        slow[worker] = 3.0
        add(slow, 1.0, 1.0, 0.05)
    for _ in range(RANDOM_SETS):
        forward, backward = 1 + rng.random(shape), 2 * (1 + rng.random(shape))
        probes.append(
            Times(
                forward_s=forward,
                backward_s=backward,
                transfer_s=0.1 * rng.random(shape),
                weight_s=backward * (0.3 + 0.4 * rng.random(shape)),
                recompute_s=forward,
            )
        )
    return probes


def critical_path(table: ScheduleTable, times: Times, worker: int) -> Int[np.ndarray, "durations workers chunks"]:
    """Counts of one longest path to a worker's last task.

    Args:
        table: any schedule.
        times: one set of durations.
        worker: the worker where the path ends.
    """
    return _critical(table, times, [worker])[0][0]


def _critical(
    table: ScheduleTable, times: Times, ends: Sequence[int] | None = None
) -> list[tuple[Int[np.ndarray, "durations workers chunks"], int]]:
    """The counts of one longest path to the last task of each worker, or of these workers."""
    timeline = simulate(table, times)
    node = table.node
    head = np.searchsorted(node, np.arange(int(node[-1]) + 1))
    end_s = timeline.end_s[head]
    before, crossed = _latest_inputs(table, times, head, end_s)
    cells = table.worker * table.v + table.chunk
    size = table.p * table.v
    counted = table.kind * size + cells
    earlier = before.tolist()
    found = []
    for last_worker in range(table.p) if ends is None else ends:
        path = []
        at = int(node[table.first[last_worker + 1] - 1])
        while at >= 0:
            path.append(at)
            at = earlier[at]
        tasks = head[path] if table.fused is None else np.nonzero(np.isin(node, path))[0]
        by_kind = np.bincount(counted[tasks], minlength=len(Kind) * size).reshape(len(Kind), size)
        transfers = crossed[path]
        counts = np.zeros((5, size), np.int64)
        counts[FORWARD] = by_kind[Kind.F]
        counts[BACKWARD] = by_kind[Kind.B] + by_kind[Kind.I]
        counts[TRANSFER] = np.bincount(transfers[transfers >= 0], minlength=size)
        counts[WEIGHT] = by_kind[Kind.W] - by_kind[Kind.I]
        counts[RECOMPUTE] = by_kind[Kind.R] + by_kind[Kind.X]
        found.append((counts.reshape(5, table.p, table.v), last_worker))
    return found


def _latest_inputs(
    table: ScheduleTable, times: Times, head: Int[np.ndarray, " nodes"], end_s: Float[np.ndarray, " nodes"]
) -> tuple[Int[np.ndarray, " nodes"], Int[np.ndarray, " nodes"]]:
    """The node whose result arrives last at each one, and the worker and chunk whose transfer it crosses; -1 for none.

    Of inputs that arrive together the node before on the same worker counts, then the first one listed.
    """
    worker, node = table.worker[head], table.node
    latency_s = np.broadcast_to(np.asarray(times.transfer_s, float), (table.p, table.v)).reshape(-1)
    opens = np.append(True, worker[1:] != worker[:-1])
    before = np.where(opens, -1, np.arange(-1, len(head) - 1))
    crossed = np.full(len(head), -1)
    takes = np.nonzero(table.crosses)[0]
    makes = table.needs[takes, ALONG]
    upstream = np.where(table.kind[makes] == Kind.F, makes, takes)
    cell = table.worker[upstream] * table.v + table.chunk[upstream]
    arrives_s = end_s[node[makes]] + latency_s[cell]
    later = arrives_s > np.where(opens, -1.0, end_s[before])[node[takes]]
    # The last to be written stays: the latest arrival, of equals the first listed.
    order = np.lexsort((-takes, arrives_s))
    order = order[later[order]]
    before[node[takes[order]]] = node[makes[order]]
    crossed[node[takes[order]]] = cell[order]
    return before, crossed
