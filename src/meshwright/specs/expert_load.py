"""How the tokens of a step spread over the experts of its layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.errors import InputError, Problem
from meshwright.specs.check import Check
from meshwright.specs.model import LayerSpec, ModelSpec

MOST_SKEW = 8.0
"""Largest Zipf exponent: beyond it one expert has all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Popularity of experts: counted tokens per layer and expert, or a Zipf law from which tokens are drawn."""

    zipf: float | None = None
    """Exponent S: the n-th most popular expert gets a share proportional to n^-S, 0 for experts drawn alike. Which
    experts are popular differs from layer to layer."""
    experts: int = 0
    """Experts the law holds for, the fewest of any layer; 0 until the model is known."""
    visited: float = 1.0
    """Experts that a token visits, none twice, so that none gets more than 1 / visited of all pairs; 1 until the model
    is known."""
    counts: tuple[tuple[float, ...], ...] = ()
    """Tokens of each expert, per layer with experts; one row stands for every layer. Layers with different numbers of
    experts have rows of different lengths."""

    def __post_init__(self) -> None:
        check = Check("expert load")
        if (self.zipf is None) == (not self.counts):
            check.that(False, "zipf", self.zipf, "states a law, or counts state tokens: one of the two")
        if self.zipf is not None and check.positive("zipf", self.zipf, zero=True):
            check.that(self.zipf <= MOST_SKEW, "zipf", self.zipf, f"is from 0 (alike) to {MOST_SKEW:g}")
        check.done()
        if self.counts:
            _check_counts(self.counts)

    @property
    def width(self) -> int:
        """Number of experts, the fewest of any layer."""
        return min(map(len, self.counts)) if self.counts else self.experts

    @property
    def described(self) -> str:
        """The load in words, for the list of assumptions."""
        if self.zipf is not None:
            return f"zipf:{self.zipf:g}"
        return f"counted on {len(self.counts)} layer{'s' * (len(self.counts) > 1)}"

    def of(self, model: ModelSpec) -> ExpertLoad:
        """The load of a model's experts.

        Args:
            model: the model that has them.

        Raises:
            InputError: the counts are of another number of experts or of layers.
        """
        parts = [layer.mlp for layer in model.layers() if layer.mlp.routed_experts]
        held = [part.routed_experts for part in parts]
        if not held:
            raise _refused(f"no layer of {model.name} has experts", "a load is of experts", "leave it out")
        if self.zipf is not None:
            return replace(self, experts=min(held), visited=max(1.0, min(part.visited_experts for part in parts)))
        if len(self.counts) not in (1, len(held)) or (len(self.counts) == 1 and len({*held}) > 1):
            many = f"{len(self.counts)} layer{'s' * (len(self.counts) > 1)}"
            why = f"{model.name} has {len(held)} layers with experts"
            fix = f"give {len(held)} layers" + ("" if len({*held}) > 1 else ", or one for all")
            raise _refused(f"the load counts {many}", why, fix)
        rows = [_fitted(row, experts) for row, experts in zip(self.counts, held, strict=False)]
        for layer, (row, experts) in enumerate(zip(rows, held, strict=False)):
            if len(row) != experts:
                where = f"layer {layer} of the load" if len({*held}) > 1 or len({*map(len, rows)}) > 1 else "the load"
                why = f"{model.name} has {experts} in a layer" if where == "the load" else f"{experts} are in it"
                raise _refused(f"{where} counts {len(row)} experts", why, f"give {experts} counts per layer")
        return replace(self, counts=tuple(rows))

    def over(self, experts: int) -> ExpertLoad:
        """The load of those layers of a model that have so many experts.

        Args:
            experts: the number of experts of these layers.
        """
        if self.zipf is not None:
            return self if experts == self.experts else replace(self, experts=experts)
        rows = tuple(row for row in self.counts if len(row) == experts)
        return self if len(rows) == len(self.counts) else replace(self, counts=rows)

    def by_experts(self, model: ModelSpec) -> dict[ExpertLoad, tuple[LayerSpec, ...]]:
        """The load of each number of experts, with the layers that have as many.

        Args:
            model: the model whose load this is.
        """
        found: dict[ExpertLoad, tuple[LayerSpec, ...]] = {}
        for layer in model.layers():
            if layer.mlp.routed_experts:
                own = self.over(layer.mlp.routed_experts)
                found[own] = (*found.get(own, ()), layer)
        return found


def _fitted(row: tuple[float, ...], experts: int) -> tuple[float, ...]:
    """A row without the zeros of experts that other layers have, as files with a line per expert give them."""
    return row if any(row[experts:]) else row[:experts]


def _check_counts(counts: tuple[tuple[float, ...], ...]) -> None:
    """Every layer routes the same tokens."""
    problems = []
    for layer, row in enumerate(counts):
        if not all(0 <= tokens < float("inf") for tokens in row) or sum(row) <= 0:
            what = f"layer {layer} of the load has no tokens, or counts that are none"
            why = "counts are finite, at least 0, and some are above"
            problems.append(Problem(what=what, why=why, fix="count the tokens of a step", field="expert_load"))
        elif abs(sum(row) - sum(counts[0])) > UNEQUAL_SUMS * sum(counts[0]):
            what = f"layer {layer} of the load sums to {sum(row):g} tokens, layer 0 to {sum(counts[0]):g}"
            why = "every layer routes the tokens of the same step, each to the same number of experts"
            fix = "count all layers over the same steps, before any token is dropped"
            problems.append(Problem(what=what, why=why, fix=fix, field="expert_load"))
    if problems:
        raise InputError(problems, code="MW206")


UNEQUAL_SUMS = 1e-3
"""Relative difference up to which sums of counts are equal: shares written with three digits pass."""


def _refused(what: str, why: str, fix: str) -> InputError:
    return InputError(what=what, why=why, fix=fix, field="expert_load", code="MW206")
