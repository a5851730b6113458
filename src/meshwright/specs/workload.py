"""What one step trains: sequences, batch, number formats, optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from meshwright.errors import InputError, Problem
from meshwright.specs.calibration import Calibration
from meshwright.specs.check import Check
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.failures import Failures
from meshwright.specs.lengths import Packing, check_lengths, describe_lengths
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.precision import PRECISIONS, Precision
from meshwright.specs.software import DEFAULT_SOFTWARE

if TYPE_CHECKING:
    from meshwright.specs.optimizers.base import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step."""

    seq_len: int
    global_batch: int
    """Rows per step: sequences, or what packed or padded sequences fill."""
    precision: Precision = PRECISIONS["bf16"]
    optimizer: str = "adam"
    training: bool = True
    attention_kernel: Literal["flash", "materialised"] = "flash"
    software: str = DEFAULT_SOFTWARE
    """The framework, by its name in the library; `NAME@2025-06` as it was then."""
    expert_imbalance: float = 1.0
    """Tokens of the fullest expert rank over the mean, in every layer and however many ranks there are."""
    expert_load: ExpertLoad | None = None
    """How tokens spread over the experts of each layer, in place of that one number."""
    tokens: float | None = None
    """Tokens of the whole run, for days and cost."""
    sequence_lengths: tuple[tuple[int, float], ...] = ()
    """A distribution (length, share) of the sequences that fill rows of `seq_len`; empty when all are as long."""
    packing: str = "pack"
    """How sequences of unequal lengths fill rows: `pack`, `pad`, `bins` or `bins:512,2048`."""
    dynamic_cp: bool = False
    """Each packed sequence is cut over as few ranks of its context group as it needs, instead of all of them."""
    loss_tiles: int = 1
    """Pieces of a micro-batch's tokens whose logits are made, scored and dropped one after the other; 1 for all."""
    mlp_tiles: int = 1
    """Pieces in which dense feed-forward parts are computed, and again in backward; 1 for all at once."""
    failures: Failures | None = None
    """What interrupts the run, as far as it is stated; public runs stand for the rest."""
    calibration: Calibration | None = None
    """Measured runs that predictions are fitted to; None for the library's own."""

    def __post_init__(self) -> None:
        check = Check("workload")
        check.whole("seq_len", self.seq_len)
        check.whole("global_batch", self.global_batch)
        check.whole("loss_tiles", self.loss_tiles)
        check.whole("mlp_tiles", self.mlp_tiles)
        if check.positive("expert_imbalance", self.expert_imbalance):
            check.that(
                self.expert_imbalance >= 1, "expert_imbalance", self.expert_imbalance, "is at least 1 (balanced)"
            )
            check.that(
                self.expert_load is None or self.expert_imbalance == 1,
                "expert_imbalance",
                self.expert_imbalance,
                "and a load of experts both say how full the fullest rank is",
                "leave it out",
            )
        if self.tokens is not None:
            check.positive("tokens", self.tokens)
        if self.sequence_lengths:
            check_lengths(check, self.sequence_lengths)
        if self.dynamic_cp:
            packed = bool(self.sequence_lengths) and self.packing == "pack"
            why = "only packed sequences of unequal lengths need different numbers of ranks"
            check.that(packed, "dynamic_cp", True, why, "give lengths and pack them")
        check.done()
        Packing.read(self.packing)
        kind = optimizer_named(self.optimizer)
        if kind.own_formats and self.precision.moments != "fp32":
            raise InputError(
                what=f"moments in {self.precision.moments} with {kind.name}",
                why=f"{kind.name} says itself how it keeps its states: {kind.summary}",
                fix="leave --moment-dtype out, or use --optimizer adamw",
                field="moment_dtype",
                code="MW206",
            )

    @property
    def update(self) -> Optimizer:
        """What the optimizer keeps and computes."""
        return optimizer_named(self.optimizer)

    @property
    def tokens_per_step(self) -> int:
        """Rows times their length, padding included."""
        return self.seq_len * self.global_batch

    def with_batch(self, global_batch: int) -> Workload:
        """The same step with another batch."""
        return self if global_batch == self.global_batch else replace(self, global_batch=global_batch)

    def describe(self) -> dict[str, object]:
        """The `workload` entry of a plan set."""
        lengths = self.sequence_lengths
        tiles = {name: getattr(self, name) for name in ("loss_tiles", "mlp_tiles") if getattr(self, name) > 1}
        unequal = {"lengths": describe_lengths(lengths) | {"packing": self.packing}} if lengths else {}
        return {
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "tokens_per_step": self.tokens_per_step,
            "dtype": self.precision.name,
            "optimizer": self.optimizer,
            "software": self.software,
            "training": self.training,
            "attention_kernel": self.attention_kernel,
            "expert_imbalance": self.expert_imbalance,
            **({} if self.expert_load is None else {"expert_load": self.expert_load.described}),
            "tokens": self.tokens,
            **unequal,
            **({"dynamic_cp": True} if self.dynamic_cp else {}),
            **tiles,
        }


def batch_problem(global_batch: int, dp: int, mbs: int) -> Problem | None:
    """The problem of a batch that data-parallel ranks and micro-batches do not divide, or None."""
    if global_batch % (dp * mbs) == 0:
        return None
    lower = global_batch // (dp * mbs) * dp * mbs
    nearby = " or ".join(str(batch) for batch in (lower, lower + dp * mbs) if batch > 0)
    return Problem(
        what=f"global batch {global_batch} is not a multiple of dp {dp} x mbs {mbs} = {dp * mbs}",
        why="every data-parallel rank runs the same whole number of micro-batches",
        fix=f"use a global batch of {nearby}, or other degrees",
        field="gbs",
    )
