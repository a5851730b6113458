"""How much of a step is spent in scans of recurrent layers, and how far that makes it uncertain."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layers.work_seconds import WorkSeconds
from meshwright.estimate.rows import strategy_columns
from meshwright.ops.layers import layer_work
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Scan
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload

# Public kernels of one recurrence differ by 2 either way from what `mixing` prices: Alibaba's FlashQLA takes a third
# to a half of FLA's time forward and half of it backward (blog of 2026, H200), IBM's fused scan of Mamba-2 0.4-0.67 of
# the five kernels (pytorch.org, 2026, A100 and H100); FLA's kernels of decays per channel take up to 1.8 times as long.
LOG_HALF_WIDTH = math.log(2.0)


@lru_cache(maxsize=64)
def scan_share(model: ModelSpec, hardware: Hardware, workload: Workload) -> float:
    """Seconds of scans over those of all layers, forward and backward on one device.

    Args:
        model: 0.0 where no layer has a scan.
        hardware: the hardware of the device.
        workload: formats and lengths.
    """
    works = {layer_work(kind, model.hidden, workload.attention_kernel): n for kind, n in model.kind_counts().items()}
    if not any(isinstance(op, Scan) for work in works for op in work.ops):
        return 0.0
    columns = strategy_columns([LayerStrategy()], 1.0, workload)

    def seconds(priced: WorkSeconds) -> float:
        return float(priced.forward.compute_s[0] + priced.backward.compute_s[0])

    scans = every = 0.0
    for work, count in works.items():
        own = tuple(op for op in work.ops if isinstance(op, Scan))
        every += count * seconds(price_work(work, columns, hardware, workload))
        if own:
            scans += count * seconds(price_work(replace(work, ops=own, kept=()), columns, hardware, workload))
    return scans / every


def widened(low: float, high: float, share: float) -> tuple[float, float]:
    """A range of shares below and above a step, with what is not known of a share of it spent in scans.

    Args:
        low: below, 0-1.
        high: above.
        share: the share of the step.
    """
    if not share:
        return low, high
    more = LOG_HALF_WIDTH * share
    return 1.0 - math.exp(-math.hypot(math.log(1.0 - low), more)), math.exp(math.hypot(math.log1p(high), more)) - 1.0
