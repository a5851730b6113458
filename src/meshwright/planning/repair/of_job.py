"""Changes of a job that make it fit: same devices first, then more or larger ones, then other training."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from meshwright.budget import spent
from meshwright.errors import MeshwrightError
from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.away_rules import host_problems, update_problems
from meshwright.estimate.result import StepEstimate
from meshwright.fields.job import DEFAULT_TOKENS_PER_STEP, TOKENS_PER_DEVICE
from meshwright.formats.cluster import node_group
from meshwright.library.devices import larger_devices
from meshwright.planning.fewer_nodes import first_nodes, is_round
from meshwright.planning.offload import IN_MEMORY, ON_DISKS, offload_text, spelled
from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.repair.leanest import Leanest
from meshwright.planning.repair.of_tiles import in_tiles
from meshwright.planning.repair.of_tuning import lighter
from meshwright.records import Record
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec, NodeGroup
from meshwright.specs.device import DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.row import default_schedule, offload_of
from meshwright.specs.tuning import STORED_BYTES
from meshwright.specs.workload import Workload
from meshwright.units import GIB, GIGA, gib, of_capacity, percent, seconds, significant

_SEQUENCES = re.compile(r" --gbs \d+")
MOST_DEVICES = 65_536
LARGER_DEVICES = 5
SHORTEST_SEQ = 512
MOST_TRIED_DEVICES = 16
"""Up to so many, everything that may be away is tried."""
USUAL_BATCH = 0.05
"""How far a batch that nobody gave may be from the usual tokens of a step, as it is rounded."""
HARDLY_SLOWER = 1.1
"""Step over the quickest for which less memory of the host is worth it."""
AS_QUICK = 0.9
"""Share of the peak above which another device is as quick."""
MUCH_SLOWER = 0.5
MOST_HOST_BYTES = 4.4e12
"""Memory of one host beyond which nobody is told to use it: 32 modules of 128 GiB, all that two sockets take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRepair(Record):
    """A change that makes the job fit, with what it would then cost."""

    option: str
    """What to say: `--gpus 32xH100`."""
    text: str
    plan: str
    devices: int
    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    changes_training: bool = False
    """Whether the optimizer sees other steps than were asked for."""

    def beside(self, tokens_given: bool) -> JobRepair:
        """The same without its batch option where the batch is given in tokens, which follows devices and lengths."""
        return replace(self, option=_SEQUENCES.sub("", self.option)) if tokens_given else self

    def line(self) -> str:
        """One line for people."""
        changed = "; changes training results" if self.changes_training else ""
        peak = of_capacity(self.peak_memory_bytes, self.capacity_bytes)
        return f"{self.option}: {self.text}, {seconds(self.step_time_s)} per step, {peak} ({self.plan}){changed}"


Repairs = Iterator[JobRepair]
Pins = tuple[tuple[str, tuple[object, ...]], ...]
"""Axes of plans, and the values that each is held to."""


def repairs_of_job(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    freed: Mapping[Pins, SpaceFor],
    tried: list[Leanest],
) -> Repairs:
    """Changes that make it fit: same devices first, then more or larger ones, then other training."""
    lean = tried[0] if tried else None
    yield from _without_pins(model, cluster, workload, freed)
    yield from _larger_host(model, cluster, workload, space_for)
    yield from offload_repairs(model, cluster, workload, space_for)
    tiled = in_tiles(tried, model, cluster, workload)
    if tiled is not None:
        option, text, found = tiled
        yield _repair(option, text, found.row.format(), found.estimate, cluster)
    yield from _more_devices(model, cluster, workload, space_for)
    yield from _larger_memory(model, cluster, workload, space_for, lean)
    yield from _adapters(model, cluster, workload, space_for)
    yield from _other_optimizer(model, cluster, workload, space_for)
    if lean is None or lean.length_bytes > lean.over_bytes:
        yield from _shorter(model, cluster, workload, space_for)


def _without_pins(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, freed: Mapping[Pins, SpaceFor]
) -> Repairs:
    """The pin without which something fits, or all of them where it takes more than one."""
    for pins, space_for in freed.items():
        found = _searched(model, cluster, workload, space_for)
        if found:
            said = ", ".join(f"{axis}={'|'.join(map(str, values))}" for axis, values in pins)
            many = "pins" if len(pins) > 1 else "pin"
            yield _repair(f"free the {many} {said}", "the search chooses", *found, cluster)
            return


def offload_repairs(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The quickest plan with states in host memory, and the quickest with states on disks where the host states them.

    On more devices than a few, the first that fits with as little as possible away.
    """
    group = cluster.groups[0]
    asked = space_for(cluster).pinned("offload") or ()
    if asked == ("none",):
        return
    for tokens in (IN_MEMORY, ON_DISKS):
        tried: list[tuple[str, str, StepEstimate]] = []
        for token in tokens:
            away = offload_of(token)
            if token in asked:
                continue
            if any(host_problems(away, group)) or any(update_problems(away, workload)):
                continue
            found = _searched(model, cluster, workload, partial(_with_offload, space_for, token))
            if found and _host_bytes(found[1], group) <= MOST_HOST_BYTES:
                tried.append((token, *found))
                if cluster.devices > MOST_TRIED_DEVICES:
                    break
        if tried:
            token, plan, estimate = _least_away(tried, group)
            text = f"{offload_text(token)}{_on_host(estimate, group)}"
            yield _repair(spelled(token), text, plan, estimate, cluster)


def _larger_host(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The host memory that is enough for what is asked to be away, where the host states less."""
    group = cluster.groups[0]
    asked = [str(value) for value in space_for(cluster).pinned("offload") or () if value != "none"]
    if group.host.memory_bytes is None or not asked:
        return
    roomy = replace(cluster, groups=(replace(group, host=replace(group.host, memory_bytes=None)),))
    tried = []
    for token in asked:
        if any(host_problems(offload_of(token), group)) or any(update_problems(offload_of(token), workload)):
            continue
        found = _searched(model, roomy, workload, partial(_with_offload, space_for, token))
        if found and group.host.memory_bytes < _host_bytes(found[1], group) <= MOST_HOST_BYTES:
            tried.append((token, *found))
    if tried:
        token, plan, estimate = _least_away(tried, group)
        size = math.ceil(_host_bytes(estimate, group) / GIGA)
        yield _repair(f"--host-ram {size}GB", f"{offload_text(token)}, which takes so much", plan, estimate, cluster)


def _with_offload(space_for: SpaceFor, token: str, part: ClusterSpec) -> Space:
    """The space of a part with one value of what is away."""
    own = space_for(part)
    return replace(own, pins=(*(pin for pin in own.pins if pin[0] != "offload"), ("offload", (token,))))


def _least_away(tried: list[tuple[str, str, StepEstimate]], group: NodeGroup) -> tuple[str, str, StepEstimate]:
    """The quickest that leaves the usual reserve; of those hardly slower the one that asks least of the host."""
    free = [one for one in tried if one[2].fits == "yes"] or tried
    limit_s = HARDLY_SLOWER * min(one[2].step_time_s for one in free)
    near = [one for one in free if one[2].step_time_s <= limit_s]
    return min(near, key=lambda one: (_host_bytes(one[2], group), one[2].step_time_s))


def _on_host(estimate: StepEstimate, group: NodeGroup) -> str:
    """How much memory a host needs for it, where it does not say how much it has."""
    if group.host.memory_bytes is not None:
        return ""
    need = _host_bytes(estimate, group)
    return f" (a host with {significant(need / GIGA)} GB)" if need else ""


def _host_bytes(estimate: StepEstimate, group: NodeGroup) -> float:
    """Memory that a host must have."""
    return max(stage.host_bytes for stage in estimate.stages) * group.devices_per_node / HOST_SHARE


def _more_devices(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The smallest cluster of the same nodes (of a round count) that fits: doubled until it does, then halved back."""
    group = cluster.groups[0]
    usual = group.device.node.devices_per_node if group.device.node else group.devices_per_node

    def sized(devices: int) -> ClusterSpec:
        per_node = min(devices, max(group.devices_per_node, usual))
        nodes = -(-devices // per_node)
        spec = node_group(name=group.name, device=group.device, nodes=nodes, devices_per_node=per_node, host=group.host)
        if group.devices_per_node == per_node and len(group.domains) == len(spec.domains):
            return first_nodes(cluster, nodes=nodes, per_node=per_node)
        return ClusterSpec(name=f"{nodes * per_node}x{group.device.name}", groups=(spec,))

    def fits(devices: int) -> tuple[str, StepEstimate] | None:
        return _searched(model, sized(devices), workload, space_for)

    def whole(devices: int) -> int:
        """Devices that the nodes of such a cluster really have."""
        return sized(devices).devices

    low, high = cluster.devices, whole(cluster.devices * 2)
    best = None
    while high <= min(MOST_DEVICES, MAX_DEVICES, cluster.devices * 256):
        best = fits(high)
        if best:
            break
        low, high = high, whole(high * 2)
    if best is None:
        return
    between = [count for count in range(low + 1, high) if whole(count) == count and is_round(count)]
    while between:
        middle = between[len(between) // 2]
        tried = fits(middle)
        if tried:
            best, high = tried, middle
        between = [count for count in between if (count < middle if tried else count > middle)]
    where = sized(high)
    plan, estimate = best
    batch = same_batch(workload, cluster.devices, where.devices)
    yield _repair(f"--gpus {where.name}{batch}", f"{where.devices:,} devices", plan, estimate, where)


def same_batch(workload: Workload, before: int, after: int) -> str:
    """What keeps the batch where it is the usual one of the devices and would follow them: ` --gbs 16`.

    Args:
        workload: the step.
        before: devices that it was asked for.
        after: devices of the repair.
    """
    usual, other = (min(DEFAULT_TOKENS_PER_STEP, TOKENS_PER_DEVICE * devices) for devices in (before, after))
    near = abs(workload.global_batch * workload.seq_len / usual - 1) <= USUAL_BATCH
    return f" --gbs {workload.global_batch}" if near and usual != other else ""


def _larger_memory(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor, lean: Leanest | None
) -> Repairs:
    """The same number of devices of the kind with the least memory that is enough; much slower kinds come last."""
    group = cluster.groups[0]
    needed = max(1.05 * group.device.memory_bytes, 0.97 * lean.estimate.fullest.peak_memory_bytes if lean else 0.0)
    known = larger_devices(needed, group.device.vendor, workload.calibration)
    larger = [device for device in known if device.node]
    tried = 0

    def order(device: DeviceSpec) -> tuple[bool, int, bool, str]:
        unlike = device.node is None or device.node.devices_per_node != group.devices_per_node
        slow = min(_paces(device, group.device).values()) < MUCH_SLOWER
        return slow, round(device.memory_bytes / GIB), unlike, device.name

    for device in sorted(larger, key=order):
        usual = device.node.devices_per_node if device.node else 1
        per_node = min(cluster.devices, usual)
        if cluster.devices % per_node or tried == LARGER_DEVICES:
            continue
        nodes = cluster.devices // per_node
        spec = node_group(name=device.name, device=device, nodes=nodes, devices_per_node=per_node, host=group.host)
        where = ClusterSpec(name=f"{cluster.devices}x{device.name}", groups=(spec,))
        tried += 1
        found = _searched(model, where, workload, space_for)
        if found:
            yield _repair(
                f"--gpus {where.name}", f"{gib(device.memory_bytes)} each{_slower(device, group)}", *found, where
            )
            return


def _slower(device: DeviceSpec, group: NodeGroup) -> str:
    """How much slower another device is, where it is: `, each at 12% of the peak of H100`."""
    paces = _paces(device, group.device)
    what, share = min(paces.items(), key=lambda pace: pace[1])
    return "" if share >= AS_QUICK else f", each at {percent(share)} of the {what} of {group.device.name}"


def _paces(device: DeviceSpec, other: DeviceSpec) -> dict[str, float]:
    """Peak and memory bandwidth over those of another device."""
    bandwidth = device.memory_bandwidth_bytes_per_s / other.memory_bandwidth_bytes_per_s
    return {"peak": _peak(device) / _peak(other), "memory bandwidth": bandwidth}


def _peak(device: DeviceSpec) -> float:
    """In 16 bits, or the highest that it has."""
    return device.peak("bf16") or device.peak("fp16") or max(peak for _, peak in device.peak_flop_per_s)


def _other_optimizer(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """An optimizer that keeps fewer bytes of most parameters."""
    moment = workload.precision.bytes_of("moments")
    kept = workload.update.least_bytes(moment)
    for name in ("adamw-8bit", "muon", "lion"):
        other = optimizer_named(name)
        stated = other.own_formats and workload.precision.moments != "fp32"
        if other.least_bytes(moment) < kept and not stated:
            found = _searched(model, cluster, replace(workload, optimizer=name), space_for)
            if found:
                yield _repair(f"--optimizer {name}", other.summary, *found, cluster, changes_training=True)
            return


def _adapters(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """Adapters beside frozen weights on the same devices, with weights in host memory or on more devices if need be."""
    tried = list(lighter(model))
    for option, text, tuned in tried:
        found = _searched(tuned, cluster, workload, space_for)
        if found:
            yield _repair(f"{option}", text, *found, cluster, changes_training=True)
            return
    for option, text, tuned in tried[-1:]:
        both = (
            offload_repairs(tuned, cluster, workload, space_for),
            _more_devices(tuned, cluster, workload, space_for),
        )
        for one in itertools.chain(*both):
            said = f"{option} {one.option}" if one.option.startswith("-") else f"{option} with {one.option}"
            yield replace(one, option=said, text=f"{text}, {one.text}", changes_training=True)


def _shorter(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """Shorter sequences, as many tokens a step; those of given lengths are as long as they are."""
    if workload.sequence_lengths:
        return
    seq, batch = workload.seq_len, workload.global_batch
    while seq % 2 == 0 and seq // 2 >= SHORTEST_SEQ:
        seq, batch = seq // 2, batch * 2
        found = _searched(model, cluster, replace(workload, seq_len=seq, global_batch=batch), space_for)
        if found:
            option = f"--seq {seq} --gbs {batch}"
            yield _repair(option, "shorter sequences, the same tokens per step", *found, cluster, changes_training=True)
            return


def _searched(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor
) -> tuple[str, StepEstimate] | None:
    """The best 1F1B plan of another cluster or workload, None if nothing fits there either.

    No schedule keeps less alive at the same speed, so what fits at all fits with 1F1B; chunks may make it quicker.
    """
    if spent():
        return None
    try:
        space = space_for(cluster)
        if _weights_alone(model, workload, space) > cluster.devices * cluster.groups[0].device.memory_bytes:
            return None
        result = search(model, cluster, workload, _quick(space), top=1, refine=False)
    except MeshwrightError:
        # A pin or a number format that this cluster or step does not allow: no repair.
        return None
    if not result.plans:
        return None
    found = result.plans[0]
    return found.row.format() if found.row else "", found.estimate


def _weights_alone(model: ModelSpec, workload: Workload, space: Space) -> float:
    """Bytes of weights on all devices together in any plan, each weight once: more than there is needs no search."""
    lora = model.tuning.lora if model.tuning else None
    each = min(
        workload.precision.bytes_of("weights"), STORED_BYTES.get(lora.base or "", math.inf) if lora else math.inf
    )
    away = max(
        (offload_of(str(token)).weights for token in space.pinned("offload") or () if token != "none"), default=0.0
    )
    return model.parameters * each * (1.0 - away)


def _quick(space: Space) -> Space:
    """The space without interleaving, unless schedules or chunks are pinned."""
    if space.pinned("schedule") is not None or space.pinned("vpp") is not None:
        return space
    return replace(space, pins=(*space.pins, ("schedule", (default_schedule(1),))))


def _repair(
    option: str, text: str, plan: str, estimate: StepEstimate, cluster: ClusterSpec, *, changes_training: bool = False
) -> JobRepair:
    full = estimate.fullest
    tight = ", fits tightly" if estimate.fits == "tight" else ""
    return JobRepair(
        option=option,
        text=text + tight,
        plan=plan,
        devices=cluster.devices,
        step_time_s=estimate.step_time_s,
        peak_memory_bytes=full.peak_memory_bytes,
        capacity_bytes=full.capacity_bytes,
        changes_training=changes_training,
    )
