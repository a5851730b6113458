"""V-Min: about a third of the activations of 1F1B, with a bubble of about two thirds of it."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.named.building_blocks import BlockSchedule, Offsets
from meshwright.schedules.parameters import flag


@dataclass(frozen=True, kw_only=True)
class VMin(BlockSchedule):
    """One block per micro-batch and six slots, each task of it one slot behind the same on the worker before.

    Workers hold about p/3 micro-batches. No closed form of its time is known.
    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024. The paper leaves the rules of the
    reordering open: this is a reconstruction whose spans are no longer than those of the authors' code at p = 3 to 16
    with m = 2p and 3p, and one forward shorter at p = 5 and 8 (84.5 against 85.5 for p = 8, m = 24).
    """

    raw: bool = flag("Squeezed blocks, not reordered.")

    name = "v-min"
    looks_ahead = True
    title = "V-Min: a third of the activations of 1F1B, two chunks in a V"

    def offsets(self, p: int, worker: int) -> Offsets:
        """Every task one slot apart; two more slots to the gradients where 3 divides p."""
        spare = 0 if p % 3 else 2
        return worker, 2 * p - 1 - worker, 2 * p + spare + worker, 4 * p + spare - 1 - worker
