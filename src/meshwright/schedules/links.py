"""What messages take on the links between workers: latency, and bytes over bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.schedules.kinds import Placement
from meshwright.schedules.times import Times
from meshwright.shapes import Float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Links:
    """The links between every two workers; each direction is a channel of its own."""

    latency_s: Float[np.ndarray, "workers workers"]
    """Latency from the worker of the row to that of the column."""
    bytes_per_s: Float[np.ndarray, "workers workers"]
    """Bandwidth from the worker of the row to that of the column; infinite where messages only have a latency."""

    def times(
        self,
        times: Times,
        placement: Placement,
        activation_bytes: Float[np.ndarray, "workers chunks"] | float,
        gradient_bytes: Float[np.ndarray, "workers chunks"] | float | None = None,
    ) -> Times:
        """The times with the transfers of these links: latency, and sending seconds = bytes / bandwidth.

        Args:
            times: the times of the tasks.
            placement: the placement of the virtual stages.
            activation_bytes: what each stage sends to the next one, by its worker and chunk.
            gradient_bytes: what it gets back; None: as much.

        Raises:
            InputError: links of another number of workers, a negative latency, or a bandwidth that is not positive.
        """
        problems = self._problems(placement.p)
        if problems:
            raise InputError(problems)
        shape = placement.p, placement.v
        latency_s, gradient_latency_s, sending_s, gradient_sending_s = np.zeros((4, *shape))
        crosses = np.nonzero(placement.following >= 0)[0]
        here, there = placement.worker[crosses], placement.worker[placement.following[crosses]]
        cell = here, placement.chunk[crosses]
        forward = np.broadcast_to(np.asarray(activation_bytes, float), shape)[cell]
        backward = (
            forward if gradient_bytes is None else np.broadcast_to(np.asarray(gradient_bytes, float), shape)[cell]
        )
        latency_s[cell], gradient_latency_s[cell] = self.latency_s[here, there], self.latency_s[there, here]
        sending_s[cell] = forward / self.bytes_per_s[here, there]
        gradient_sending_s[cell] = backward / self.bytes_per_s[there, here]
        return replace(
            times,
            transfer_s=latency_s,
            sending_s=sending_s,
            gradient_transfer_s=gradient_latency_s,
            gradient_sending_s=gradient_sending_s,
        )

    def _problems(self, p: int) -> list[Problem]:
        found = []
        for name, column in (("latency_s", self.latency_s), ("bytes_per_s", self.bytes_per_s)):
            if column.shape != (p, p):
                why = f"the links of {p} workers are an array of shape {(p, p)}"
                fix = "one row and one column per worker"
                found.append(Problem(what=f"{name} has shape {column.shape}", why=why, fix=fix, field=name))
        if not (np.isfinite(self.latency_s).all() and (self.latency_s >= 0).all()):
            why = "a latency is at least 0 s and finite"
            found.append(
                Problem(what="latency_s has wrong values", why=why, fix="seconds, such as 5e-6", field="latency_s")
            )
        if not (self.bytes_per_s > 0).all():
            why = "a bandwidth is above 0 B/s"
            fix = "bytes per second, such as 50e9, or infinity"
            found.append(Problem(what="bytes_per_s has wrong values", why=why, fix=fix, field="bytes_per_s"))
        return found
