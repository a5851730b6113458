"""What a model, its load and the rest of a strategy ask of the settings of expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import InputError, Problem
from meshwright.specs.dispatchers import ALLTOALL, DISPATCHERS
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import ExpertParallel, LayerStrategy
from meshwright.specs.workload import Workload

_LOAD = "state it: --expert-load FILE, or zipf:1.2"
_ALONE = ExpertParallel()
_MOE_AGAIN = {"moe", "moe_act"}
_EXCHANGED = (
    "dispatcher",
    "overlap",
    "overlap_degree",
    "shadowed",
    "placed_by_load",
    "placement",
    "drop_duplicates",
    "stash_collectives",
    "prioritised",
    "locality",
)
"""What is said of an exchange between ranks."""
_OF_EXPERTS = (*_EXCHANGED, "capacity_factor", "expert_shards")
"""What is said of experts, wherever they are."""


def idle_words(row: PlanRow, model: ModelSpec) -> Iterator[Problem]:
    """Words of a plan about an exchange between experts that it does not have, each with its reason.

    Args:
        row: the plan.
        model: the model.
    """
    if row.ep > 1:
        return  # what a model without experts has against the degree is another rule
    experts = any(layer.mlp.routed_experts for layer in model.kinds())
    why = "all experts are on every rank, so nothing is exchanged" if experts else f"{model.name} has no experts"
    fix = "leave it out, or use ep2 or more" if experts else "leave it out"
    for word in row.expert_words():
        yield Problem(what=f"{word} without ep", why=why, fix=fix, field="plan")


def expert_problems(strategy: LayerStrategy, model: ModelSpec, workload: Workload, where: str) -> Iterator[Problem]:
    """Settings that mean nothing for this model, load or strategy, each with its reason and a remedy.

    Args:
        strategy: of layers.
        model: the model.
        workload: with the load of its experts.
        where: the strategy, as a plan file calls it.
    """
    expert = strategy.expert
    load = workload.expert_load
    if load is not None:
        try:
            fits = load.of(model) == load
        except InputError as error:
            yield from error.problems
            return
        if not fits:
            what, why = f"the load is of {load.experts} experts", f"layers of {model.name} have another number"
            yield Problem(what=what, why=why, fix="give a load of this model", field="workload.expert_load")
    experts = max((layer.mlp.routed_experts for layer in model.kinds()), default=0)

    def refused(name: str, why: str, fix: str) -> Problem:
        path = f"{where}.expert.{name}"
        return Problem(what=f"{path} is {getattr(expert, name)!r}", why=why, fix=fix, field=path)

    if not experts and expert.ep > 1:
        return  # legality refuses the degree itself
    if not experts or expert.ep == 1:
        why = "all experts are on every rank, so nothing is exchanged" if experts else f"{model.name} has no experts"
        stated = _EXCHANGED if experts else _OF_EXPERTS
        meaningless = [name for name in stated if getattr(expert, name) != getattr(_ALONE, name)]
        yield from (refused(name, why, "leave it out, or use ep2 or more" if experts else "leave it out")
                    for name in meaningless)  # fmt: skip
        return
    if expert.shadowed or expert.placed_by_load:
        name = "shadowed" if expert.shadowed else "placed_by_load"
        if workload.expert_load is None:
            yield refused(name, "which experts are hot is not known", _LOAD)
        if DISPATCHERS[expert.dispatcher].levels_load:
            yield refused(name, f"with {expert.dispatcher} no rank gets more tokens than another", "leave it out")
        if expert.shadowed and DISPATCHERS[expert.dispatcher].gathers:
            yield refused(name, "all ranks get all tokens, whatever experts they choose", "leave it out, or use epbal")
        if expert.capacity_factor is not None:
            yield refused(
                name, "with a capacity factor all experts compute equally many tokens", "leave one of them out"
            )
    if expert.prioritised:
        if strategy.data.zero == 3:
            why = "weights are gathered and gradients scattered layer by layer, in no order with exchanges"
            yield refused("prioritised", why, "leave it out, or use zero 0, 1 or 2")
        elif not strategy.data.overlap:
            yield refused("prioritised", "gradients leave behind the last backward anyway", "leave it out")
        if not DISPATCHERS[expert.dispatcher].exchanges:
            yield refused("prioritised", "tokens are not exchanged", "leave it out")
    if expert.shadowed >= experts > 0:
        yield refused("shadowed", f"a layer has {experts} experts", f"use at most {experts - 1}")
    if not DISPATCHERS[expert.dispatcher].exchanges:
        if expert.overlap != "none":
            yield refused("overlap", "tokens are not exchanged, so there is nothing to hide", "use none")
        if expert.capacity_factor is not None:
            yield refused("capacity_factor", "experts compute the tokens of each rank separately", "leave it out")
        if expert.overlap_degree > 1:
            yield refused("overlap_degree", "tokens are not exchanged, so there is nothing to split", "leave it out")
    if DISPATCHERS[expert.dispatcher].gathers and expert.overlap_degree > 1:
        yield refused("overlap_degree", "tokens are gathered at once", "leave it out, or use alltoall")
    if expert.drop_duplicates and (strategy.tp == 1 or strategy.tensor.shards_sequence):
        why = "tensor ranks hold no duplicates" if strategy.tp > 1 else "one tensor rank holds each token"
        yield refused("drop_duplicates", why, "leave it out, or use tp2 or more with nosp")
    if expert.drop_duplicates and strategy.tensor.name != "1d":
        yield refused("drop_duplicates", f"tensor ranks of {strategy.tensor.name} share tokens", "leave it out")
    again = strategy.recompute
    if expert.stash_collectives and not (
        again.kind in ("full", "grouped") or (again.kind == "selective" and _MOE_AGAIN & set(again.modules))
    ):
        yield refused("stash_collectives", "recompute does not repeat an exchange of tokens", "recompute moe")
    if expert.locality is not None and expert.dispatcher != ALLTOALL:
        yield refused("locality", f"how few tokens leave a domain is not known for {expert.dispatcher}", "use alltoall")
