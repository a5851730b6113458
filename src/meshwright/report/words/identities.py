"""What must hold of a plan: `64 = tp4 x pp4 x dp4`, `layers 20+20+21+19 = 80`, `64 sequences of 4,096 tokens = ...`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.planning.plan_shape import bare_row
from meshwright.report.words.titles import shortened_title
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy
from meshwright.units import seconds

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob


def identities(job: PlannedJob, row: PlanRow | None) -> tuple[str, ...]:
    """The products and sums a plan must keep, written out.

    Args:
        job: model, cluster and plan.
        row: the plan as one row of degrees; None where none says all of it.

    Returns:
        Devices and layers always; then, where there are any, what is trained of the model, the batch, experts, and
        devices that are not used.
    """
    found = [_devices_identity(job, row), _layers_identity(job)]
    if isinstance(job, Job) and job.model.tuning is not None:
        from meshwright.planning.question.tuned import trained_counts  # most jobs train all of a model

        found.append(trained_counts(job.model))
    found += [*_batch_identity(job), *_expert_identities(job)]
    if job.plan.devices < job.cluster.devices:
        found.append(f"{job.plan.devices:,} of {job.cluster.devices:,} devices used")
    return tuple(found)


def _devices_identity(job: PlannedJob, row: PlanRow | None) -> str:
    """`64 = tp4 x pp4 x dp4`; devices of workers where no row of degrees says the plan."""
    plan = job.plan
    found = row if row is not None else bare_row(plan, job.model) if isinstance(job, Job) else None
    if found is not None:
        return found.identity()
    workers = [worker.num_devices for pipe in plan.pipelines for worker in pipe.workers]
    return f"{plan.devices:,} devices = {shortened_title(workers)}"


def _layers_identity(job: PlannedJob) -> str:
    """`layers 20+20+21+19 = 80`."""
    workers = job.plan.pipelines[0].workers
    layers = [sum(chunk.num_layers for chunk in w.chunks if chunk.copy == "primary") for w in workers]
    towers = job.model.tower_layers if isinstance(job, Job) else 0
    of_towers = f", {towers} of them a tower's" if towers else ""
    split = f"{shortened_title(layers)} = " if len(layers) > 1 else ""
    return f"layers {split}{job.plan.num_layers}{of_towers}"


def _batch_identity(job: PlannedJob) -> Iterator[str]:
    """`1,024 sequences of 4,096 tokens = dp4 x mbs1 x 256 micro-batches`; none for micro-batches of several shapes."""
    plan, pipelines = job.plan, job.plan.pipelines
    if any(pipe.shapes for pipe in pipelines):
        return
    noun = "rows" if isinstance(job, Job) and job.workload.sequence_lengths else "sequences"
    if len(pipelines) == 1:
        pipe, count = pipelines[0], pipelines[0].num_micro_batches
        plural = "es" if count > 1 else ""
        parts = f"dp{plan.data_degree(pipe)} x mbs{pipe.micro_batch} x {count:,} micro-batch{plural}"
        whole = f"{plan.global_batch:,} {noun if plan.global_batch > 1 else noun[:-1]}"
        yield f"{whole}{_length(job)} = {parts}"
    else:
        shares = [f"{pipe.num_micro_batches} x {plan.data_degree(pipe) * pipe.micro_batch}" for pipe in pipelines]
        yield f"{plan.global_batch:,} {noun}{_length(job)} = {' + '.join(shares)} (micro-batches x {noun} of one)"


def _length(job: PlannedJob) -> str:
    """` of 4,096 tokens`; nothing for measured stages, which hold one length."""
    return f" of {job.workload.seq_len:,} tokens" if isinstance(job, Job) else ""


def _expert_identities(job: PlannedJob) -> Iterator[str]:
    """`experts: 64 ranks of a stage = ep8 x 8`, and the tokens that a capacity drops under a stated load."""
    # The first stage may hold the embedding alone.
    with_layers = [worker for worker in job.plan.pipelines[0].workers if any(chunk.runs for chunk in worker.chunks)]
    if not with_layers:
        return
    first = with_layers[0]
    run = next(run for chunk in first.chunks for run in chunk.runs)
    expert = job.plan.strategies[run.strategy].expert
    if expert.ep * expert.etp > 1:
        tensor = f" x etp{expert.etp}" if expert.etp > 1 else ""
        rest = first.num_devices // (expert.ep * expert.etp)
        yield f"experts: {first.num_devices:,} ranks of a stage = ep{expert.ep}{tensor} x {rest}"
    load = job.workload.expert_load if isinstance(job, Job) else None
    if load is not None and expert.placed_by_load and isinstance(job, Job):
        yield _placement(job, job.plan.strategies[run.strategy])
    if load is not None and expert.capacity_factor is not None and isinstance(job, Job):
        from meshwright.kernels.expert_load import dropped_share  # few plans drop any
        from meshwright.strategies.crowding import crowding_of

        held = load.by_experts(job.model)
        over = [dropped_share(crowding_of(own).shares, expert.capacity_factor) * len(held[own]) for own in held]
        dropped = sum(over) / sum(map(len, held.values()))
        yield f"capacity {expert.capacity_factor:g}: {100 * dropped:.2g}% of the routed tokens are dropped"


def _placement(job: Job, strategy: LayerStrategy) -> str:
    """`experts by load: 1,400 of 1,664 change ranks, 0.3 s at once, repaid in 2 steps of the same load`."""
    from meshwright.planning.new_placement import new_placement  # few plans place any

    found = new_placement(job, strategy)
    after = found.pays_after
    repaid = (
        "which no step repays" if after is None else f"repaid in {after:,} step{'s' * (after > 1)} of the same load"
    )
    moved = f"{found.moved:,} of {found.experts:,} change ranks, {seconds(found.moving_s)} at once"
    return f"experts by load: {moved}, {repaid}"
