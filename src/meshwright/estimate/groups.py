"""Seconds of the collectives that strategies ask for, each in its communication group."""

from __future__ import annotations

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.work_seconds import Rows
from meshwright.kernels import collectives
from meshwright.kernels.exchange import token_exchange_s
from meshwright.strategies import TENSORS, context
from meshwright.strategies.base import Call, Group, StrategyColumns

_COLLECTIVES = {
    "all_gather": collectives.all_gather_s,
    "reduce_scatter": collectives.reduce_scatter_s,
    "all_reduce": collectives.all_reduce_s,
    "send": collectives.point_to_point_s,
}


class Groups:
    """The communication groups of strategy columns, and what a collective in them costs."""

    def __init__(self, columns: StrategyColumns, hardware: Hardware) -> None:
        one = np.ones(columns.rows, dtype=np.int64)
        self._shapes: dict[str, Group] = {
            **TENSORS[columns.tensor].groups(columns),
            **context.context_groups(columns),
            "etp": (one, columns.etp),
            "ep": (columns.etp, columns.ep),
        }
        self._hardware = hardware
        self._spans: dict[str, tuple[Rows | float, ...]] = {}

    def seconds(self, call: Call) -> Rows | None:
        """All seconds of a call, hidden or not; None where no row communicates."""
        payload = np.asarray(call.payload_bytes, dtype=float)
        if not payload.any():
            return None
        if call.group not in self._spans:
            stride, size = self._shapes[call.group]
            self._spans[call.group] = collectives.group_span(stride, size, self._hardware.domain_sizes)
        inside = self._spans[call.group]
        if call.kind == "all_to_all":
            once = collectives.all_to_all_s(payload, inside=inside, rates=self._hardware.rates)
            if call.once is not None and call.routing is not None:
                rates = self._hardware.exchange_rates
                carried = token_exchange_s(payload, inside=inside, rates=rates, routing=call.routing)
                once = np.where(call.once, carried, once)
        else:
            once = _COLLECTIVES[call.kind](payload, inside=inside, rates=self._hardware.rates)
        return np.asarray(once * call.repeats)
