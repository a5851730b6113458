"""GPipe: all forwards, then all backwards in reverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.schedules.base import Schedule
from meshwright.schedules.bounds import PathBound, Paths
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.schedules.times import Times, class_seconds
from meshwright.shapes import Float, Int

ALL_PAIRS = 16
"""Most workers for which the bound looks at every pair of a slowest forward and a slowest backward stage."""


@dataclass(frozen=True, kw_only=True)
class GPipe(Schedule):
    """All forwards of the step, then all its backwards, last micro-batch first.

    Time m*(f + b) + (p - 1)*(f + b) with equal stages; every worker keeps the activations of all m micro-batches.
    Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019.
    """

    name = "gpipe"
    only_chunks = 1
    repeats = True
    unequal = "passes"
    searched_by_default = True
    title = "GPipe: all forwards, then all backwards"
    source = "Huang et al., GPipe, NeurIPS 2019"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float:
        """(m + p - 1) * (forward_s + backward_s)."""
        return (m + p - 1) * (forward_s + backward_s)

    @property
    def bound_by_formula(self) -> bool:
        """Bound and activations are closed forms."""
        return True

    def end_s(self, p: int, m: int, v: int, times: Times) -> Float[np.ndarray, "*all_rows workers"]:
        """End of each worker's last task, exactly: sum + (m - 1) * slowest of the stages, forward, then backward.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker, 1.
            times: sets of durations along leading axes.
        """
        self._check(p, m, v)
        if not times.plain:
            return super().end_s(p, m, v, times)
        seconds = class_seconds(self.placement(p), times, frozenset({Kind.F, Kind.B}), m)
        forward_s, backward_s, latency = seconds.tasks[:p], seconds.tasks[p : 2 * p], seconds.edges[:p]
        turn_s = (forward_s + latency).sum(axis=0) + (m - 1) * forward_s.max(axis=0)
        below_s = np.cumsum((backward_s + latency)[::-1], axis=0)[::-1]
        slowest_s = np.maximum.accumulate(backward_s[::-1], axis=0)[::-1]
        return (turn_s + below_s + (m - 1) * slowest_s).T.reshape(*seconds.lead, p)

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        up = np.arange(m, dtype=np.int32)
        worker = np.repeat(np.arange(p, dtype=np.int32), 2 * m)
        return ScheduleTable(
            placement=self.placement(p),
            micro_batches=(m,),
            worker=worker,
            kind=np.tile(np.repeat(np.array([Kind.F, Kind.B], np.int32), m), p),
            stage=worker,
            micro_batch=np.tile(np.concatenate([up, up[::-1]]), p),
        )

    def _bound_for(self, p: int, m: int, v: int) -> int:
        return 1

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        """Once through all stages, but all micro-batches at the slowest forward and at the slowest backward stage.

        With every pair of the two this is the exact time: both halves are permutation flow shops of equal jobs.
        """
        paths = Paths(p, v)
        ends = {0, p - 1}
        for slow_forward in range(p):
            for slow_backward in range(p):
                near = slow_forward == slow_backward or {slow_forward, slow_backward} & ends
                if p > ALL_PAIRS and not near:
                    continue
                f, b, t, each_f, each_b, _ = paths.add(slow_backward)
                f[:], b[:], t[:-1] = 1, 1, 2
                f[slow_forward] = b[slow_backward] = 0
                each_f[slow_forward] = each_b[slow_backward] = 1
        return paths.bound()

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        return (np.array([[m]]),) * p

    def _in_flight_for(self, p: int, m: int, v: int) -> int:
        return m
