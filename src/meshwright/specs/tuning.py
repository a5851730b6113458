"""What part of a model is trained: everything, all but frozen parts, or adapters of low rank beside frozen weights.

    LoRA   y = W x + B A x      W frozen, A (rank x inputs) and B (outputs x rank) trained
    DoRA   y = m (W + B A) x / ||W + B A||      m, one number per output, trained too
    QLoRA  LoRA whose W is stored in 4 bits and made 16-bit before each product

Source: Hu et al. 2021 (arXiv 2106.09685); Liu et al. 2024 (arXiv 2402.09353); Dettmers et al. 2023 (arXiv 2305.14314).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check

BLOCK, SECOND_BLOCK = 64, 256
"""Weights that share a scale, and scales that share one when scales are quantised themselves. Source: Dettmers et al.
2023 (arXiv 2305.14314), section 3: blocks of 64 weights, 8-bit scales in blocks of 256."""
_ONE_SCALE = 4.0 / BLOCK
_TWO_SCALES = (1.0 + 4.0 / SECOND_BLOCK) / BLOCK

STORED_BYTES: dict[str, float] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp32": 4.0,
    "fp8": 1.0,
    "int8": 1.0,
    "nf4": 0.5 + _TWO_SCALES,
    "nf4-single": 0.5 + _ONE_SCALE,
    "fp4": 0.5 + _TWO_SCALES,
    "fp4-single": 0.5 + _ONE_SCALE,
}
"""Bytes of a frozen weight by the format it is stored in, scales included: 4.127 bits for nf4 with double quantisation,
4.5 with one fp32 scale per block. Scales of int8 rows and fp8 tensors are below 0.1%."""

BITSANDBYTES = ("nf4", "nf4-single", "fp4", "fp4-single", "int8")
"""Stored formats that are bitsandbytes' own, which PEFT loads."""

MADE_AGAIN_BYTES = 2.0
"""Bytes of a weight in the 16-bit copy that a product computes with where it is stored in fewer."""

PARTS = ("embedding", "head", "attention", "mlp", "experts", "router", "norms")
"""Parts that may be frozen, or trained beside adapters. `mlp` is a dense MLP, or the shared expert; the final norm
belongs to the head, and a tied table is one part: `embedding`."""
WHOLES = ("text", "vision", "audio", "encoder", "projector")
"""What may be frozen as a whole: the text's embedding, layers and head; a stream's stem and layers by its name; what
stands between streams and the text."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Adapters of low rank beside frozen weights."""

    rank: int
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """Modules by the names of PEFT or NeMo; `all-linear` for every product of the layers but the router."""
    base: str | None = None
    """Format in which products of the layers are stored, in `STORED_BYTES`; None for that of trained weights."""
    dora: bool = False
    dropout: float = 0.0
    """Share of an adapter's inputs set to zero."""
    layers: tuple[tuple[int, int], ...] = ()
    """First and last layers that have adapters; empty for all."""
    train: tuple[str, ...] = ()
    """Parts of the model trained besides, in `PARTS`."""
    parameters: tuple[str, ...] = ()
    """Modules whose adapter is added to the whole weight before each product, as PEFT has it of parameters that are no
    modules (`target_parameters`): experts of a layer together, a router."""
    ranks: tuple[tuple[str, int], ...] = ()
    """Modules of another rank, and that rank (`rank_pattern`)."""
    skip: tuple[str, ...] = ()
    """Parts in `PARTS` whose products keep the format of trained weights whatever `base` says."""

    def __post_init__(self) -> None:
        check = Check("LoRA")
        check.whole("rank", self.rank)
        for name, rank in self.ranks:
            check.whole(f"rank of {name}", rank)
        named = bool(self.targets or self.parameters)
        check.that(named, "targets", self.targets, "names no module", "use all-linear")
        if self.base is not None:
            check.one_of("base", self.base, tuple(STORED_BYTES))
        if check.positive("dropout", self.dropout, zero=True):
            check.that(self.dropout < 1, "dropout", self.dropout, "is a share below 1")
        for part in self.train:
            check.one_of("train", part, (*PARTS, *WHOLES))
        for part in self.skip:
            check.one_of("skip", part, PARTS)
        check.done()

    def rank_of(self, names: tuple[str, ...], part: str) -> int:
        """Rank of the adapter of a module.

        Args:
            names: the names of the module.
            part: the part of the layer that it belongs to.
        """
        own = {name: rank for name, rank in self.ranks if name.rpartition(".")[0] in ("", part)}
        return next((rank for name, rank in own.items() if name.rpartition(".")[2] in names), self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A part that is not trained, in all layers or some."""

    part: str
    """A name in `PARTS` or `WHOLES`, or `layers` for all parts of layers."""
    layers: tuple[int, int] | None = None
    """First and last layer of the text; None for all layers."""

    def __post_init__(self) -> None:
        check = Check("frozen part")
        check.one_of("part", self.part, (*PARTS, *WHOLES, "layers"))
        outside = self.layers is not None and self.part in ("embedding", "head", *WHOLES)
        check.that(not outside, "layers", self.layers, f"the {self.part} is outside the layers", "leave them out")
        check.done()

    def holds(self, layer: int, part: str) -> bool:
        """Whether it freezes a part of a layer."""
        within = self.layers is None or self.layers[0] <= layer <= self.layers[1]
        return within and self.part in (part, "layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is trained where not everything is: adapters, or all but frozen parts."""

    lora: Lora | None = None
    frozen: tuple[Frozen, ...] = ()
    """What is frozen without adapters; with them everything that `train` does not name is frozen."""

    def __post_init__(self) -> None:
        check = Check("tuning")
        check.that(
            (self.lora is None) != (not self.frozen),
            "frozen",
            self.frozen,
            "is for training without adapters, which freeze the weights that they are added to",
            "state lora, or frozen parts",
        )
        check.done()

    def freezes(self, part: Literal["embedding", "head"]) -> bool:
        """Whether a part outside the layers is frozen."""
        if self.lora is not None:
            return not {part, "text"} & set(self.lora.train)
        return any(one.part in (part, "text") for one in self.frozen)

    def freezes_around(self, stream: str, part: Literal["stem", "projector"]) -> bool:
        """Whether what stands before or behind the layers of a stream is frozen.

        Args:
            stream: its name.
            part: a stem is part of its stream.
        """
        whole = "projector" if part == "projector" else stream
        if self.lora is not None:
            return whole not in self.lora.train
        return any(one.part == whole for one in self.frozen)

    def of_layer(self, layer: int, stream: str = "", *, tower: bool = False) -> LayerTuning | None:
        """What it says of one layer, without what lies before; None where all of it is trained.

        Args:
            layer: number from 0 among those of the text; -1 for a stream's.
            stream: the stream whose layer it is; the text's where empty.
            tower: whether the stream is one, in which no adapters stand.
        """
        inside, whole = tuple(part for part in PARTS if part not in ("embedding", "head")), stream or "text"
        if self.lora is None:
            frozen = tuple(part for part in inside if any(one.holds(layer, part) for one in self.frozen))
            if any(one.part == whole for one in self.frozen):
                frozen = inside
            return LayerTuning(frozen=frozen) if frozen else None
        lora, spans = self.lora, self.lora.layers
        if whole in lora.train:
            return None
        here = not tower and (not spans or any(first <= layer <= last for first, last in spans))
        frozen = tuple(part for part in inside if part not in lora.train)
        return LayerTuning(frozen=frozen, lora=lora if here else None, base=lora.base, skip=lora.skip)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTuning:
    """What part of one layer is trained."""

    frozen: tuple[str, ...]
    """Parts."""
    lora: Lora | None = None
    base: str | None = None
    """Format of its frozen products."""
    skip: tuple[str, ...] = ()
    """Parts whose products are stored as trained ones are, whatever `base` says."""
    reached: bool = True
    """Whether gradients flow into it: no layer below the first trained parameter has a backward pass."""
