"""Which plans run whose data ranks send each other something else than whole gradients and weights."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.runtime.rank_steps.passing_steps import PASSING_STEPS
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS

RUNS = ("int8", "int4")
"""Formats on the network that run."""


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
    elif (data.secondary_shard or data.gather_dtype or data.reduce_dtype) and not kind.shards_all:
        what, fix = f"{words} with {row.sharding} does not run here", "use z3"
        yield Problem(what=what, why="only sharded weights are sent in other formats", fix=fix, field="plan")
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
    if row.recompute not in (("none", "full") if kind.travels else ("none",)):
        yield Problem(what=f"{words} with recomputation does not run here", why=why, fix="leave rc out", field="plan")
