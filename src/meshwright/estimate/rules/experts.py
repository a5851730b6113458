"""What a model, its load and the rest of a strategy ask of the settings of expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import InputError, Problem
from meshwright.specs.dispatchers import ALLTOALL, DISPATCHERS, Dispatcher
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
        strategy: the strategy of layers.
        model: the model.
        workload: the workload with the load of its experts.
        where: the strategy, as a plan file calls it.
    """
    load = workload.expert_load
    try:
        own = load.of(model) if load is not None else None
    except InputError as error:
        yield from error.problems
        return
    if load is not None and own != load:
        what, why = f"the load is of {load.experts} experts", f"layers of {model.name} have another number"
        yield Problem(what=what, why=why, fix="give a load of this model", field="workload.expert_load")
    experts = min((held for layer in model.kinds() if (held := layer.mlp.routed_experts)), default=0)
    stated = _Stated(strategy, experts, where)
    if strategy.expert.ep == 1:
        yield from stated.without_exchange(model.name)
    elif experts:  # legality refuses ranks without experts themselves
        yield from stated.of_hot_experts(load_known=load is not None)
        yield from stated.of_order()
        yield from stated.of_shadows()
        yield from stated.of_exchange()
        yield from stated.of_duplicates()
        yield from stated.of_recompute()
        yield from stated.of_locality()


@dataclass(frozen=True)
class _Stated:
    """What a strategy states of experts, and each rule about it."""

    strategy: LayerStrategy
    experts: int
    """Routed ones of the layer that has fewest."""
    where: str
    """The strategy, as a plan file calls it."""

    @property
    def expert(self) -> ExpertParallel:
        """Settings of expert parallelism of the strategy."""
        return self.strategy.expert

    @property
    def dispatcher(self) -> Dispatcher:
        """What carries tokens to experts."""
        return DISPATCHERS[self.expert.dispatcher]

    def refused(self, name: str, why: str, fix: str) -> Problem:
        """A setting that means nothing here."""
        path = f"{self.where}.expert.{name}"
        return Problem(what=f"{path} is {getattr(self.expert, name)!r}", why=why, fix=fix, field=path)

    def without_exchange(self, model: str) -> Iterator[Problem]:
        why = "all experts are on every rank, so nothing is exchanged" if self.experts else f"{model} has no experts"
        fix = "leave it out, or use ep2 or more" if self.experts else "leave it out"
        for name in _EXCHANGED if self.experts else _OF_EXPERTS:
            if getattr(self.expert, name) != getattr(_ALONE, name):
                yield self.refused(name, why, fix)

    def of_hot_experts(self, *, load_known: bool) -> Iterator[Problem]:
        if not (self.expert.shadowed or self.expert.placed_by_load):
            return
        name = "shadowed" if self.expert.shadowed else "placed_by_load"
        if not load_known:
            yield self.refused(name, "which experts are hot is not known", _LOAD)
        if self.dispatcher.levels_load:
            why = f"with {self.expert.dispatcher} no rank gets more tokens than another"
            yield self.refused(name, why, "leave it out")
        if self.expert.shadowed and self.dispatcher.gathers:
            why = "all ranks get all tokens, whatever experts they choose"
            yield self.refused(name, why, "leave it out, or use epbal")
        if self.expert.capacity_factor is not None:
            why = "with a capacity factor all experts compute equally many tokens"
            yield self.refused(name, why, "leave one of them out")

    def of_order(self) -> Iterator[Problem]:
        if not self.expert.prioritised:
            return
        if self.strategy.data.zero == 3:
            why = "weights are gathered and gradients scattered layer by layer, in no order with exchanges"
            yield self.refused("prioritised", why, "leave it out, or use zero 0, 1 or 2")
        elif not self.strategy.data.overlap:
            yield self.refused("prioritised", "gradients leave behind the last backward anyway", "leave it out")
        if not self.dispatcher.exchanges:
            yield self.refused("prioritised", "tokens are not exchanged", "leave it out")

    def of_shadows(self) -> Iterator[Problem]:
        if self.expert.shadowed >= self.experts:
            yield self.refused("shadowed", f"a layer has {self.experts} experts", f"use at most {self.experts - 1}")

    def of_exchange(self) -> Iterator[Problem]:
        split = self.expert.overlap_degree > 1
        if not self.dispatcher.exchanges:
            nothing = "tokens are not exchanged, so there is nothing to"
            if self.expert.overlap != "none":
                yield self.refused("overlap", f"{nothing} hide", "use none")
            if self.expert.capacity_factor is not None:
                why = "experts compute the tokens of each rank separately"
                yield self.refused("capacity_factor", why, "leave it out")
            if split:
                yield self.refused("overlap_degree", f"{nothing} split", "leave it out")
        if self.dispatcher.gathers and split:
            yield self.refused("overlap_degree", "tokens are gathered at once", "leave it out, or use alltoall")

    def of_duplicates(self) -> Iterator[Problem]:
        if not self.expert.drop_duplicates:
            return
        if self.strategy.tp == 1 or self.strategy.tensor.shards_sequence:
            why = "tensor ranks hold no duplicates" if self.strategy.tp > 1 else "one tensor rank holds each token"
            yield self.refused("drop_duplicates", why, "leave it out, or use tp2 or more with nosp")
        if self.strategy.tensor.name != "1d":
            why = f"tensor ranks of {self.strategy.tensor.name} share tokens"
            yield self.refused("drop_duplicates", why, "leave it out")

    def of_recompute(self) -> Iterator[Problem]:
        again = self.strategy.recompute
        exchanges = again.kind == "selective" and not _MOE_AGAIN.isdisjoint(again.modules)
        if self.expert.stash_collectives and not (again.kind in ("full", "grouped") or exchanges):
            why = "recompute does not repeat an exchange of tokens"
            yield self.refused("stash_collectives", why, "recompute moe")

    def of_locality(self) -> Iterator[Problem]:
        if self.expert.locality is not None and self.expert.dispatcher != ALLTOALL:
            why = f"how few tokens leave a domain is not known for {self.expert.dispatcher}"
            yield self.refused("locality", why, "use alltoall")
