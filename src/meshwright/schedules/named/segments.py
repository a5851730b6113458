"""What schedules share that cut every micro-batch along its sequence."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.named.zero_bubble import ListedSchedule
from meshwright.schedules.parameters import whole


@dataclass(frozen=True, kw_only=True)
class SegmentSchedule(ListedSchedule):
    """Every micro-batch is cut into k causal segments: a later one reads the keys and values of earlier ones.

    Backwards of a micro-batch run in reverse, since earlier segments take gradients of keys and values from later ones.
    Time (m + (p - 1)/k)*(f + b) for segments of equal work on one chunk per worker.
    """

    segments: int = whole(2, "Segments per sequence.", tries=(4, 8))

    only_chunks = 1
    traffic = "as many bytes in `segments` times as many messages"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + (p - 1) / segments) * (forward_s + backward_s)."""
        return (m + (p - 1) / self.segments) * (forward_s + backward_s)

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """The backward is not split."""
        return self.closed_form_s(p, m, v, forward_s, input_s + weight_s)

    def tasks_per_share(self, v: int) -> int:
        """Segments of a micro-batch, taken as equal in work, on each chunk."""
        return v * self.segments

    def sections(self) -> int:
        """Segments."""
        return self.segments

    def _settled(self, p: int, v: int) -> int:
        """Workers warm up with the segments of one micro-batch, and at most two more for each worker behind them."""
        return 2 * (1 + -(-2 * p // (self.segments * v)))
