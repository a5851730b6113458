"""Which plans run whose data ranks send each other something else than whole gradients and weights."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.runtime.rank_steps.passing_steps import PASSING_STEPS
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS
from meshwright.specs.strategy import DataParallel

RUNS = ("int8", "int4")
"""Formats on the network that run."""


def _in_parts(data: DataParallel) -> bool:
    """Whether weights that ranks hold in parts are sent in a format, to ranks or at times of their own."""
    return bool(data.secondary_shard or data.gather_dtype or data.reduce_dtype or data.prefetch != 1)


def rank_refusals(row: PlanRow) -> Iterator[Problem]:
    """What such a plan says beside it and does not run here.

    Args:
        row: the plan.
    """
    kind, name = SHARDINGS[row.sharding], row.sharding_word
    words = ".".join((*([name] if kind.travels else []), *row.data_words))
    beside = [
        f"{name}{degree}"
        for name, degree in (("tp", row.tp), ("cp", row.cp_degree), ("pp", row.pp), ("ep", row.ep))
        if degree > 1
    ]
    why = "each rank computes gradients of its own samples with whole weights"
    for one in beside:
        fix = f"leave {one[:2]} out, or estimate the plan"
        yield Problem(what=f"{words} with {one} does not run here", why=why, fix=fix, field="plan")
    data = row.data()
    if kind.travels:
        if kind.passing not in PASSING_STEPS:
            what, why = f"{name} does not run here", "no step here passes weights on in this way"
            yield Problem(what=what, why=why, fix="use z3, or estimate the plan", field="plan")
        for word in row.data_words:
            what, why = (
                f"{name} with {word} does not run here",
                "whole layers and gradients are passed on as they are",
            )
            yield Problem(what=what, why=why, fix="leave it out, or z3", field="plan")
    elif data.prefetch != 1 and data.secondary_shard:
        why, fix = "layers are gathered ahead over all ranks here", "leave hpz out"
        yield Problem(what=f"{words} does not run here", why=why, fix=fix, field="plan")
    elif _in_parts(data) and not kind.shards_all:
        what, fix = f"{words} with {row.sharding} does not run here", "use z3"
        why_parts = "only weights that all ranks shard are gathered in other formats or further ahead"
        yield Problem(what=what, why=why_parts, fix=fix, field="plan")
    for word, dtype in (("qw", data.gather_dtype), ("qg", data.reduce_dtype)):
        if dtype not in (None, *RUNS):
            what, fix = f"{word}-{dtype} does not run here", f"use {' or '.join(f'{word}-{one}' for one in RUNS)}"
            yield Problem(what=what, why="only integers with scales are sent here", fix=fix, field="plan")
    if row.optimizer_tile:
        why, what = (
            "no copy of gradients is made that tiles make smaller",
            f"tile{row.optimizer_tile} does not run here",
        )
        yield Problem(what=what, why=why, fix="leave it out", field="plan")
    if row.offload:
        what = f"{words} with off-{row.offload} does not run here"
        yield Problem(what=what, why="states stay on their devices", fix="leave it out", field="plan")
    if row.recompute not in (("none", "full") if kind.travels or data.prefetch != 1 else ("none",)):
        yield Problem(what=f"{words} with recomputation does not run here", why=why, fix="leave rc out", field="plan")
