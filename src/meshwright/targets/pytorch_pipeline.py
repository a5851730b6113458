"""What targets share that run pipelines with `torch.distributed.pipelining`: schedules by class, or as a CSV file."""

from __future__ import annotations

from itertools import chain

from meshwright.errors import MeshwrightError
from meshwright.formats.torch_loader import COMPUTE_FILE
from meshwright.schedules import PLAN_SCHEDULES, schedule_named
from meshwright.schedules.plan_rows import schedule_of, spec_of
from meshwright.targets import fsdp
from meshwright.targets.sayable import ANY, Plan, Rule, Says, equal_micro_batches, only, overlap_inside_domain

CLASSES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "breadth-first": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Ours to the name that `get_schedule_class` of PyTorch 2.13 takes."""
_SOURCE = "torch/distributed/pipelining/schedules.py of PyTorch 2.13"

SAYS: dict[str, Says] = fsdp.SAYS | {
    "tp": ANY,
    "cp": ANY,
    "pp": ANY,
    "vpp": ANY,
    "dp": ANY,
    "layers": ANY,
    "schedule": ANY,
    "tensor.sequence_parallel": ANY,
    "tensor.overlap": only("ring", "bulk", fix="use tpov, or leave it out"),
    "context.kinds": only(("ag",), (), why="keys and values are gathered over context ranks", fix="use cp with ag"),
    "expert.ep": ANY,
    "optimizer": only("adamw", "adam"),
    "precision": only("bf16", "fp32"),
}
"""What frameworks can say of a plan that take all their parallelism from PyTorch."""
RULES = (
    Rule(
        field="schedule",
        holds=lambda plan: plan.found.pp == 1 or _known(plan) is not None or bool(_flushes(plan)),
        why="torch.distributed.pipelining flushes the pipeline at the end of a step and holds every stage on one rank",
        fix="use 1f1b, interleaved or zb-v",
        source=_SOURCE,
    ),
    Rule(
        field="schedule",
        holds=lambda plan: plan.found.pp == 1 or _whole_and_in_place(plan),
        why="it runs micro-batches whole, and keeps activations on the rank that made them",
        fix="use 1f1b, interleaved or zb-v",
        source=_SOURCE,
    ),
    Rule(
        field="schedule",
        holds=lambda plan: plan.found.pp == 1 or _stages_are_where_they_are_built(plan),
        why="frameworks build a rank's stages in turn over the ranks, or two of them in a V",
        fix="use 1f1b, interleaved or zb-v",
        source="torchtitan/distributed/pipeline_parallel.py of commit b5bcd76c (2026-08)",
    ),
    equal_micro_batches("torch.distributed.pipelining cuts a batch into equal micro-batches", _SOURCE),
    overlap_inside_domain("torch/distributed/_symmetric_memory of PyTorch 2.13, whose CUDA buffers are peers' memory"),
)


def _known(plan: Plan) -> str | None:
    """PyTorch's class of the schedule, where it runs it in our order."""
    schedule = plan.found.pipeline.schedule
    if schedule.orders or schedule.name not in CLASSES:
        return None
    m, pp = plan.found.pipeline.num_micro_batches, plan.found.pp
    if schedule.name in ("interleaved", "breadth-first") and m % max(1, m // pp):
        return None
    if spec_of(schedule_named(in_pytorch_rounds(schedule.name, pp, m))) != schedule:
        return None
    return CLASSES[schedule.name]


def in_pytorch_rounds(schedule: str, pp: int, micro_batches: int) -> str:
    """A schedule by its name in plans, interleaved 1F1B in the equal rounds that PyTorch makes of micro-batches.

    Args:
        schedule: the name of PyTorch's class, as ours.
        pp: workers.
        micro_batches: micro-batches of a step; as many rounds are made as have pp of them or more.
    """
    rounds = max(1, micro_batches // pp)
    if schedule != "interleaved" or micro_batches % rounds or micro_batches // rounds == pp:
        return schedule
    return f"interleaved-group{micro_batches // rounds}"


def _flushes(plan: Plan) -> bool:
    schedule = schedule_of(plan.found.pipeline.schedule)
    primary = all(chunk.copy == "primary" for chunk in plan.found.pipeline.chunks())
    return schedule.exact_semantics and primary and not schedule.validates_behind


def _whole_and_in_place(plan: Plan) -> bool:
    """Whether micro-batches run whole, and what a stage keeps stays on its rank."""
    schedule = schedule_of(plan.found.pipeline.schedule)
    return schedule.sections() == 1 and not hasattr(schedule, "exchanges")


def _stages_are_where_they_are_built(plan: Plan) -> bool:
    """Whether ranks hold the stages that the class builds there: in turn over the ranks, or in a V."""
    found, pp = plan.found, plan.found.pp
    held = [tuple(stage for stage, _ in worker) for worker in found.held]
    turned = [tuple(range(rank, pp * found.vpp, pp)) for rank in range(pp)]
    return held == turned or (found.vpp == 2 and held == [(rank, 2 * pp - 1 - rank) for rank in range(pp)])


def said_schedule(plan: Plan) -> tuple[str, str | None]:
    """The name PyTorch has for the plan's schedule; else that of its loop over chunks, and the file of the order."""
    name = _known(plan)
    looped = "1F1B" if plan.found.vpp == 1 else "ZBVZeroBubble" if _folded(plan) else "Interleaved1F1B"
    return (name, None) if name else (looped, COMPUTE_FILE)


def _folded(plan: Plan) -> bool:
    """Whether the first rank holds the last stage too, as in a V."""
    found = plan.found
    return found.vpp == 2 and tuple(stage for stage, _ in found.held[0]) == (0, 2 * found.pp - 1)


def overlaps_tensors(plan: Plan) -> bool:
    """Whether tensor collectives run beside the products that need them."""
    return plan.strategy.tp > 1 and plan.settings["tensor.overlap"] == "ring"


def schedule_files(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The schedule as a file, where PyTorch has no class of it."""
    if plan.found.pp == 1 or _known(plan) is not None:
        return ()
    from meshwright.formats.torch_csv import write_actions
    from meshwright.schedules.torch_actions import to_actions

    pipeline = plan.found.pipeline
    table = schedule_of(pipeline.schedule).table(plan.found.pp, pipeline.num_micro_batches, plan.found.vpp)
    return ((COMPUTE_FILE, write_actions(to_actions(table))),)


def schedule_name(said: str) -> str | None:
    """Ours for the name that PyTorch has, in any case; None where we have none."""
    wanted = said.lower().removeprefix("schedule")
    others = {"interleavedzerobubble": None, "zbvzerobubble": "zb-v", "loopedbfs": "breadth-first"}
    return next((ours for ours, name in CLASSES.items() if name.lower() == wanted), others.get(wanted))


def modules_of_stages(plan: Plan, embedding: str, layer: str, ends: tuple[str, ...]) -> list[list[str]]:
    """Names of the modules of each virtual stage: the embedding in the first, norm and head in the last."""
    stages, first = [], 0
    for number, count in enumerate(plan.found.layers):
        names = [embedding] if number == 0 else []
        names += [f"{layer}.{index}" for index in range(first, first + count)]
        first += count
        stages.append(names + list(ends if number == len(plan.found.layers) - 1 else ()))
    return stages


def layers_of_modules(stages: list[list[str]], layer: str) -> tuple[int, ...]:
    """Layers of each virtual stage, from the names of their modules."""
    return tuple(sum(name.startswith(f"{layer}.") for name in names) for names in stages)


def schedule_of_file(text: str, pp: int, vpp: int, micro_batches: int) -> str | None:
    """The schedule whose order a file holds; None where it is none of the catalogue."""
    from meshwright.formats.torch_csv import write_actions
    from meshwright.schedules.torch_actions import to_actions

    usual = [schedule_named(name).settled(pp, micro_batches) for name in PLAN_SCHEDULES]
    grouped = (schedule_named(f"interleaved-group{group}") for group in range(pp + 1, micro_batches + 1))
    # Files have no recomputations: an order that holds some has the same file as one without.
    for schedule in chain(sorted(usual, key=lambda one: one.recomputes_in_tasks), grouped):
        try:
            actions = to_actions(schedule.table(pp, micro_batches, vpp))
        except MeshwrightError:
            continue  # it takes other numbers of workers, chunks or micro-batches, or PyTorch does not run it
        if write_actions(actions) == text:
            return schedule.token
    return None
