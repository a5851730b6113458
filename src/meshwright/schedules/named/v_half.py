"""V-Half: about half the activations of 1F1B, with a bubble of about half of it."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.named.building_blocks import BlockSchedule, Offsets
from meshwright.schedules.parameters import flag


@dataclass(frozen=True, kw_only=True)
class VHalf(BlockSchedule):
    """One block per micro-batch and six slots; a forward moves down the workers every second slot.

    Workers hold about p/2 micro-batches: p + 2 chunk activations for even p, p + 1 for odd. No closed form of its time
    is known.
    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024. The paper leaves the rules of the
    reordering open: this is a reconstruction that reaches the bubbles of the authors' code.
    """

    raw: bool = flag("Squeezed blocks, not reordered.")

    name = "v-half"
    title = "V-Half: half the activations of 1F1B, two chunks in a V"

    def offsets(self, p: int, worker: int) -> Offsets:
        """Forwards 2 slots apart; three more slots to the gradients for an even p."""
        spare = 0 if p % 2 else 3
        return 2 * worker, 3 * p - 2 - worker, 3 * p + spare - 1 + 2 * worker, 6 * p + spare - 2 - worker
