"""Mobius: more stages than workers, paged from host memory one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import InputError, Problem
from meshwright.schedules.breadth_first import BreadthFirst
from meshwright.schedules.sharding import with_paging
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Mobius(BreadthFirst):
    """The order of breadth-first with v stages per worker, of which the current and the next one are on the device.

    A stage is uploaded while the one before it computes, runs all m micro-batches, and is dropped; backwards visit the
    stages in reverse. The table holds the computation only: its times are those of a step whose uploads all hide, which
    `uploads_hide` decides. `meshwright.schedules.stage_paging` cuts a model into its stages.
    Source: Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers", ASPLOS 2023.
    """

    name = "mobius"
    not_in_plans = (
        "its stages take turns on the device, paged from host memory one after the other, but plans price copies to "
        "and from the host layer by layer"
    )
    aliases = ("paged-breadth-first",)
    title = "Mobius: stages paged from host memory"
    source = "Feng et al., Mobius, ASPLOS 2023"
    traffic = "host memory to devices and back: the weights of every stage twice and its gradients once per step"

    def paged_table(self, p: int, m: int, v: int) -> ScheduleTable:
        """The table with its uploads: RELOAD_W of a stage while the one before it computes, OFFLOAD_W behind its run.

        Args:
            p: workers.
            m: micro-batches.
            v: stages per worker.
        """
        return with_paging(self.table(p, m, v), ahead=m)

    def host_bytes(self, weight_bytes: float, gradient_bytes: float) -> float:
        """Bytes between host and all devices per step: 2 * weights + gradients.

        Args:
            weight_bytes: of the whole model.
            gradient_bytes: likewise.
        """
        return 2 * weight_bytes + gradient_bytes

    def uploads_hide(self, m: int, v: int, forward_s: float, stage_bytes: float, link_bytes_per_s: float) -> bool:
        """Whether a stage is uploaded while another one runs forward: bytes / bandwidth <= m * forward_s / v.

        Args:
            m: micro-batches.
            v: stages per worker.
            forward_s: of one micro-batch on a full worker share.
            stage_bytes: weights of one stage.
            link_bytes_per_s: what the host gives one device while its neighbours upload too.
        """
        return stage_bytes / link_bytes_per_s <= m * forward_s / v

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if v > 1:
            return []
        why = "mobius pages stages, so a worker has two or more"
        return [Problem(what=f"mobius: v = {v}", why=why, fix="v = 2, or schedule gpipe", field="v")]


def cross_mapping(root_of: Sequence[int]) -> tuple[int, ...]:
    """Devices in the order in which they take consecutive stages, so that neighbours share a root complex seldom.

    Stages that follow each other upload at nearly the same time: the next device is the one with the smallest sum of
    1 / distance over the devices of its root complex placed before, the lower number of equals.

    Args:
        root_of: root complex of each device.

    Raises:
        InputError: no device.
    """
    if not root_of:
        raise InputError(Problem(what="root_of is empty", why="stages need a device", field="root_of"))
    left = list(range(len(root_of)))
    order: list[int] = []
    while left:

        def cost(device: int) -> tuple[float, int, int]:
            near = [1 / (len(order) - at) for at, other in enumerate(order) if root_of[other] == root_of[device]]
            waiting = sum(root_of[other] == root_of[device] for other in left)
            return sum(near), -waiting, device

        order.append(min(left, key=cost))
        left.remove(order[-1])
    return tuple(order)


def contention(root_of: Sequence[int], order: Sequence[int]) -> float:
    """Sum over pairs of devices on one root complex of 1 / distance of their stages.

    Args:
        root_of: root complex of each device.
        order: device of each stage.
    """
    return sum(1 / (j - i) for j in range(len(order)) for i in range(j) if root_of[order[i]] == root_of[order[j]])
