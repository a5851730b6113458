"""What was seen beside what our operator list says, and what the products seen cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers import mixing
from meshwright.estimate.result import StageEstimate
from meshwright.kernels import compute
from meshwright.records import Record
from meshwright.specs.precision import Precision
from meshwright.xray.ours import Gemm, RankWork, gemm_of
from meshwright.xray.traced import Traced

PADDING = 0.005
"""Relative difference of bytes that buckets of gradients may be padded by."""
STEPWISE = ("dp", "edp")
"""Groups whose collectives are cut into buckets as the framework likes: their bytes are compared, not their number."""
KINDS = ("weights", "gradients", "optimizer", "activations", "transient")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRow(Record):
    """Products of one shape."""

    phase: str
    groups: int
    result: tuple[int, int]
    """Sizes of the result, the smaller first."""
    inner: int
    """What is summed over."""
    seen: int
    ours: int
    seconds: float | None
    """Seconds of the products seen, by our kernels; None where the format of the products is not known."""
    in_pieces: bool = False
    """Whether products of the same input make as much, cut or joined otherwise."""

    @property
    def same(self) -> bool:
        """Whether both have as many, or make as much in other pieces."""
        return self.seen == self.ours or self.in_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow(Record):
    """Collectives of one kind, group and size; those of a step's gradients together."""

    kind: str
    group: str
    ranks: int
    phase: str
    payload_bytes: int
    """Bytes of each; of all where they are a step's."""
    seen: int
    ours: int | None
    """None where only the bytes are known."""
    ours_bytes: int
    unpriced: str = ""
    """What it is, where our list has it and no price does."""

    @property
    def same(self) -> bool:
        """Whether both have as many, or for a step as many bytes."""
        if self.ours is not None:
            return self.seen == self.ours
        return abs(self.payload_bytes - self.ours_bytes) <= PADDING * max(self.payload_bytes, self.ours_bytes)

    @property
    def hidden(self) -> bool:
        """Whether they run inside a kernel of attention, where none is seen: Transformer Engine passes keys round."""
        return self.group == "cp" and not self.seen and bool(self.ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow(Record):
    """Bytes of one kind when most live."""

    kind: str
    seen_bytes: int
    ours_bytes: float


def product_rows(
    seen: Traced, ours: RankWork, hardware: Hardware, precision: Precision, *, in_pieces: bool = False
) -> tuple[ProductRow, ...]:
    """Products of all shapes, most work first.

    Args:
        seen: the rank.
        ours: what our list says of it.
        hardware: the hardware that times them.
        precision: the precision of the job.
        in_pieces: whether products of one input may be cut and joined.
    """
    counts: Counter[Gemm] = Counter()
    seconds: dict[Gemm, float] = {}
    for one in seen.operators:
        if one.is_gemm:
            groups, m, n, k = one.shape
            key = gemm_of(one.phase, groups, m, n, k)
            counts[key] += one.count
            seconds[key] = seconds.get(key, 0.0) + one.count * _gemm_s(one.shape, hardware, precision)
    if in_pieces:  # a gate of one column is a pass over its input, a vector operator in our list
        counts = Counter({key: count for key, count in counts.items() if 1 not in key[2:]})
    own = {key for key, count in ours.gemms.items() if count}
    keys = sorted({*counts, *own}, key=lambda key: (-_work(key), key[0], key))
    alike = _alike(counts, ours) if in_pieces else frozenset[Class]()
    return tuple(
        ProductRow(
            phase=key[0],
            groups=key[1],
            result=(key[2], key[3]),
            inner=key[4],
            seen=counts[key],
            ours=ours.gemms[key],
            seconds=seconds.get(key),
            in_pieces=counts[key] != ours.gemms[key] and _class_of(key, ours)[0] in alike,
        )
        for key in keys
    )


Class = tuple[str, int, int, int]
"""Phase, groups, tokens and width of an input; of the backward pass, phase and groups."""


def _class_of(key: Gemm, ours: RankWork) -> tuple[Class, int]:
    """Products that one input could be cut into, and what this one makes of it: a width, backward its work."""
    phase, groups, low, high, inner = key
    if phase == "backward":
        return (phase, groups, 0, 0), low * high * inner
    tokens, width = (low, high) if (groups, low) in ours.rows else (high, low)
    return (phase, groups, tokens, inner), width


def _alike(counts: Counter[Gemm], ours: RankWork) -> frozenset[Class]:
    """Classes in which both make as much."""
    made: Counter[Class] = Counter()
    for sign, products in ((1, counts), (-1, ours.gemms)):
        for key, count in products.items():
            of, width = _class_of(key, ours)
            made[of] += sign * width * count
    return frozenset(of for of, rest in made.items() if rest == 0)


def _work(key: Gemm) -> int:
    return key[1] * key[2] * key[3] * key[4]


def _gemm_s(shape: tuple[int, ...], hardware: Hardware, precision: Precision) -> float:
    groups, m, n, k = (np.array([float(one)]) for one in shape)
    seconds = compute.gemm_s(
        m,
        n,
        k,
        groups=groups,
        roof=mixing.roof(hardware, hardware.head_flop_per_s, hardware.head_fraction),
        tiles=mixing.tiles(hardware, precision.activations),
        input_bytes=precision.bytes_of("activations"),
        output_bytes=precision.bytes_of("activations"),
    )
    return float(np.asarray(seconds).reshape(-1)[0])


def collective_rows(seen: Traced, ours: RankWork) -> tuple[CollectiveRow, ...]:
    """Collectives by group and kind."""
    counts: Counter[tuple[str, str, int, str, int]] = Counter()
    step: dict[tuple[str, str, int], tuple[int, int]] = {}
    for one in seen.collectives:
        if one.group in STEPWISE:
            count, size = step.get((one.kind, one.group, one.ranks), (0, 0))
            step[(one.kind, one.group, one.ranks)] = count + one.count, size + one.count * one.payload_bytes
        else:
            counts[(one.kind, one.group, one.ranks, one.phase, one.payload_bytes)] += one.count
    own = {key: count for key, count in ours.collectives.items() if count}
    return tuple(
        sorted(
            [*_counted(counts, own, ours.unpriced), *_stepwise(step, own)],
            key=lambda row: (row.group, row.kind, row.phase),
        )
    )


def _counted(
    counts: Counter[tuple[str, str, int, str, int]],
    own: dict[tuple[str, str, int, str, int], int],
    unpriced: dict[tuple[str, str, int, str, int], str],
) -> Iterator[CollectiveRow]:
    for key in sorted(set(counts) | {key for key in own if key[3] != "step"}):
        kind, group, ranks, phase, size = key
        yield CollectiveRow(
            kind=kind,
            group=group,
            ranks=ranks,
            phase=phase,
            payload_bytes=size,
            seen=counts[key],
            ours=own.get(key, 0),
            ours_bytes=size,
            unpriced=unpriced.get(key, ""),
        )


def _stepwise(
    step: dict[tuple[str, str, int], tuple[int, int]], own: dict[tuple[str, str, int, str, int], int]
) -> Iterator[CollectiveRow]:
    expected = {key[:3]: key[4] for key in own if key[3] == "step"}
    for key in sorted(set(step) | set(expected)):
        count, size = step.get(key, (0, 0))
        yield CollectiveRow(
            kind=key[0],
            group=key[1],
            ranks=key[2],
            phase="step",
            payload_bytes=size,
            seen=count,
            ours=None,
            ours_bytes=expected.get(key, 0),
        )


def memory_rows(seen: Traced, stage: StageEstimate, hardware: Hardware) -> tuple[MemoryRow, ...]:
    """Bytes by kind at the fullest moment.

    What lives only in the backward pass, or goes before it, is transient; so is the scratch memory of matrix libraries,
    which lies in no tensor and is added as we count it.

    Args:
        seen: the rank.
        stage: what we say of its stage.
        hardware: the device, for its libraries.
    """
    peak = {**seen.peak.by_kind}
    peak["transient"] = peak.pop("backward", 0) + int(hardware.efficiency.workspace_bytes)
    ours = dict(stage.memory_bytes)
    return tuple(MemoryRow(kind=kind, seen_bytes=peak.get(kind, 0), ours_bytes=ours[kind]) for kind in KINDS)
