"""Everything chosen: Alpa's two passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.compiler.methods.method import Method, at_least_one, not_devices, too_many_hosts
from meshwright.compiler.planned_devices import Stated, recognised_hosts, stated_hosts
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.stages.search import StageSpace
from meshwright.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(Method):
    """Stages, submeshes, shardings, micro-batches and recomputation, all chosen: Alpa's two passes."""

    num_micro_batches: int = 0
    """0 chooses them."""
    hosts: Stated | None = None
    """What the devices and their links are like: `8xH100`, a cluster, or numbers; without it, the kind of the devices
    where the library knows it, else its unknown accelerator."""
    recompute: bool | None = None
    """Whether every layer runs its forward again in the backward; without it, where that takes less time."""
    most_stages: int = 16

    def __post_init__(self) -> None:
        wrong = [at_least_one("most_stages", self.most_stages)] if self.most_stages < 1 else []
        if self.num_micro_batches < 0:
            wrong.append(at_least_one("num_micro_batches", self.num_micro_batches))
        wrong += not_devices(self.devices) or too_many_hosts(self.hosts, self.devices)
        if wrong:
            raise InputError(wrong)

    def on(self, devices: Sequence[Any]) -> Hosts | Islands:
        """Hosts to plan for.

        Args:
            devices: the devices of JAX.
        """
        return recognised_hosts(devices) if self.hosts is None else stated_hosts(self.hosts)

    @property
    def space(self) -> StageSpace:
        """What is tried. Gradients of operators that are split one by one are reduced with each micro-batch."""
        return StageSpace(
            micro_batches=(self.num_micro_batches,) if self.num_micro_batches else None,
            recompute=(True, False) if self.recompute is None else (self.recompute,),
            reductions="micro-batch",
            most_stages=self.most_stages,
        )
