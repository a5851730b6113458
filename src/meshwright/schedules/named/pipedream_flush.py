"""PipeDream-Flush: the 1F1B order with a flush behind every step."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.named.one_f_one_b import OneFOneBOrder


@dataclass(frozen=True, kw_only=True)
class PipeDreamFlush(OneFOneBOrder):
    """The order of 1F1B; the pipeline drains behind each global batch, so that one version of the weights is enough.

    Time (m + p - 1)*(f + b) with equal stages; worker r keeps activations of p - r micro-batches.
    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.3.
    """

    name = "pipedream-flush"
    aliases = ("1f1b-flush",)
    title = "PipeDream-Flush: 1F1B with a flush per step"
    source = "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021"
