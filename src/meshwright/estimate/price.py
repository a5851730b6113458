"""One plan in, one estimate out: the same kernels and composition the search uses, on the plan's own strategies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.hardware import Hardware, at_pace, hardware_of
from meshwright.estimate.memory import MEMORY_KINDS
from meshwright.estimate.needed_flop import step_flop
from meshwright.estimate.pricer import PlanPricer, RunPlan, micro_batch_of, strategy_of_worker
from meshwright.estimate.ranges import kind_of_run, step_range
from meshwright.estimate.result import BASIS_ORDER, LinkTraffic, StageEstimate, StepEstimate
from meshwright.estimate.rows import strategy_columns as strategy_columns
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.estimate.sequences import filling_of, tokens_of_step
from meshwright.estimate.site import Site, Sites
from meshwright.estimate.step import StepColumns
from meshwright.library.calibration import calibration
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.device import Basis
from meshwright.specs.lengths import DYNAMIC
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.workload import Workload

if TYPE_CHECKING:
    from meshwright.estimate.dynapipe import DynamicStep

IN_TASKS = ("compute", "recompute", "tp", "cp", "ep", "pp", "host")
"""Parts of a step that are spent in tasks of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedStep:
    """An estimate with the run that it was read from."""

    estimate: StepEstimate
    run: RunPlan


def estimate_plan(
    plan: ExecutionPlan,
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    hardware: Hardware | None = None,
) -> StepEstimate:
    """Time and memory of one plan, of one pipeline or several, on one kind of device or several.

    Args:
        plan: the plan.
        model: must have as many layers as the plan.
        cluster: must have the plan's devices.
        workload: must have the plan's global batch.
        hardware: other numbers than the library's, for a cluster of one group.

    Returns:
        The estimate.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    return estimate_of(plan, plan_pricer(plan, model, cluster, workload, hardware))


def priced_step(plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> PricedStep:
    """A plan priced as `estimate_plan` does, with what draws its step; arguments and errors are those."""
    pricer = plan_pricer(plan, model, cluster, workload)
    run = pricer.run(plan)
    return PricedStep(estimate=estimate_of(plan, pricer, run), run=run)


def estimate_plans(
    plans: Sequence[ExecutionPlan], model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> list[StepEstimate]:
    """Time and memory of several plans of one job; what their layers cost is priced together.

    Args:
        plans: the plans.
        model: must have as many layers as each plan.
        cluster: must have the devices of each.
        workload: must have the global batch of each.

    Returns:
        Their estimates.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: a plan needs something nobody prices yet.
    """
    pricers: list[PlanPricer] = []
    for plan in plans:
        pricers.append(plan_pricer(plan, model, cluster, workload, known=pricers[-1] if pricers else None))
    for pricer in dict.fromkeys(pricers):
        pricer.price_rows([plan for plan, own in zip(plans, pricers, strict=True) if own is pricer])
    return [estimate_of(plan, pricer) for plan, pricer in zip(plans, pricers, strict=True)]


def plan_pricer(
    plan: ExecutionPlan,
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    hardware: Hardware | None = None,
    known: PlanPricer | None = None,
) -> PlanPricer:
    """What prices a plan, on hardware at the pace of the plan whose step was measured.

    Args:
        plan: the plan.
        model: the model of it.
        cluster: the cluster of it.
        workload: the workload of it.
        hardware: other numbers than the library's, for a cluster of one group.
        known: the pricer of another plan of the job, which is used again where it is on the same hardware.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    check_plan(plan, model, cluster, workload)
    if hardware is None and calibration(workload.calibration).run is not None and cluster.homogeneous:
        hardware = hardware_of(cluster.groups[0], workload)
        hardware = _as_measured(hardware, plan, model, cluster, workload)
    if known is not None and known.hardware is hardware:
        return known
    return PlanPricer(model, cluster, workload, hardware)


def estimate_of(plan: ExecutionPlan, pricer: PlanPricer, run: RunPlan | None = None) -> StepEstimate:
    """The estimate of a checked plan by a pricer that may know parts of it from other plans.

    Args:
        plan: `check_plan` finds nothing wrong with it.
        pricer: the pricer of its model, cluster and workload.
        run: the run of the plan by the pricer, where it is known.

    Returns:
        The estimate.
    """
    run = run or pricer.run(plan)
    found = _result(plan, run, pricer)
    if found.filling is not None and pricer.workload.dynamic_cp:
        fixed = PlanPricer(
            pricer.model, pricer.cluster, replace(pricer.workload, dynamic_cp=False), pricer.hardware
        ).step_time_s(plan)
        return replace(found, filling=replace(found.filling, fixed_cp_step_time_s=fixed))
    if found.filling is None or pricer.workload.packing != DYNAMIC:
        return found
    from meshwright.estimate.dynapipe import dynamic_step  # few jobs group their sequences

    step = dynamic_step(plan, run, pricer)
    return found if step is None else _regrouped(found, step)


def _regrouped(packed: StepEstimate, step: DynamicStep) -> StepEstimate:
    """The estimate of packed rows with the times of micro-batches that differ."""
    assert packed.filling is not None
    slower = step.step_time_s / packed.step_time_s
    parts = {name: seconds * (step.busy if name in IN_TASKS else 1.0) for name, seconds in packed.breakdown_s}
    parts["bubble"] = 0.0
    parts["bubble"] = max(step.step_time_s - sum(parts.values()), 0.0)
    rest = step.step_time_s / sum(parts.values())
    filling = replace(
        packed.filling,
        padding=step.padding,
        fullest_rank=1.0,
        micro_batches=len(step.micro_batches) * step.rounds,
        packed_step_time_s=packed.step_time_s,
    )
    return replace(
        packed,
        step_time_s=step.step_time_s,
        step_time_low_s=packed.step_time_low_s * slower,
        step_time_high_s=packed.step_time_high_s * slower,
        tokens_per_s_per_device=packed.tokens_per_s_per_device / slower,
        mfu=packed.mfu / slower,
        hfu=packed.hfu / slower,
        price_per_step=None if packed.price_per_step is None else packed.price_per_step * slower,
        energy_j=None if packed.energy_j is None else packed.energy_j * slower,
        breakdown_s=tuple((name, seconds * rest) for name, seconds in parts.items()),
        stages=tuple(replace(stage, busy_s=stage.busy_s * step.busy) for stage in packed.stages),
        filling=filling,
    )


def _as_measured(
    hardware: Hardware, plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> Hardware:
    """The hardware at the pace of the very plan whose step was measured, where this is that plan."""
    run, row = calibration(workload.calibration).run, row_of(plan, model)
    if run is None or row is None:
        return hardware
    device, dtype = cluster.groups[0].device.name, workload.precision.name
    asked = (model.name, row.format(), device, plan.devices, workload.seq_len, dtype, workload.software)
    if asked != (run.model, run.plan, run.device, run.devices, run.seq_len, run.dtype, run.framework):
        return hardware
    own = hardware.pace / run.own
    return at_pace(hardware, 1.0 / run.own, (own / run.high, own / run.low))


def weakest_basis(group: NodeGroup) -> Basis:
    """The weakest basis among the numbers of a group that an estimate rests on."""
    bases = {group.device.efficiency.basis, *(domain.basis for domain in group.domains)}
    bases |= {
        group.device.basis_of(name).basis
        for name in ("peak_flop_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s")
    }
    return max(bases, key=BASIS_ORDER.index)


def plan_basis(stages: Iterable[Site], sites: Sites) -> Basis:
    """The weakest basis among the numbers that a plan rests on: of its groups, and of the links between them.

    Args:
        stages: the stages where its workers stand.
        sites: the sites of the cluster.
    """
    groups = sorted({site.number for site in stages})
    bases = {weakest_basis(sites.cluster.groups[number]) for number in groups}
    bases |= {sites.link_basis(one, other) for one, other in combinations(groups, 2)}
    return max(bases, key=BASIS_ORDER.index)


def _result(plan: ExecutionPlan, run: RunPlan, pricer: PlanPricer) -> StepEstimate:
    step, model, workload = run.step, pricer.model, pricer.workload
    flat = [site for own in run.stages for site in own]
    time_s = float(step.step_time_s[0])
    basis, known = plan_basis(flat, pricer.sites), calibration(workload.calibration)
    hardware = flat[0].hardware
    host_s = float(step.breakdown_s["host"][0])
    used = (pricer.sites.cluster.groups[number].device for number in dict.fromkeys(site.number for site in flat))
    kinds = [(kind_of_run((host_s, time_s), model, workload, device), device.efficiency) for device in used]
    low, high = step_range(known, kinds, basis)
    if any(mixer.recurrent for layer in model.kinds() for mixer in layer.mixers):
        from meshwright.estimate.scans import scan_share, widened  # most models have no recurrences

        low, high = widened(low, high, scan_share(model, hardware, workload))
    if hardware.pace_range is not None:
        slowest, quickest = hardware.pace_range
        low, high = 1.0 - hardware.pace / quickest, hardware.pace / slowest - 1.0
    useful = step_flop(model, workload)
    again = float(step.recompute_flop[0]) * plan.devices
    peak_flop_per_s = sum(site.devices * site.hardware.gemm_flop_per_s / site.hardware.pace for site in flat)
    stages = tuple(_stages(plan, run, pricer.model))
    verdicts = [stage.fits for stage in stages]
    prices = [None if (p := site.hardware.price_per_hour) is None else p * site.devices for site in flat]
    stated = [price for price in prices if price is not None]
    energies = [
        _energy_j(site, float(busy_s), time_s) for site, busy_s in zip(flat, step.busy_s[0].tolist(), strict=True)
    ]
    used_j = [energy for energy in energies if energy is not None]
    traffic: tuple[LinkTraffic, ...] = ()
    if len({site.number for site in flat}) > 1:
        from meshwright.estimate.traffic import link_traffic

        traffic = link_traffic(plan, run.stages, model, pricer.cluster, workload)
    traffic_price = sum(link.price_per_step for link in traffic)
    return StepEstimate(
        step_time_s=time_s,
        step_time_low_s=time_s * (1.0 - low),
        step_time_high_s=time_s * (1.0 + high),
        tokens_per_s_per_device=tokens_of_step(workload) / time_s / plan.devices,
        mfu=useful / (time_s * peak_flop_per_s),
        hfu=(useful + again) / (time_s * peak_flop_per_s),
        breakdown_s=tuple((name, float(values[0])) for name, values in step.breakdown_s.items()),
        stages=stages,
        fits="no" if "no" in verdicts else "tight" if "tight" in verdicts else "yes",
        basis=basis,
        price_per_step=sum(stated) * time_s / 3600.0 + traffic_price if len(stated) == len(prices) else None,
        traffic=traffic,
        energy_j=pricer.cluster.pue * sum(used_j) if len(used_j) == len(energies) else None,
        tie=known.tie,
        filling=filling_of(workload, max(plan.data_degree(pipeline) for pipeline in plan.pipelines)),
    )


def _energy_j(site: Site, busy_s: float, step_s: float) -> float | None:
    """Energy of a worker's devices: devices x (power at work x busy + power while waiting x rest of the step)."""
    work_w, wait_w = site.group.busy_power_w, site.group.waiting_power_w
    if work_w is None or wait_w is None:
        return None
    busy_s = min(busy_s, step_s)
    return site.devices * (work_w * busy_s + wait_w * (step_s - busy_s))


def _stages(plan: ExecutionPlan, run: RunPlan, model: ModelSpec) -> Iterator[StageEstimate]:
    """Every worker, pipeline by pipeline."""
    column = 0
    for number, (pipeline, sites) in enumerate(zip(plan.pipelines, run.stages, strict=True)):
        for place, site in enumerate(sites):
            yield _stage(plan, number, pipeline, run.step, place, site, column, scored=model.predicted > 0)
            column += 1


def _stage(
    plan: ExecutionPlan,
    number: int,
    pipeline: Pipeline,
    step: StepColumns,
    place: int,
    site: Site,
    column: int,
    *,
    scored: bool,
) -> StageEstimate:
    worker = pipeline.workers[place]
    strategy = plan.strategies[strategy_of_worker(plan, pipeline, worker)]
    memory = tuple((kind, float(getattr(step.memory, kind)[0, column])) for kind in MEMORY_KINDS)
    alive = int(step.in_flight[0, column])
    one, many = (
        ("chunk activation", "chunk activations") if len(worker.chunks) > 1 else ("micro-batch", "micro-batches")
    )
    unit = one if alive == 1 else many
    head = scored and any(chunk.head for chunk in worker.chunks)
    moment = f"backward with {alive} {unit} in flight" + (", logits and their gradient included" if head else "")
    return StageEstimate(
        pipeline=number,
        stage=place,
        layers=tuple(pair for chunk in worker.chunks for pair in chunk.layers),
        group=site.group.name,
        devices=worker.num_devices,
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.expert.ep,
        dp=strategy.dp,
        mbs=micro_batch_of(plan, pipeline, strategy),
        memory_bytes=memory,
        peak_memory_bytes=float(step.peak_bytes[0, column]),
        capacity_bytes=site.hardware.memory_bytes,
        peak_moment=moment,
        busy_s=float(step.busy_s[0, column]),
        host_bytes=float(step.memory.host[0, column]),
        host_capacity_bytes=None if (room := site.hardware.host_memory_bytes) is None else room * HOST_SHARE,
        disk_bytes=float(step.memory.disk[0, column]),
        disk_capacity_bytes=site.hardware.disk_bytes,
    )
