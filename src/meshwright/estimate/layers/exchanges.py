"""Exposed part of the exchanges of tokens with their experts: alone, beside shared experts, beside another pass.

Paired, a forward and the backward of another micro-batch run together, and each exchange of one has compute of the
other beside it:

    combine's backward | attention forward        dispatch           | experts backward
    dispatch's backward | experts forward         combine            | attention backward

The gradients of the experts' weights stand beside the dispatch, or, put off, beside the dispatch's backward.
Source: DeepSeek-AI, DeepSeek-V3 technical report (arXiv 2412.19437), 2024-12, figure 4; NVIDIA/Megatron-LM, combined
1F1B (`overlap_moe_expert_parallel_comm`, `delay_wgrad_compute`), 2025.
"""

from __future__ import annotations

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.work_seconds import LayerCompute
from meshwright.kernels.overlap import exposed_s
from meshwright.shapes import Rows
from meshwright.strategies.columns import BEST_OVERLAP, StrategyColumns

# Multiprocessors that exchange kernels keep busy beside compute. Source: DeepSeek-V3 technical report, section 3.2.2.
EXCHANGE_UNITS = 20

# Share of an exchange beside another micro-batch that finds compute in time; the rest waits for its own pass, for
# the host and for kernels that hold the device. Combined 1F1B takes Qwen3-235B on 256 H100 from 19.7 to 17.6 s per step
# (Megatron-MoE-ModelZoo, 2025), which is half of what a perfect overlap would give.
PAIRED_ON_TIME = 0.5

Place = tuple[str, str]
"""Direction of an exchange, `dispatch` or `combine`, and phase."""


def exposed_exchanges(
    alone_s: dict[Place, Rows],
    compute: LayerCompute,
    whole: tuple[Rows, Rows],
    columns: StrategyColumns,
    hardware: Hardware,
) -> dict[Place, Rows]:
    """Exposed seconds of each exchange; all of it where nothing runs beside.

    Args:
        alone_s: seconds of each exchange.
        compute: the compute of the experts.
        whole: all compute of the layer, forward and backward.
        columns: strategies, one per row.
        hardware: the device.
    """
    paired, delayed = columns.overlaps("paired", "paired-wgrad"), columns.overlaps("paired-wgrad")
    shared = columns.overlaps("shared")
    best = columns.ep_overlap is not None and bool((columns.ep_overlap == BEST_OVERLAP).any())
    if paired is None and shared is None and not best:
        return alone_s
    slowdown = max(hardware.efficiency.overlap_slowdown, hardware.units / max(hardware.units - EXCHANGE_UNITS, 1))

    def exposed(seconds: Rows, beside: Rows, on_time: float) -> Rows:
        return np.asarray(seconds * (1.0 - on_time) + exposed_s(seconds * on_time, beside, slowdown))

    found = dict(alone_s)
    if paired is not None:
        put_off = np.zeros(columns.rows, dtype=bool) if delayed is None else delayed
        forward, gradient, weights = (
            compute.of(compute.experts, phase) for phase in ("forward", "input_gradient", "weight_gradient")
        )
        beside = {
            ("combine", "backward"): whole[0] - forward,
            ("dispatch", "forward"): gradient + np.where(put_off, 0.0, weights),
            ("dispatch", "backward"): forward + np.where(put_off, weights, 0.0),
            ("combine", "forward"): whole[1] - gradient - weights,
        }
        for place, seconds in alone_s.items():
            found[place] = np.where(
                paired, exposed(seconds, np.maximum(beside[place], 0.0), PAIRED_ON_TIME), found[place]
            )
    if shared is not None:
        for place, seconds in alone_s.items():
            # Its first product runs beside the dispatch, its second beside the combine.
            own = compute.of(compute.shared, "forward" if place[1] == "forward" else "input_gradient") / 2
            found[place] = np.where(shared, exposed(seconds, own, hardware.software.overlap), found[place])
    if best:
        for place, seconds in alone_s.items():
            least = exposed(seconds, seconds * slowdown, max(PAIRED_ON_TIME, hardware.software.overlap))
            found[place] = np.where(columns.ep_overlap == BEST_OVERLAP, least, found[place])
    return found
