"""How the tokens of a step spread over the experts of its layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.errors import InputError, Problem
from meshwright.specs.check import Check
from meshwright.specs.model import ModelSpec

MOST_SKEW = 8.0
"""Largest Zipf exponent: beyond it one expert has all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Popularity of experts: counted tokens per layer and expert, or a Zipf law from which tokens are drawn."""

    zipf: float | None = None
    """Exponent S: the n-th most popular expert gets a share proportional to n^-S, 0 for experts drawn alike. Which
    experts are popular differs from layer to layer."""
    experts: int = 0
    """Experts the law holds for; 0 until the model is known."""
    visited: float = 1.0
    """Experts that a token visits, none twice, so that none gets more than 1 / visited of all pairs; 1 until the model
    is known."""
    counts: tuple[tuple[float, ...], ...] = ()
    """Tokens of each expert, per layer with experts; one row stands for every layer."""

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
        """Number of experts."""
        return len(self.counts[0]) if self.counts else self.experts

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
        moes = [part.routed_experts for part in parts]
        experts = sorted(set(moes))
        if len(experts) != 1:
            held = ", ".join(map(str, experts)) or "none"
            raise _refused(f"layers of {model.name} have {held} experts", "one load is of one number of experts", "")
        if self.zipf is not None:
            return replace(self, experts=experts[0], visited=max(1.0, min(part.visited_experts for part in parts)))
        if len(self.counts[0]) != experts[0]:
            what = f"the load counts {len(self.counts[0])} experts"
            raise _refused(what, f"{model.name} has {experts[0]} in a layer", f"give {experts[0]} counts per layer")
        if len(self.counts) not in (1, len(moes)):
            what = f"the load counts {len(self.counts)} layers"
            why = f"{model.name} has {len(moes)} layers with experts"
            raise _refused(what, why, f"give {len(moes)} layers, or one for all")
        return self


def _check_counts(counts: tuple[tuple[float, ...], ...]) -> None:
    """Every layer routes the same tokens to the same number of experts."""
    problems = []
    for layer, row in enumerate(counts):
        if len(row) != len(counts[0]):
            what = f"layer {layer} of the load has {len(row)} experts, layer 0 has {len(counts[0])}"
            fix = "give every layer the same number of counts"
            problems.append(Problem(what=what, why="layers are of one length", fix=fix, field="expert_load"))
        elif not all(0 <= tokens < float("inf") for tokens in row) or sum(row) <= 0:
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
