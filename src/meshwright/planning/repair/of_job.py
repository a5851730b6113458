"""Changes of a job that make it fit: same devices first, then more or larger ones, then other training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from meshwright.errors import UnsupportedError
from meshwright.formats.cluster import node_group
from meshwright.library.devices import larger_devices
from meshwright.planning.fewer_nodes import first_nodes, is_round
from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.question.batch import usual_tokens
from meshwright.planning.repair.as_run import as_run
from meshwright.planning.repair.job_repair import FittingPlan, JobRepair, Pins, Repairs, best_plan, job_repair
from meshwright.planning.repair.leanest import Leanest
from meshwright.planning.repair.of_lengths import shorter, shorter_by_unsloth
from meshwright.planning.repair.of_offload import larger_host, offload_repairs
from meshwright.planning.repair.of_tiles import in_pieces_beside_adapters, in_tiles, pieces_option
from meshwright.planning.repair.of_tuning import Otherwise, lighter
from meshwright.planning.repair.of_unsloth import by_unsloth
from meshwright.planning.repair.trained import as_trained, trained_by_some
from meshwright.planning.run_by import few, run_by
from meshwright.search.space import Space
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec, NodeGroup
from meshwright.specs.device import DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.workload import Workload
from meshwright.units import GIB, gib, percent

MOST_DEVICES = 65_536
LARGER_DEVICES = 5
USUAL_BATCH = 0.05
"""How far a batch that nobody gave may be from the usual tokens of a step, as it is rounded."""
AS_QUICK = 0.9
"""Share of the peak above which another device is as quick."""
MUCH_SLOWER = 0.5
WIDE = ("bf16", "fp16", "tf32", "fp32")
"""Compute formats in which products read the weights as they lie."""


def repairs_of_job(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    freed: Mapping[Pins, SpaceFor],
    tried: list[Leanest],
    *,
    software_given: bool = True,
    otherwise: Otherwise | None = None,
) -> Repairs:
    """Changes that make it fit: same devices first, then more or larger ones, then other training; two of the same
    devices at once where no single one is enough."""
    otherwise = otherwise or Otherwise(model=model, space_for=space_for)
    as_it_is = False
    single = _single_changes(
        model, cluster, workload, space_for, freed, tried, software_given=software_given, otherwise=otherwise
    )
    for one in single:
        as_it_is = as_it_is or (one.found is not None and one.found.job.cluster == cluster and one.run_by != ())
        yield one
    if not (as_it_is or software_given):
        yield from shorter_by_unsloth(otherwise.model, cluster, workload, otherwise.space_for)


def _single_changes(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    freed: Mapping[Pins, SpaceFor],
    tried: list[Leanest],
    *,
    software_given: bool,
    otherwise: Otherwise,
) -> Repairs:
    """Each change by itself, or beside adapters."""
    lean = tried[0] if tried else None
    yield from _without_pins(model, cluster, workload, freed)
    yield from larger_host(model, cluster, workload, space_for)
    yield from offload_repairs(model, cluster, workload, space_for)
    tiled = [] if software_given else [*_by_liger(otherwise, cluster, workload)]
    yield from tiled or _in_tiles(tried, model, cluster, workload)
    if not software_given:
        yield from by_unsloth(model, cluster, workload, space_for)
    run = model.lora is not None and few(cluster)  # trainers have more devices in other ways than kernels alone would
    more = [*_more_devices(model, cluster, workload, space_for, run=run)]
    more = more or [*_more_devices(model, cluster, workload, space_for)]
    yield from more
    yield from _larger_memory(model, cluster, workload, space_for, lean)
    lighter_ones = list(lighter(otherwise.model, workload, software_given=software_given))
    enough = min((one.devices for one in more), default=math.inf)
    yield from _adapters(lighter_ones, cluster, otherwise.space_for, enough, software_given=software_given)
    smaller = [*_other_optimizer(model, cluster, workload, space_for)]
    yield from smaller
    if not any(software_given or as_run(one).run_by != () for one in smaller):  # no framework has the memory for it
        yield from _in_16_bits(model, cluster, workload, space_for)
    yield from _in_wider_products(otherwise, cluster, workload, software_given=software_given)
    if lean is None or lean.length_bytes > lean.over_bytes:
        yield from shorter(model, cluster, workload, space_for)


def _without_pins(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, freed: Mapping[Pins, SpaceFor]
) -> Repairs:
    """The pin without which something fits, or all of them where it takes more than one."""
    for pins, space_for in freed.items():
        found = best_plan(model, cluster, workload, space_for)
        if found:
            said = ", ".join(f"{axis}={'|'.join(map(str, values))}" for axis, values in pins)
            many = "pins" if len(pins) > 1 else "pin"
            yield job_repair(f"free the {many} {said}", "the search chooses", found)
            return


def _in_tiles(tried: list[Leanest], model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Repairs:
    """Logits, and if need be feed-forward parts, in pieces."""
    tiled = in_tiles(tried, model, cluster, workload)
    if tiled is not None:
        yield job_repair(*tiled)


def _by_liger(otherwise: Otherwise, cluster: ClusterSpec, workload: Workload) -> Repairs:
    """Adapters as PEFT makes them, with logits and loss in Liger's pieces."""
    step = in_pieces_beside_adapters(otherwise.model, workload)
    if step is None or not few(cluster):
        return
    trained = trained_by_some(otherwise.space_for, otherwise.model, step)

    def of_whole_heads(part: ClusterSpec) -> Space:
        space = trained(part)
        return space if space.pinned("tp") else replace(space, pins=(*space.pins, ("tp", (1,))))

    if (found := best_plan(otherwise.model, cluster, step, of_whole_heads)) is not None:
        yield job_repair(*pieces_option(step), found)


def _more_devices(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor, *, run: bool = False
) -> Repairs:
    """The smallest cluster of the same nodes (of a round count) that fits: doubled until it does, then halved back;
    where `run` asks for it, the smallest on which a framework runs what fits."""
    group = cluster.groups[0]
    usual = group.device.node.devices_per_node if group.device.node else group.devices_per_node

    def sized(devices: int) -> ClusterSpec:
        per_node = min(devices, max(group.devices_per_node, usual))
        nodes = -(-devices // per_node)
        spec = node_group(name=group.name, device=group.device, nodes=nodes, devices_per_node=per_node, host=group.host)
        if group.devices_per_node == per_node and len(group.domains) == len(spec.domains):
            return first_nodes(cluster, nodes=nodes, per_node=per_node)
        return ClusterSpec(name=f"{nodes * per_node}x{group.device.name}", groups=(spec,))

    def fits(devices: int) -> FittingPlan | None:
        where = sized(devices)
        found = best_plan(model, where, workload, space_for)
        return None if run and found and not run_by(found.job) else found

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
    batch = same_batch(workload, cluster.devices, where.devices)
    yield job_repair(f"--gpus {where.name}{batch}", f"{where.devices:,} devices", best)


def same_batch(workload: Workload, before: int, after: int) -> str:
    """What keeps the batch where it is the usual one of the devices and would follow them: ` --gbs 16`.

    Args:
        workload: the step.
        before: devices that it was asked for.
        after: devices of the repair.
    """
    usual, other = (usual_tokens(devices) for devices in (before, after))
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
        found = best_plan(model, where, workload, space_for)
        if found:
            yield job_repair(f"--gpus {where.name}", f"{gib(device.memory_bytes)} each{_slower(device, group)}", found)
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
    """Peak in 16 bits, or the highest that the device has."""
    return device.peak("bf16") or device.peak("fp16") or max(peak for _, peak in device.peak_flop_per_s)


def _other_optimizer(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """An optimizer that keeps fewer bytes of most parameters."""
    moment = workload.precision.bytes_of("moments")
    kept = workload.update.least_bytes(moment)
    for names in (("adamw-8bit", "paged-adamw-8bit"), ("muon",), ("lion",)):
        other = optimizer_named(names[0])
        own_format = other.own_formats and workload.precision.moments != "fp32"
        if other.least_bytes(moment) >= kept or own_format:
            continue
        for name in names:
            if name.startswith("paged") and any(group.device.unified_memory for group in cluster.groups):
                continue  # there is no other memory that pages could lie in
            found = best_plan(model, cluster, replace(workload, optimizer=name), space_for)
            if found:
                summary = optimizer_named(name).summary
                yield job_repair(f"--optimizer {name}", summary, found, changes_training=True)
                return
        return


def _in_16_bits(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """All weights trained in the 16 bits that they load in, as fine-tunes of few devices often are; then with moments
    in 8 bits, too."""
    if not few(cluster) or model.lora is not None or workload.precision.name != PRECISIONS["bf16"].name:
        return
    given, said = {"main_copy": "none", "grad_dtype": "bf16"}, "--main-copy none --grad-dtype bf16"
    kinds: tuple[tuple[str, dict[str, str], str, str], ...] = (
        ("", {"moment_dtype": "bf16"}, f"{said} --moment-dtype bf16", "weights, gradients and moments in bf16 alone"),
        ("adamw-8bit", {}, f"--optimizer adamw-8bit {said}", "weights and gradients in bf16 alone, moments in 8 bits"),
    )
    if workload.update.own_formats:  # its moments have a format of their own, whatever is stated
        kinds = (("", {}, said, "weights and gradients in bf16 alone"),)
    for optimizer, more, option, text in kinds:
        precision = stated(PRECISIONS["bf16"], given | more)
        step = replace(workload, precision=precision, optimizer=optimizer or workload.optimizer)
        found = best_plan(model, cluster, step, space_for)
        if found:
            yield job_repair(option, text, found, changes_training=True)
            return


def _in_wider_products(
    otherwise: Otherwise, cluster: ClusterSpec, workload: Workload, *, software_given: bool
) -> Repairs:
    """Products in bf16 where those in fewer bits keep copies of the weights, if need be beside adapters."""
    if workload.precision.compute in WIDE or not few(cluster):
        return
    option, text = "--dtype bf16", "products in 16 bits, without copies of the weights in fewer"
    step = replace(workload, precision=PRECISIONS["bf16"])
    found = best_plan(otherwise.model, cluster, step, otherwise.space_for)
    plain = job_repair(option, text, found) if found else None
    if plain is not None and (software_given or as_run(plain).run_by != ()):
        yield plain
        return
    own = otherwise.space_for
    if otherwise.model.lora is not None and not software_given:
        same = (offload_repairs(otherwise.model, cluster, step, own), _by_liger(otherwise, cluster, step))
        yield from _beside(option, text, itertools.chain(*same))
    tried = [*lighter(otherwise.model, step, software_given=software_given)]
    yield from _beside(option, text, _adapters(tried, cluster, own, math.inf, software_given=software_given))


def _adapters(
    tried: list[tuple[str, str, ModelSpec, Workload]],
    cluster: ClusterSpec,
    space_for: SpaceFor,
    enough: float,
    *,
    software_given: bool,
) -> Repairs:
    """Adapters beside frozen weights on the same devices, if need be with the loss in pieces, weights in host memory or
    on more devices, of which what was asked for needs `enough`; in plans that a trainer runs."""
    beside: dict[str, list[Repairs]] = {}
    made = (
        (option, text, model, workload)
        for option, text, tuned, workload in tried
        for model in as_trained(tuned, workload, software_given=software_given)
    )
    for option, text, tuned, workload in made:
        trained = trained_by_some(space_for, tuned, workload, software_given=software_given)
        try:
            found = best_plan(tuned, cluster, workload, trained)
        except UnsupportedError:  # no trainer makes these
            continue
        if found:
            yield job_repair(option, text, found, changes_training=True)
            return
        pieces = () if software_given else _loss_in_pieces(tuned, workload, cluster, space_for)
        more = itertools.chain(pieces, _elsewhere(tuned, workload, cluster, trained))
        beside.setdefault(option, []).append(_beside(option, text, more))
    unrun: list[JobRepair] = []
    for repairs in [*beside.values()][-1] if beside else ():
        fewer = [one for one in repairs if one.devices < enough]
        if any(software_given or as_run(one).run_by != () for one in fewer):
            yield from fewer
            return
        unrun = unrun or fewer
    yield from unrun


def _loss_in_pieces(tuned: ModelSpec, workload: Workload, cluster: ClusterSpec, space_for: SpaceFor) -> Repairs:
    """Adapters with logits and loss in pieces, as Liger and as Unsloth make them."""
    yield from _by_liger(Otherwise(model=tuned, space_for=space_for), cluster, workload)
    yield from by_unsloth(tuned, cluster, workload, space_for)


def _elsewhere(tuned: ModelSpec, workload: Workload, cluster: ClusterSpec, space_for: SpaceFor) -> Repairs:
    """Adapters with weights in host memory, and on more devices; none where no trainer has them."""
    with suppress(UnsupportedError):
        yield from offload_repairs(tuned, cluster, workload, space_for)
        yield from _more_devices(tuned, cluster, workload, space_for)


def _beside(option: str, text: str, repairs: Repairs) -> Repairs:
    """Repairs of another training, each with what says that training."""
    for one in repairs:
        said = f"{option} {one.option}" if one.option.startswith("-") else f"{option} with {one.option}"
        yield replace(one, option=said, text=f"{text}, {one.text}", changes_training=True)
