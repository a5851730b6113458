"""The number format of each role of a training step: recipes by name, and what a question states besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.specs.check import Check
from meshwright.specs.dtypes import DTYPE_BYTES, stored_bytes

STORED_ROLES = ("weights", "gathered", "dispatched")
"""Roles whose tensors carry the scales of their blocks with them."""


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
    dispatched: str | None = None
    """Format in which tokens travel to their experts, and gradients back to them; None for that of the activations."""
    function_inputs: str | None = None
    """Format in which inputs of the functions of MLPs are kept, None for that of activations. Megatron-Core calls it
    `activation_func_fp8_input_store`."""
    attention_inputs: str | None = None
    """Format in which queries, keys and values are kept, None for that of activations."""

    def __post_init__(self) -> None:
        check = Check(f"precision {self.name}")
        for role in ("compute", "activations", "weights", "gradients", "moments", "reduce"):
            check.one_of(role, getattr(self, role), tuple(DTYPE_BYTES))
        for role in ("master", "gathered", "dispatched", "function_inputs", "attention_inputs"):
            if getattr(self, role) is not None:
                check.one_of(role, getattr(self, role), tuple(DTYPE_BYTES))
        check.done()

    def bytes_of(self, role: str) -> float:
        """Bytes per element of a role, with block scales where the tensor is stored or sent."""
        name = getattr(self, role)
        if name is None:
            return 0.0
        return stored_bytes(name) if role in STORED_ROLES else DTYPE_BYTES[name]

    def cached_bytes(self, *, any_order: bool) -> float:
        """Extra bytes per parameter on a device.

        Args:
            any_order: whether its products read 8-bit operands in any order, so that of weights kept in fp8 with one
                scale per tensor no transposed copy is kept. Blocks are scaled along their rows, which keeps both.

        Source: NVIDIA/TransformerEngine, pytorch/csrc/extensions/util.cpp, non_tn_fp8_gemm_supported, 2025.
        """
        # Copies beside 16-bit weights count twice: three toy models of Megatron-LM's tests on GB200 are nearer to that.
        spared = DTYPE_BYTES["fp8"] if any_order and self.weights == "fp8" else 0.0
        return max(self.weight_cache_bytes - spared, 0.0)

    @property
    def quantised_when_run(self) -> bool:
        """Whether both sides of every product, weights too, are quantised whenever it runs."""
        return self.compute == "int8"

    @property
    def gathered_bytes(self) -> float:
        """Bytes of a weight on its way to other ranks."""
        return self.bytes_of("gathered") or self.bytes_of("weights")

    @property
    def dispatched_bytes(self) -> float:
        """Bytes of an element on its way to its expert."""
        return self.bytes_of("dispatched") or self.bytes_of("activations")

    @property
    def input_bytes(self) -> float:
        """Bytes of an element of a product's input kept for the backward pass."""
        return min(self.bytes_of("activations"), stored_bytes(self.compute))

    @property
    def copies_gradients(self) -> bool:
        """Whether the optimizer makes its fp32 copy of gradients when it reads them, which tiles make smaller."""
        return self.master_gradient_copy and not self.sums_in_copy

    @property
    def adding_bytes(self) -> float:
        """Bytes moved to add one finished gradient to the sum in a kernel of its own.

        Read both, write the sum; into an fp32 copy: cast (read, write 4), add (read 4 twice, write 4), clear.
        """
        gradient = self.bytes_of("gradients")
        return 2 * gradient + 16.0 if self.sums_in_copy else 3 * gradient


def _mixed(
    name: str, base: str = "bf16", *, gradients: str = "fp32", caches: float = 0.0, compute: str = ""
) -> Precision:
    """A recipe with main copies and moments in fp32 beside weights in 16 bits."""
    return Precision(
        name=name,
        compute=compute or name,
        activations=base,
        weights=base,
        gradients=gradients,
        master="fp32",
        moments="fp32",
        reduce=gradients,
        weight_cache_bytes=caches,
    )


def _whole(name: str) -> Precision:
    """A recipe that keeps everything in fp32."""
    return replace(_mixed(name, "fp32"), master=None)


PRECISIONS: dict[str, Precision] = {
    policy.name: policy
    for policy in (
        _mixed("bf16"),
        replace(_mixed("fp16", "fp16", gradients="fp16"), master_gradient_copy=True),
        # Weights are quantised once a step and kept in both layouts that products read.
        _mixed("fp8", caches=2.0),
        _mixed("fp8-block", caches=2 * stored_bytes("fp8-block")),
        _mixed("mxfp8", caches=2 * stored_bytes("mxfp8")),
        _mixed("nvfp4", caches=2.0),
        # Both sides of a product are quantised when it runs.
        _mixed("int8"),
        _whole("fp32"),
        _whole("tf32"),
    )
}
"""The recipes behind `--dtype`: Megatron-LM's mixed precision (18 bytes per parameter in bf16, 20 in fp16 and in fp8
with cached weight copies, 20 in nvfp4, 16 in fp32); block formats cache their scales, too.

Source: Megatron-LM and Transformer Engine, 2026; int8: torchao, int8 mixed-precision training, 2025.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedFormat:
    """A format that a question may state beside the recipe."""

    attribute: str
    """Attribute of `Precision` that it sets."""
    formats: tuple[str, ...]
    says: str
    """What the format is of, as it follows the name of the format."""


ROLES: dict[str, StatedFormat] = {
    "weight_dtype": StatedFormat(attribute="weights", formats=("fp8", "bf16", "fp32"), says="weights"),
    "grad_dtype": StatedFormat(attribute="gradients", formats=("fp32", "bf16", "fp16"), says="gradients"),
    "reduce_dtype": StatedFormat(
        attribute="reduce", formats=("fp32", "bf16", "fp16", "fp8", "int8", "int4"), says="gradients on the network"
    ),
    "gather_dtype": StatedFormat(
        attribute="gathered", formats=("bf16", "fp16", "fp8", "int8", "int4"), says="weights on the network"
    ),
    "moment_dtype": StatedFormat(attribute="moments", formats=("fp32", "bf16", "fp16", "fp8"), says="moments"),
    "main_copy": StatedFormat(attribute="master", formats=("fp32", "bf16", "fp16", "none"), says="main copies"),
    "dispatch_dtype": StatedFormat(
        attribute="dispatched", formats=("bf16", "fp16", "fp8", "mxfp8"), says="tokens sent to experts"
    ),
}
"""What `--grad-dtype` and its like state, by the name of the option."""

EIGHT_BIT = ("fp8", "fp8-block", "mxfp8")
"""Formats of products whose weights can be kept in 8 bits alone."""


def stated(recipe: Precision, given: Mapping[str, str]) -> Precision:
    """A recipe with formats of single roles in place of its own.

    Gradients are summed and sent in one format unless both are stated. Weights stated as fp8 are in the format of the
    products, with block scales; nothing is kept beside them but the second layout that products of the backward pass
    read where rows and columns are quantised apart (mxfp8) or must be transposed (fp8 with one scale per tensor).

    Args:
        recipe: the recipe with a name of PRECISIONS.
        given: format by name of ROLES.

    Returns:
        The recipe, named after what differs.

    Raises:
        InputError: unknown formats, or formats that cannot stand together; all problems.

    Source: layouts: NVIDIA/TransformerEngine issue 1880, 2025-06; one copy for 128 x 128 blocks: DeepSeek-V3 technical
    report (arXiv 2412.19437), 2024-12.
    """
    problems = [
        Problem(
            what=f"{name} is {str(value)[:60]!r}",
            why=f"{ROLES[name].says} can be in {', '.join(ROLES[name].formats)}",
            fix=f"for example {name} {ROLES[name].formats[0]}",
            field=name,
        )
        for name, value in given.items()
        if value not in ROLES[name].formats
    ]
    if problems:
        raise InputError(problems, code="MW206")
    made = recipe
    if "weight_dtype" in given:
        made = _KEPT[given["weight_dtype"]](recipe)
    if "grad_dtype" in given:
        made = replace(made, gradients=given["grad_dtype"], reduce=given["grad_dtype"])
        made = replace(made, master_gradient_copy=False, sums_in_copy=False)
    for name in ("reduce_dtype", "moment_dtype", "gather_dtype", "dispatch_dtype"):
        if name in given:
            changes: dict[str, Any] = {ROLES[name].attribute: given[name]}
            made = replace(made, **changes)
    if made.dispatched == "fp8":
        # Tokens travel with the scales of their blocks. Source: deepseek-ai/DeepEP, README, 2025.
        made = replace(made, dispatched="fp8-block")
    if "main_copy" in given:
        # A main copy in the format of the weights is the weights themselves.
        main = given["main_copy"]
        made = replace(made, master=None if main in ("none", made.weights) else main)
    if made.master is None and made.weights in EIGHT_BIT:
        raise InputError(
            what=f"main_copy none with weights in {made.weights}",
            why="updates are smaller than the steps of an 8-bit format, so that weights would not move",
            fix="use --main-copy bf16 or fp32",
            field="main_copy",
            code="MW206",
        )
    order = [name for name in ROLES if name in given]
    changed = [f"{name.removesuffix('_dtype').replace('_copy', '')}={given[name]}" for name in order]
    return replace(made, name=" ".join((recipe.name, *changed)))


def _in_eight_bits(recipe: Precision) -> Precision:
    """The recipe with its weights kept in the format of the products alone."""
    if recipe.compute not in EIGHT_BIT:
        raise InputError(
            what=f"weight_dtype is fp8 with products in {recipe.compute}",
            why="weights kept in 8 bits alone are read by products in 8 bits",
            fix=f"use --dtype {', '.join(EIGHT_BIT[:-1])} or {EIGHT_BIT[-1]}, or leave weight_dtype out",
            field="weight_dtype",
            code="MW206",
        )
    layouts = 1.0 if recipe.compute == "fp8-block" else 2.0
    cached = (layouts - 1.0) * stored_bytes(recipe.compute)
    return replace(recipe, weights=recipe.compute, weight_cache_bytes=cached)


def _in_sixteen_bits(recipe: Precision) -> Precision:
    """The recipe, whose weights are in bf16 already."""
    if recipe.weights != "bf16":
        raise InputError(
            what=f"weight_dtype is bf16 with --dtype {recipe.name}",
            why=f"its weights are kept in {recipe.weights}",
            fix="use --dtype bf16, or leave weight_dtype out",
            field="weight_dtype",
            code="MW206",
        )
    return recipe


def _in_whole(recipe: Precision) -> Precision:
    """The recipe, whose weights are in fp32 already."""
    if recipe.weights != "fp32":
        raise InputError(
            what=f"weight_dtype is fp32 with --dtype {recipe.name}",
            why="trained weights have their copies in fp32 beside those that products read",
            fix="use --lora to keep frozen weights in fp32, --dtype fp32, or leave weight_dtype out",
            field="weight_dtype",
            code="MW206",
        )
    return recipe


_KEPT = {"fp8": _in_eight_bits, "bf16": _in_sixteen_bits, "fp32": _in_whole}
"""What becomes of a recipe by the format of its weights."""


def precision(name: str) -> Precision:
    """The recipe of this name.

    Raises:
        UnsupportedError: for a name that is none.
    """
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UnsupportedError(unknown_name("dtype", name, PRECISIONS), code="MW403") from None
