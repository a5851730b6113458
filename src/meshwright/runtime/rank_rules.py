"""Which plans run whose data ranks send each other something else than whole gradients and weights."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS
from meshwright.strategies import PASSINGS

RUNS = ("int8", "int4")
"""Formats on the network that run."""


def rank_refusals(row: PlanRow) -> Iterator[Problem]:
    """What such a plan says beside it and does not run here.

    Args:
        row: the plan.
    """
    kind, name = SHARDINGS[row.sharding], row.sharding_word
    words = ".".join((*([name] if kind.travels else []), *row.data_words))
    beside = [f"{name}{degree}" for name, degree in
              (("tp", row.tp), ("cp", row.cp_degree), ("pp", row.pp), ("ep", row.ep)) if degree > 1]  # fmt: skip
    why = "each rank computes gradients of its own samples with whole weights"
    for one in beside:
        fix = f"leave {one[:2]} out, or estimate the plan"
        yield Problem(what=f"{words} with {one} does not run here", why=why, fix=fix, field="plan")
    data = row.data()
    if kind.travels:
        if not PASSINGS[kind.passing].runs:
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


def ring_refusals(row: PlanRow, spec: ModelSpec | None, layers: int) -> Iterator[Problem]:
    """What of a ring of weights does not run here, besides `rank_refusals`.

    Args:
        row: the plan.
        spec: of the model; None for the perceptron.
        layers: of the model as it runs.
    """
    word, alike = row.sharding_word, None if spec is None else len(spec.kinds())
    if alike is None or alike > 1:
        name = "the perceptron" if spec is None else spec.name
        why = "groups of layers take each other's places, so that all layers are decoder layers of one kind"
        yield Problem(what=f"{word} does not run with {name}", why=why, fix="use llama-tiny, or z3", field="model")
    elif layers % row.dp:
        near = -(-layers // row.dp) * row.dp
        what, why = (
            f"{word} of {row.dp} ranks with {layers} layers",
            "every rank keeps as many layers as the others",
        )
        yield Problem(what=what, why=why, fix=f"--layers {near}, or a dp that divides {layers}", field="layers")
