"""What one step trains: sequences, batch, number formats, optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.errors import Problem, UnsupportedError, unknown_name
from meshwright.specs.calibration import Calibration
from meshwright.specs.check import Check
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.software import DEFAULT_SOFTWARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The number format of each role."""

    name: str
    compute: str
    """Format of the GEMMs' inputs."""
    activations: str
    """Format in which activations are kept and sent."""
    weights: str
    gradients: str
    """Format of the accumulated gradients."""
    master: str | None
    """Main copy the optimizer updates, None if the weights themselves are it."""
    moments: str
    reduce: str
    """Format in which gradients cross the network."""
    weight_cache_bytes: float = 0.0
    """Extra bytes per parameter a recipe keeps, such as fp8 copies of the weights."""
    master_gradient_copy: bool = False
    """fp16 recipes keep a second, fp32 copy of the gradients."""
    gathered: str | None = None
    """Format in which weights cross the network, None if that of the weights."""
    sums_in_copy: bool = False
    """Whether every micro-batch's gradient is added to the fp32 copy, not to the gradient kept beside it."""

    def __post_init__(self) -> None:
        check = Check(f"precision {self.name}")
        for role in ("compute", "activations", "weights", "gradients", "moments", "reduce"):
            check.one_of(role, getattr(self, role), tuple(DTYPE_BYTES))
        for role in ("master", "gathered"):
            if getattr(self, role) is not None:
                check.one_of(role, getattr(self, role), tuple(DTYPE_BYTES))
        check.done()

    def bytes_of(self, role: str) -> float:
        """Bytes per element of a role."""
        name = getattr(self, role)
        return 0.0 if name is None else DTYPE_BYTES[name]

    @property
    def gathered_bytes(self) -> float:
        """Bytes of a weight on its way to other ranks."""
        return self.bytes_of("gathered") or self.bytes_of("weights")

    @property
    def adding_bytes(self) -> float:
        """Bytes moved to add one finished gradient to the sum in a kernel of its own.

        Read both, write the sum; into an fp32 copy: cast (read, write 4), add (read 4 twice, write 4), clear.
        """
        gradient = self.bytes_of("gradients")
        return 2 * gradient + 16.0 if self.sums_in_copy else 3 * gradient


PRECISIONS: dict[str, Precision] = {
    policy.name: policy
    for policy in (
        Precision(
            name="bf16",
            compute="bf16",
            activations="bf16",
            weights="bf16",
            gradients="fp32",
            master="fp32",
            moments="fp32",
            reduce="fp32",
        ),
        Precision(
            name="fp16",
            compute="fp16",
            activations="fp16",
            weights="fp16",
            gradients="fp16",
            master="fp32",
            moments="fp32",
            reduce="fp16",
            master_gradient_copy=True,
        ),
        Precision(
            name="fp8",
            compute="fp8",
            activations="bf16",
            weights="bf16",
            gradients="fp32",
            master="fp32",
            moments="fp32",
            reduce="fp32",
            weight_cache_bytes=2.0,
        ),
        Precision(
            name="nvfp4",
            compute="nvfp4",
            activations="bf16",
            weights="bf16",
            gradients="fp32",
            master="fp32",
            moments="fp32",
            reduce="fp32",
            weight_cache_bytes=2.0,
        ),
        Precision(
            name="fp32",
            compute="fp32",
            activations="fp32",
            weights="fp32",
            gradients="fp32",
            master=None,
            moments="fp32",
            reduce="fp32",
        ),
    )
}
"""The recipes behind `--dtype`: Megatron-LM's mixed precision (18 bytes per parameter in bf16, 20 in fp16 and in fp8
with cached weight copies, 20 in nvfp4, 16 in fp32)."""

OPTIMIZER_MOMENTS: dict[str, float] = {
    "adam": 2.0,
    "adamw": 2.0,
    "sgd": 0.0,
    "sgd-momentum": 1.0,
    "muon": 1.0,
    "lion": 1.0,
}
"""States per parameter, each in the format of `Precision.moments`."""


def precision(name: str) -> Precision:
    """The recipe of this name.

    Raises:
        UnsupportedError: for a name that is none.
    """
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UnsupportedError(unknown_name("dtype", name, PRECISIONS), code="MW403") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step."""

    seq_len: int
    global_batch: int
    """Sequences per step."""
    precision: Precision = PRECISIONS["bf16"]
    optimizer: str = "adam"
    training: bool = True
    attention_kernel: Literal["flash", "materialised"] = "flash"
    software: str = DEFAULT_SOFTWARE
    """The framework, by its name in the library."""
    expert_imbalance: float = 1.0
    """Tokens of the fullest expert rank over the mean."""
    tokens: float | None = None
    """Tokens of the whole run, for days and cost."""
    sequence_lengths: tuple[tuple[int, float], ...] = ()
    """A distribution (length, share) for variable-length batches; empty when all are `seq_len`."""
    calibration: Calibration | None = None
    """Measured runs that predictions are fitted to; None for the library's own."""

    def __post_init__(self) -> None:
        check = Check("workload")
        check.whole("seq_len", self.seq_len)
        check.whole("global_batch", self.global_batch)
        if check.positive("expert_imbalance", self.expert_imbalance):
            check.that(
                self.expert_imbalance >= 1, "expert_imbalance", self.expert_imbalance, "is at least 1 (balanced)"
            )
        if self.tokens is not None:
            check.positive("tokens", self.tokens)
        check.done()
        if self.optimizer not in OPTIMIZER_MOMENTS:
            raise UnsupportedError(unknown_name("optimizer", self.optimizer, OPTIMIZER_MOMENTS), code="MW404")

    @property
    def tokens_per_step(self) -> int:
        """Sequences times length."""
        return self.seq_len * self.global_batch

    def with_batch(self, global_batch: int) -> Workload:
        """The same step with another batch."""
        return replace(self, global_batch=global_batch)

    def describe(self) -> dict[str, object]:
        """The `workload` entry of a plan set."""
        return {
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "tokens_per_step": self.tokens_per_step,
            "dtype": self.precision.name,
            "optimizer": self.optimizer,
            "training": self.training,
            "attention_kernel": self.attention_kernel,
            "expert_imbalance": self.expert_imbalance,
            "tokens": self.tokens,
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
