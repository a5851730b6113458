"""The framework that drives the devices: how much of a step is its own doing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.device import Basis
from meshwright.specs.tuning import BITSANDBYTES

FlashKernel = Literal["fa1", "fa2", "best"]
WholeGradients = Literal["never", "pipelines", "always"]
DdpBuckets = Literal["", "gradients", "weights"]

CAPTURED_PARTS = ("attn", "mlp", "moe_router", "moe_preprocess")
"""What part of a layer a CUDA graph may hold by itself, as Megatron-Core names it."""

DEFAULT_SOFTWARE = "megatron-core"
"""What a workload runs under unless it says otherwise."""
USUAL_OF_VENDOR = {"Apple": "pytorch-eager", "Google": "xla"}
"""What the devices of a vendor usually run, where it is not the default: on TPUs MaxText, compiled by XLA; on Macs
PyTorch or MLX, operator by operator."""
PEFT_SOFTWARE = "transformers"
"""What loads weights of bitsandbytes, with PEFT's adapters beside them."""
LOAD_NO_BITSANDBYTES = ("megatron", "nanotron")
"""Starts of the names of frameworks whose layers are their own, made of no weights of bitsandbytes."""


def software_of_vendors(vendors: Collection[str]) -> str:
    """The framework that devices are usually trained with.

    Args:
        vendors: the vendors of the devices, as they state them.

    Returns:
        A name that `library.software` knows.
    """
    return USUAL_OF_VENDOR.get(next(iter(vendors)), DEFAULT_SOFTWARE) if len(set(vendors)) == 1 else DEFAULT_SOFTWARE


def usual_software(base: str | None, own: str = DEFAULT_SOFTWARE) -> str:
    """The framework that a question is priced under where nobody states one.

    Args:
        base: stored format of the frozen weights beside adapters; None where they are as trained weights are.
        own: what the devices are usually trained with; PEFT loads such weights in its place.

    Returns:
        A name that `library.software` knows.
    """
    if base in BITSANDBYTES:
        return PEFT_SOFTWARE
    return DEFAULT_SOFTWARE if own == PEFT_SOFTWARE else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """One framework of one time."""

    name: str
    operator_s: float
    """Host time to issue one operator beyond the driver's launch: interpreter, modules, autograd. A layer whose kernels
    are quicker waits for it."""
    vector_passes: float
    """Memory traffic of elementwise operators over that of fully fused ones, 1 or more."""
    product_share: float
    """Rate of matrix products over the best the device reaches, 0-1: layouts, libraries, clocks under load."""
    wave_loss: float
    """Largest loss of a product that does not fill its last wave of tiles, in waves, 0-1: its libraries split tiles or
    choose among shapes (0.1), or run whole waves (1)."""
    flash: FlashKernel
    """Generation of the fused attention kernels."""
    cast_passes: float
    """Passes over the inputs of an 8-bit product to scale, convert and transpose them."""
    link_share: float
    """Bandwidth that collectives reach over what the link gives to a benchmark, 0-1."""
    overlap: float
    """Share of the communication meant to be hidden that has compute beside it in time, 0-1."""
    step_s: float
    """Seconds per step outside of forward and backward, whatever the model: data, sum of the loss, waits for the norm
    of the gradients, logging."""
    engine_bytes: float
    """Device memory that the framework takes whatever the model: buckets, workspaces, its own communicators."""
    fragmentation: float
    """Device memory that the allocator holds and cannot use, over what is allocated."""
    cached: float
    """What it holds beyond that while there is room, and returns when memory is short, over what is allocated."""
    source: str
    basis: Basis = "assumed"
    score_passes: float = 1.0
    """Traffic of scale, mask and softmax on scores in memory over that of one kernel for the three."""
    unfused: bool = False
    """Whether norms and gated functions run operator by operator: norms keep their inputs in fp32, functions both of
    their factors."""
    tensor_s: float = 0.0
    """Host time to update one parameter tensor: its gradient is found and handed to the optimizer, what was updated is
    copied back. Zero where an optimizer works on flat buffers."""
    tensors_per_expert: bool = False
    """Whether each expert of a rank has parameter tensors of its own; else one holds those of all."""
    gradient_touches: float = 0.0
    """Times that a step reads or writes each whole gradient beside its sums and the update: it is set to zero, looked
    through for NaN, divided by the number of ranks. None where gradients are freed or sharded with the weights."""
    launches_experts: bool = False
    """Whether the products of each expert of a rank are launched by themselves; else one kernel takes those of all."""
    captured: tuple[str, ...] = ()
    """Parts of a layer that the host launches as one CUDA graph each, of CAPTURED_PARTS; the rest operator by
    operator."""
    backward_issue: float = 1.0
    """Host time to issue an operator backward over forward, 0-1: autograd's engine runs no modules. It tells where the
    host waits for the device before each micro-batch; else what forward issues late is made up for in backward."""
    adds_gradients: bool = False
    """Whether a finished weight gradient is added to the sum of micro-batches by a kernel of its own; else the product
    that makes it adds."""
    repeats_keys: bool = False
    """Whether keys and values are repeated for all query heads before attention, so that ranks of a sequence gather as
    many."""
    loss_copies: float = 0.0
    """Logits in fp32 that the loss makes in its own backward beyond those it keeps for it, over those: gone before the
    layers run backward."""
    split_loss_copies: float = 0.0
    """More of these where tensor ranks share the vocabulary."""
    held_logits: float = 0.0
    """Logits that the model's output holds until the step is over, over those that the loss keeps in fp32."""
    stops_recompute: bool = False
    """Whether a layer that is made again ends where backward has what it needs: its last product is not repeated."""
    wide_rest: bool = False
    """Whether weights that no quantisation of a base touches (tables, head, norms) are cast to fp32 beside it."""
    ddp_buckets: DdpBuckets = ""
    """Format of the buckets in which DistributedDataParallel sums gradients of whole copies, which it keeps beside the
    gradients themselves: that of `gradients` or of `weights`; empty where gradients lie in them."""
    whole_gradients: WholeGradients = "never"
    """Where ranks of FSDP add up whole gradients and sum them behind the last micro-batch alone (`no_sync`): nowhere,
    in stages of pipelines, or everywhere."""
    young: tuple[str, ...] = ()
    """Device generations for which this generation's libraries are young."""
    young_products: float = 1.0
    """Rate of matrix products there over what later libraries reach, 0-1.1."""
    since: str = ""
    """Month from which on these numbers hold, 2025-09."""

    def products_on(self, generation: str) -> float:
        """Rate of matrix products on a device generation over what the newest libraries of the line reach there."""
        return self.young_products if generation in self.young else 1.0

    def __post_init__(self) -> None:
        check = Check(f"software {self.name}")
        for name in (
            "operator_s",
            "step_s",
            "tensor_s",
            "gradient_touches",
            "cast_passes",
            "engine_bytes",
            "fragmentation",
            "cached",
        ):
            check.positive(name, getattr(self, name), zero=True)
        for name in ("product_share", "link_share", "wave_loss"):
            if check.positive(name, getattr(self, name)):
                check.that(getattr(self, name) <= 1, name, getattr(self, name), "is a share and cannot exceed 1")
        if check.positive("backward_issue", self.backward_issue):
            check.that(
                self.backward_issue <= 1, "backward_issue", self.backward_issue, "is a share and cannot exceed 1"
            )
        check.positive("vector_passes", self.vector_passes)
        check.positive("score_passes", self.score_passes)
        check.positive("young_products", self.young_products)
        check.positive("loss_copies", self.loss_copies, zero=True)
        check.positive("split_loss_copies", self.split_loss_copies, zero=True)
        check.positive("held_logits", self.held_logits, zero=True)
        check.positive("overlap", self.overlap, zero=True)
        check.one_of("flash", self.flash, ("fa1", "fa2", "best"))
        check.one_of("ddp_buckets", self.ddp_buckets, ("", "gradients", "weights"))
        check.one_of("whole_gradients", self.whole_gradients, ("never", "pipelines", "always"))
        for part in self.captured:
            check.one_of("captured", part, CAPTURED_PARTS)
        check.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareGeneration:
    """What a framework was at a time: ratios to the numbers of its newest generation."""

    since: str
    """Month from which on it is meant, until the next generation: 2025-09."""
    what: str
    source: str
    host: float = 1.0
    """Host time per operator."""
    passes: float = 1.0
    """Elementwise traffic."""
    hidden: float = 1.0
    """Share of communication behind compute."""
    young: tuple[str, ...] = ()
    young_products: float = 1.0
    loss_copies: float = 0.0
    split_loss_copies: float = 0.0
    held_logits: float = 0.0
    stops_recompute: bool = False
    wide_rest: bool = False

    def of(self, newest: Software) -> Software:
        """The framework of this time.

        Args:
            newest: the line's own numbers.
        """
        return replace(
            newest,
            operator_s=newest.operator_s * self.host,
            vector_passes=newest.vector_passes * self.passes,
            overlap=min(1.0, newest.overlap * self.hidden),
            young=self.young,
            young_products=self.young_products,
            loss_copies=self.loss_copies,
            split_loss_copies=self.split_loss_copies,
            held_logits=self.held_logits,
            stops_recompute=self.stops_recompute,
            wide_rest=self.wide_rest,
            since=self.since,
        )
