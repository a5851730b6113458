"""What the runtime of this package does not run of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.errors import Problem
from meshwright.schedules import Schedule, schedule_named
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS
from meshwright.strategies import CONTEXTS, TENSORS

MODULES = ("core_attn", "mlp", "moe", "moe_act", "layernorm")
"""Modules that the backward of a run computes again by themselves."""


def unrunnable_settings(row: PlanRow) -> Iterator[Problem]:
    """Each setting that does not run, with those that do.

    Args:
        row: the plan.
    """
    schedule = schedule_named(row.schedule)
    yield from _schedule_refusals(row, schedule)
    yield from _way_refusals(row)
    if row.recompute == "sel":
        yield from module_refusals(row.recompute_modules)
    if row.optimizer_tile:
        why = "the optimizer here reads gradients as they are, with no copy that tiles make smaller"
        yield Problem(what=f"tile{row.optimizer_tile} does not run here", why=why, fix="leave it out", field="plan")
    if SHARDINGS[row.sharding].travels and row.tp > 1:
        why, fix = "each rank of the ring runs whole layers", "leave tp out, or estimate the plan"
        yield Problem(what=f"{row.sharding_word} with tp{row.tp} does not run here", why=why, fix=fix, field="plan")
    for word in row.data_words:
        why = "compressed exchanges and averaged replicas run with data parallelism alone"
        fix = "leave it out, or use gc-, local or diloco without tp, cp, pp and ep"
        yield Problem(what=f"{word} does not run here", why=why, fix=fix, field="plan")
    if row.offload:
        yield from (paged_refusals if schedule.pages else host_refusals)(row)


def _schedule_refusals(row: PlanRow, schedule: Schedule) -> Iterator[Problem]:
    """What of a schedule does not run."""
    if schedule.validates_behind:
        why = "a step here ends on all workers before their optimizers run"
        yield Problem(what=schedule.token, why=why, fix=f"use {schedule.name}", field="plan")
    if schedule.parts_samples and row.mbs % schedule.sections():
        why = "a run cuts a micro-batch between samples, not inside a sequence"
        what = f"{row.schedule} with mbs {row.mbs}"
        yield Problem(what=what, why=why, fix=f"mbs{schedule.sections()}, or chimera-doubling", field="plan")
    if schedule.sections() > 1 and not schedule.parts_samples:
        yield from _slice_refusals(row)


def _way_refusals(row: PlanRow) -> Iterator[Problem]:
    """Ways to split layers, sequences and experts that do not run."""
    if not (row.tensor in TENSORS and TENSORS[row.tensor].runs):
        able = [name for name, strategy in TENSORS.items() if strategy.runs]
        yield _unsplit(f"tensor strategy {row.tensor}", able)
    for kind, _ in row.cp:
        if not (kind in CONTEXTS and CONTEXTS[kind].runs):
            yield _unsplit(f"kind of context {kind}", [name for name, one in CONTEXTS.items() if one.runs])
    dealing = [kind for kind, _ in row.cp if not (kind in CONTEXTS and CONTEXTS[kind].swaps_heads)]
    if len(dealing) > 1:
        why = "one level deals the tokens of a sequence to ranks here; others exchange heads inside it"
        kind = "" if dealing[-1] == "p2p" else f"-{dealing[-1]}"
        what, fix = f"{' inside '.join(dealing)} does not run here", f"cp{row.cp_degree}{kind}"
        yield Problem(what=what, why=why, fix=fix, field="plan")
    if row.ep > 1 and not DISPATCHERS[row.dispatcher].runs:
        yield _unsplit(f"dispatcher {row.dispatcher}", [name for name, one in DISPATCHERS.items() if one.runs])


def module_refusals(modules: Iterable[str]) -> Iterator[Problem]:
    """Modules that are not recomputed by themselves.

    Args:
        modules: the modules as plans name them.
    """
    for module in dict.fromkeys(modules):
        if module not in MODULES:
            what, why = (
                f"rc-sel-{module} does not run here",
                f"of single modules, {', '.join(MODULES)} are computed again",
            )
            yield Problem(what=what, why=why, fix=f"use rc-sel-{MODULES[1]}, or rc-full", field="plan")


def _slice_refusals(row: PlanRow) -> Iterator[Problem]:
    """What does not go with sequences that run slice by slice."""
    whys = {
        "cp": "context ranks share a whole sequence, and a slice is a part of it",
        "ep": "an expert's places are given to the tokens of whole sequences",
    }
    for name, degree in (("cp", row.cp_degree), ("ep", row.ep)):
        if degree > 1:
            what = f"{row.schedule} with {name}{degree} does not run here"
            yield Problem(what=what, why=whys[name], fix=f"1f1b, or leave {name} out", field="plan")


def paged_refusals(row: PlanRow) -> Iterator[Problem]:
    """What of stages that are paged from host memory does not run: all of their states are paged, to single devices.

    Args:
        row: a plan with such a schedule.
    """
    letters, _, words = row.offload.partition("-")
    if set(letters) != set("wog") or words:
        why = "weights, gradients and optimizer states wait in host memory together"
        yield Problem(what=f"off-{row.offload} does not run with {row.schedule}", why=why, fix="off-wog", field="plan")
    for name in (f"{axis}{degree}" for axis, degree in (("tp", row.tp), ("ep", row.ep)) if degree > 1):
        why, fix = "stages are reloaded to one device each", f"leave {name[:2]} out"
        yield Problem(what=f"{row.schedule} with {name} does not run here", why=why, fix=fix, field="plan")


def host_refusals(row: PlanRow) -> Iterator[Problem]:
    """What part of states in host memory does not run: it does under data ranks alone, which share the states.

    Args:
        row: a plan that offloads.
    """
    what = f"off-{row.offload} does not run here"
    letters, _, words = row.offload.partition("-")
    if letters != "a" and "o" not in letters:
        why = "weights are offloaded here with their optimizer states"
        yield Problem(what=what, why=why, fix=f"off-{letters}o", field="plan")
    if "nvme" in words:
        why, fix = "states are offloaded to host memory, not to disks", "leave nvme out"
        yield Problem(what=what, why=why, fix=fix, field="plan")
    degrees = (("tp", row.tp), ("cp", row.cp_degree), ("pp", row.pp), ("ep", row.ep))
    for name in (f"{axis}{degree}" for axis, degree in degrees if degree > 1):
        why, fix = "each rank computes gradients of its own samples with whole layers", f"leave {name[:2]} out"
        yield Problem(what=f"off-{row.offload} with {name} does not run here", why=why, fix=fix, field="plan")
    parts = (3,) if "w" in letters else (0, 1, 2, 3) if letters == "a" else (1, 2, 3)
    able = [kind.name for kind in SHARDINGS.values() if kind.zero in parts and (kind.zero < 3 or kind.shards_all)]
    if row.sharding not in able and (row.dp > 1 or "w" in letters):
        why = "each rank updates its own shard" if "o" in letters else "each rank updates all weights or its own shard"
        what = f"off-{row.offload} with {row.sharding} does not run here"
        yield Problem(what=what, why=why, fix=f"use {' or '.join(able)}", field="plan")


def _unsplit(what: str, able: Sequence[str]) -> Problem:
    why = "the runtime cannot split a model this way"
    return Problem(what=f"{what} does not run here", why=why, fix=f"use {' or '.join(able)}", field="plan")
