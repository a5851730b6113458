"""V-Min: about a third of the activations of 1F1B, with a bubble of about two thirds of it."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.building_blocks import Offsets, reordered, squeezed_blocks
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.parameters import flag
from meshwright.schedules.table import ScheduleTable
from meshwright.schedules.zero_bubble import TwoChunkV


@dataclass(frozen=True, kw_only=True)
class VMin(TwoChunkV):
    """One block per micro-batch and six slots, each task of it one slot behind the same on the worker before.

    Workers hold about p/3 micro-batches. No closed form of its time is known.
    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024. The paper leaves the rules of the
    reordering open: this is a reconstruction that reaches the bubbles of the authors' code.
    """

    raw: bool = flag("Squeezed blocks, not reordered.")

    name = "v-min"
    title = "V-Min: a third of the activations of 1F1B, two chunks in a V"
    source = "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024"
    traffic = "twice the boundaries of one chunk per worker; the turn at the last worker stays there"

    def period(self, p: int, v: int) -> int | None:
        """Each micro-batch repeats the one before, behind a warm-up that is reordered."""
        return 1

    def _settled(self, p: int, v: int) -> int:
        return 2 * p

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        def offsets(r: int) -> Offsets:
            spare = 0 if p % 3 else 2
            return r, 2 * p - 1 - r, 2 * p + spare + r, 4 * p + spare - 1 - r

        lists = squeezed_blocks(p, m, offsets)
        return table_of_lists(self.placement(p), (m,), lists if self.raw else reordered(p, lists))
