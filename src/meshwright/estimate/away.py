"""What lives outside the device, in host memory or on disks: bytes there, and seconds that a step waits for it.

Gradients leave, the host updates main copies and moments, new weights come back. With gradients that leave as backward
makes them (ZeRO-Offload) copies and update overlap, and nothing of them stays on the device but a bucket.
Source: Ren et al. 2021 (arXiv 2101.06840), sections 3-5; Rajbhandari et al. 2021 (arXiv 2104.07857), section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.shapes import Array, Int
from meshwright.specs.workload import Workload
from meshwright.strategies.data import Z1, Z3, ShardingColumns

AWAY_KINDS = ("host", "disk")
"""Where bytes may be besides the device."""
HOST_SHARE = 0.92
"""Share of the host's memory that a job may take; the system and the framework's processes have the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAway:
    """Seconds of an optimizer step of one kind of parameters on the host, per worker."""

    streamed_s: Array
    """Gradients that leave during each backward."""
    copied_s: Array
    """Gradients that leave after the last one."""
    update_s: Array
    """Reading, updating and writing states on the host, disks included, and new weights on their way back."""


def update_away(
    parameters: Array, shards: Int[np.ndarray, "..."], sharding: ShardingColumns, hardware: Hardware, workload: Workload
) -> UpdateAway:
    """Seconds that the optimizer's part on the host takes, before anything of it is hidden.

    The update moves 2 (main copy + moments) + gradient + weight bytes of host memory per parameter, at a device's share
    of what the host's cores reach; states on disks are read and written once a step beside it. Where gradients leave
    as they come, new weights go back while the next ones are updated; else one after the other.

    Args:
        parameters: the parameters of a worker's model-parallel rank.
        shards: ranks that share their states.
        sharding: the data-parallel choice, with what is away.
        hardware: links, memory and disks of the host.
        workload: formats and optimizer.

    Returns:
        Seconds; all arguments broadcast.
    """
    precision = workload.precision
    owned = parameters * np.where(sharding.zero >= Z1, 1.0 / shards, 1.0)
    updated = owned * sharding.offload_optimizer
    if not np.any(updated):
        nothing = np.zeros(1)
        return UpdateAway(streamed_s=nothing, copied_s=nothing, update_s=nothing)
    streamed = owned * sharding.away("gradients")
    link = hardware.host_bytes_per_s
    states = state_bytes_away(workload)
    adam_s = updated * updated_bytes(workload) / hardware.host_update_bytes_per_s
    if np.any(sharding.away("disk")):
        read, write = hardware.disk_rates
        adam_s = np.maximum(adam_s, sharding.away("disk") * updated * states * (1 / read + 1 / write))
    # Weights that live on the host are fetched by the layers that use them.
    back_s = updated * (1.0 - sharding.away("weights")) * precision.gathered_bytes / link
    overlapped = streamed > 0
    return UpdateAway(
        streamed_s=streamed * sharding.reduced_bytes(precision) / link,
        copied_s=(updated - streamed) * precision.bytes_of("gradients") / link,
        update_s=np.where(overlapped, np.maximum(adam_s, back_s), adam_s + back_s),
    )


def updated_bytes(workload: Workload) -> float:
    """Bytes of host memory that the update of a parameter moves: states read and written, gradient in, weight out."""
    precision = workload.precision
    return 2 * state_bytes_away(workload) + precision.bytes_of("gradients") + precision.bytes_of("weights")


def state_bytes_away(workload: Workload) -> float:
    """Bytes per parameter that the optimizer keeps: main copy, the weights themselves where there is none, moments."""
    precision = workload.precision
    main = precision.bytes_of("master") or precision.bytes_of("weights")
    return main + workload.update.each_bytes(precision.bytes_of("moments"))


def states_away(
    parameters: Array, shards: Int[np.ndarray, "..."], sharding: ShardingColumns, workload: Workload
) -> tuple[Array, Array]:
    """Bytes of states in host memory and on disks that belong to one device, activations apart.

    In host memory: main copy, moments and a gradient of every parameter updated there, 16 in bf16 and 14 in fp16; and
    weights. Disks take main copy, moments and weights, and leave the gradients.

    Args:
        parameters: the parameters of a worker's model-parallel rank.
        shards: ranks that share their states.
        sharding: the data-parallel choice, with what is away.
        workload: formats and optimizer.
    """
    precision = workload.precision
    if not (np.any(sharding.offload_optimizer) or np.any(sharding.away("weights"))):
        return np.zeros(1), np.zeros(1)
    if not workload.training:
        updated = np.zeros(1)
    else:
        updated = parameters * np.where(sharding.zero >= Z1, 1.0 / shards, 1.0) * sharding.offload_optimizer
    weights = parameters * np.where(sharding.zero >= Z3, 1.0 / shards, 1.0) * sharding.away("weights")
    moved = updated * state_bytes_away(workload) + weights * precision.bytes_of("weights")
    on_disk = sharding.away("disk")
    if workload.update.paged and workload.training:
        share = np.where(sharding.zero >= Z1, 1.0 / shards, 1.0)
        moved = moved + parameters * share * workload.update.each_bytes(precision.bytes_of("moments"))
    return moved * (1.0 - on_disk) + updated * precision.bytes_of("gradients"), moved * on_disk
