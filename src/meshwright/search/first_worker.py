"""What worker 0 holds of every pair of rows and pipeline shapes, which bounds the memory of whole plans early."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.estimate.layers.states import EXTRA_SECONDS, TENSORS_HELD
from meshwright.estimate.memory import PerParameter, always_bytes
from meshwright.search.shape_tables import ShapeTables
from meshwright.shapes import Float, Int


class FirstWorker:
    """Worker 0 of rows x pipeline shapes: products of the items' costs with the items it holds."""

    def __init__(self, costs: ItemCosts, shapes: ShapeTables, hardware: Hardware) -> None:
        """Compute nothing yet.

        Args:
            costs: the costs of the rows.
            shapes: the shapes whose first workers hold items, and keep those of micro-batches in flight.
            hardware: the hardware whose software takes memory of its own.
        """
        self._costs, self._shapes, self._hardware = costs, shapes, hardware

    @cached_property
    def dense(self) -> Float[np.ndarray, "rows shapes"]:
        """Parameters outside experts."""
        return self._costs.dense_parameters @ self._shapes.first.T

    @cached_property
    def experts(self) -> Float[np.ndarray, "rows shapes"]:
        """Parameters of experts."""
        return self._costs.expert_parameters @ self._shapes.first.T

    @cached_property
    def kept_bytes(self) -> Float[np.ndarray, "rows shapes"]:
        """Bytes that its micro-batches in flight keep."""
        return self._costs.kept_bytes @ self._shapes.alive[:, 0].T

    @cached_property
    def update_s(self) -> list[Float[np.ndarray, "rows shapes"]]:
        """Seconds of its update beyond those of as many parameters of the usual kind."""
        return [getattr(self._costs, name) @ self._shapes.first.T for name in EXTRA_SECONDS]

    @cached_property
    def tensors(self) -> list[Float[np.ndarray, "rows shapes"]]:
        """Parameter tensors it updates, dense ones and those of experts."""
        return [getattr(self._costs, name) @ self._shapes.first.T for name in TENSORS_HELD]

    @cached_property
    def _has_experts(self) -> bool:
        return bool(self._costs.expert_parameters.any())

    def held_bytes(
        self, each: PerParameter, rows: Int[np.ndarray, "pairs"], shapes: Int[np.ndarray, "pairs"]
    ) -> Float[np.ndarray, "choices pairs"]:
        """Lower bound of what it holds of some pairs: its states, as these choices keep them, and its micro-batches.

        Args:
            each: bytes of a parameter, one row per choice.
            rows: the rows of the pairs.
            shapes: the shapes of the pairs.
        """
        dense, experts = each.dense_weights + each.dense_others, each.expert_weights + each.expert_others
        held = dense[:, rows] * self.dense[rows, shapes] + self.kept_bytes[rows, shapes]
        if self._has_experts:
            held = held + experts[:, rows] * self.experts[rows, shapes]
        return self._allocated(held)

    def least_bytes(self, each: PerParameter) -> Float[np.ndarray, "rows shapes"]:
        """The same of every pair, in one choice.

        Args:
            each: the bytes of one choice.
        """
        dense, experts = each.dense_weights + each.dense_others, each.expert_weights + each.expert_others
        return self._allocated(dense[0][:, None] * self.dense + experts[0][:, None] * self.experts + self.kept_bytes)

    def _allocated(self, held: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return held * (1.0 + self._hardware.software.fragmentation) + always_bytes(self._hardware)
