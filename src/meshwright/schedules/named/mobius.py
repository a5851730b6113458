"""Mobius: more stages than workers, paged from host memory one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.named.breadth_first import BreadthFirst
from meshwright.schedules.sharding import with_paging
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Mobius(BreadthFirst):
    """The order of breadth-first with v stages per worker, of which the current and the next one are on the device.

    A stage is uploaded while the one before it computes, runs all m micro-batches, and is dropped; backwards visit the
    stages in reverse. The table holds the computation only: its times are those of a step whose uploads all hide, that
    is stage bytes / link bandwidth <= m*f/v; in a plan a stage waits for what is left of its upload. Host traffic per
    step: the weights twice, the gradients once.
    Source: Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers", ASPLOS 2023.
    """

    name = "mobius"
    pages = True
    aliases = ("paged-breadth-first",)
    title = "Mobius: stages paged from host memory"
    source = "Feng et al., Mobius, ASPLOS 2023"
    traffic = "host memory to devices and back: the weights of every stage twice and its gradients once per step"

    @property
    def not_searched(self) -> str:
        """Why searches leave it out: bounds are of stages that lie on the device."""
        return "its stages are paged from host memory, which the bounds of the search do not know"

    def paged_table(self, p: int, m: int, v: int) -> ScheduleTable:
        """The table with its uploads: RELOAD_W of a stage while the one before it computes, OFFLOAD_W behind its run.

        Args:
            p: workers.
            m: micro-batches.
            v: stages per worker.
        """
        return with_paging(self.table(p, m, v), ahead=m)

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if v > 1:
            return []
        why = "mobius pages stages, so a worker has two or more"
        return [Problem(what=f"mobius: v = {v}", why=why, fix="v = 2, or schedule gpipe", field="v")]
