"""Seconds of the collectives that strategies ask for, each in its communication group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.kernels import collectives
from meshwright.kernels.lines import FEW_GROUPS, group_span
from meshwright.shapes import Rows
from meshwright.strategies import TENSORS, context
from meshwright.strategies.base import Call, Group
from meshwright.strategies.columns import StrategyColumns

_COLLECTIVES = {"broadcast": collectives.broadcast_s, "send": collectives.point_to_point_s}
_LINES = {"all_gather": "gather", "reduce_scatter": "gather", "all_reduce": "sum"}
"""Collectives of which a layer has many: their lines are drawn once for a group."""


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
        self._lines: dict[str, collectives.GroupLines] = {}
        self._few = columns.rows <= FEW_GROUPS
        self._ahead: dict[int, tuple[Call, Rows | None]] = {}

    def look_ahead(self, calls: Sequence[Call]) -> None:
        """Price collectives that will be asked for: those of few rows together, which takes a tenth of the calls.

        Args:
            calls: the calls of one layer.
        """
        self._ahead = {}
        alike: dict[tuple[str, str], list[Call]] = {}
        for call in calls:
            payload = call.payload_bytes
            if call.kind in _LINES and isinstance(payload, np.ndarray) and self._few:
                alike.setdefault((call.group, _LINES[call.kind]), []).append(call)
        for (group, lines), own in alike.items():
            payload = np.array([call.payload_bytes for call in own], dtype=float)
            some: list[bool] = np.any(payload, axis=-1).tolist()
            once = getattr(self._lines_of(group), lines).seconds(payload) if any(some) else payload
            for call, seconds, sent in zip(own, once, some, strict=True):
                self._ahead[id(call)] = call, np.asarray(seconds * call.repeats) if sent else None

    def seconds(self, call: Call) -> Rows | None:
        """All seconds of a call, hidden or not; None where no row communicates."""
        if id(call) in self._ahead:
            return self._ahead[id(call)][1]
        payload = np.asarray(call.payload_bytes, dtype=float)
        if not payload.any():
            return None
        inside = self._inside(call.group)
        if call.kind == "all_to_all":
            once = self._lines_of(call.group).exchange.seconds(payload)
            if call.once is not None and call.routing is not None:
                from meshwright.kernels.exchange import token_exchange_s  # few plans send tokens once

                rates = self._hardware.exchange_rates
                carried = token_exchange_s(payload, inside=inside, rates=rates, routing=call.routing)
                once = np.where(call.once, carried, once)
            if call.by_level is not None:
                lines = self._lines_of(call.group).exchange
                once = np.where(call.by_level, lines.only("hierarchical").seconds(payload), once)
            if call.leaving is not None:
                rates = self._hardware.rates
                kept = collectives.local_all_to_all_s(payload, call.leaving, inside=inside, rates=rates)
                once = np.where(np.less(call.leaving, 1.0), kept, once)
        elif call.kind in _LINES:
            lines = getattr(self._lines_of(call.group), _LINES[call.kind])
            once = lines.seconds(payload)
        else:
            once = _COLLECTIVES[call.kind](payload, inside=inside, rates=self._hardware.rates)
        return np.asarray(once * call.repeats)

    def members(self, call: Call) -> tuple[int, int]:
        """Ranks of the group of a call in the first row, and the innermost level of links that holds all of them."""
        size = int(np.ravel(self._shapes[call.group][1])[0])
        inside = [float(np.ravel(level)[0]) for level in self._inside(call.group)]
        return size, next(level for level, held in enumerate(inside) if held >= size)

    def _lines_of(self, group: str) -> collectives.GroupLines:
        if group not in self._lines:
            self._lines[group] = collectives.GroupLines(inside=self._inside(group), rates=self._hardware.rates)
        return self._lines[group]

    def _inside(self, group: str) -> tuple[Rows | float, ...]:
        if group not in self._spans:
            stride, size = self._shapes[group]
            self._spans[group] = group_span(stride, size, self._hardware.domain_sizes)
        return self._spans[group]
