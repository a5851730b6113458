"""Every range of layers on every submesh: what its best shardings take, by logical mesh and price of memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.sharding.cost import LogicalMesh
from meshwright.compiler.stages.islands import Islands, Submesh
from meshwright.compiler.stages.layers import Content
from meshwright.compiler.stages.tables import PRICES, Border, Joined, LayerProblem, Terms, columns_of, joined_layers
from meshwright.shapes import Float

COLUMNS = 5


@dataclass(frozen=True, slots=True)
class RangeVariant:
    """One way to run any range of layers."""

    submesh: int
    """Place in the list of submeshes."""
    view: tuple[int, ...]
    price: float
    """Relative price of memory in the objective."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LayerRanges:
    """Columns of layers a to b on every variant; infinite where b comes before a."""

    variants: tuple[RangeVariant, ...]
    columns: Float[np.ndarray, "columns variants layers layers"]
    """Seconds, seconds of the forward, bytes of state, kept bytes, transient bytes."""

    @property
    def total_s(self) -> Float[np.ndarray, "variants layers layers"]:
        """Forward and backward of one micro-batch, recomputation with them."""
        return self.columns[0]

    @property
    def forward_s(self) -> Float[np.ndarray, "variants layers layers"]:
        """Forward time of one micro-batch."""
        return self.columns[1]

    @property
    def state_bytes(self) -> Float[np.ndarray, "variants layers layers"]:
        """Bytes on one device that do not depend on the micro-batches in flight."""
        return self.columns[2]

    @property
    def kept_bytes(self) -> Float[np.ndarray, "variants layers layers"]:
        """Bytes on one device for each micro-batch in flight."""
        return self.columns[3]

    @property
    def transient_bytes(self) -> Float[np.ndarray, "variants layers layers"]:
        """Bytes on one device while a layer runs."""
        return self.columns[4]

    def fit_freely(self, limits_bytes: Sequence[float], micro_batches: int) -> bool:
        """Whether every range leaves half of its memory free, with all micro-batches in flight.

        Args:
            limits_bytes: the limits in bytes of one device, by submesh.
            micro_batches: the number of micro-batches of a step.
        """
        held = self.state_bytes + self.kept_bytes * micro_batches + self.transient_bytes
        limits = np.array([limits_bytes[variant.submesh] for variant in self.variants])
        return bool(np.all(~np.isfinite(held) | (held <= 0.5 * limits[:, None, None])))


def ranges_of(
    layers: Sequence[CutStage],
    contents: Sequence[Content],
    islands: Islands,
    submeshes: Sequence[Submesh],
    terms: Terms,
    recompute: Sequence[bool],
    views: Mapping[Submesh, Sequence[tuple[int, ...]]] | None = None,
    *,
    prices: Sequence[float] = PRICES,
    read: dict[LogicalMesh, dict[int, LayerProblem]] | None = None,
) -> tuple[LayerRanges, ...]:
    """Price all ranges, with and without recomputation; equal layers once, and equal rows of layers once.

    Args:
        layers: the layers of a loss, for one micro-batch.
        contents: the contents of each, equal for equal layers.
        islands: the islands where they run.
        submeshes: the submeshes that a stage may have.
        terms: the terms of the whole plan.
        recompute: whether every layer runs its forward again; one answer for each.
        views: logical meshes of each submesh; all without it.
        prices: the prices of a byte, relative to the step, the first of which is 0.
        read: layers that were read before, by mesh and number; grows.
    """
    read = {} if read is None else read
    first = {content: number for number, content in reversed(list(enumerate(contents)))}
    numbers = [first[content] for content in contents]
    variants: list[RangeVariant] = []
    columns: list[list[Float[np.ndarray, "columns layers layers"]]] = [[] for _ in recompute]
    # Groups of one kind are priced once.
    priced: dict[LogicalMesh, list[list[Float[np.ndarray, "columns layers layers"]]]] = {}
    for place, submesh in enumerate(submeshes):
        group = islands.groups[submesh.group]
        tried = prices if submesh.devices > 1 else prices[:1]
        for view in group.views(submesh.devices) if views is None else views[submesh]:
            mesh = group.mesh(view)
            variants += [RangeVariant(place, view, price) for price in tried]
            if mesh not in priced:
                if mesh not in read:
                    read[mesh] = {number: LayerProblem.of(layers[number], mesh, terms) for number in set(numbers)}
                priced[mesh] = [_priced(read[mesh], numbers, tried, again) for again in recompute]
            for own, found in zip(columns, priced[mesh], strict=True):
                own += found
    return tuple(LayerRanges(variants=tuple(variants), columns=np.stack(own, axis=1)) for own in columns)


def _priced(
    problems: Mapping[int, LayerProblem], numbers: Sequence[int], prices: Sequence[float], recompute: bool
) -> list[Float[np.ndarray, "columns layers layers"]]:
    """All ranges on one logical mesh, for every price of memory."""
    tables = {number: problem.tables(prices, recompute=recompute) for number, problem in problems.items()}
    return [
        _all_ranges(numbers, {number: (row[at].objective_s, columns_of(row[at])) for number, row in tables.items()})
        for at in range(len(prices))
    ]


def _all_ranges(
    numbers: Sequence[int], parts: Mapping[int, tuple[Border, Float[np.ndarray, "columns handed_in handed_on"]]]
) -> Float[np.ndarray, "columns layers layers"]:
    """Best columns of each range: one product of tables per distinct row of layers."""
    count = len(numbers)
    found = np.full((COLUMNS, count, count), np.inf)
    # The first of some layers receives something, but from another mesh, so it takes any placement.
    known: dict[Hashable, tuple[int, Joined, Float[np.ndarray, " columns"]]] = {}
    for start in range(count):
        prefix, before = -1, None
        for end in range(start, count):
            key = prefix, numbers[end]
            if key not in known:
                grown = joined_layers(before, *parts[numbers[end]])
                known[key] = len(known), grown, grown.best()
            prefix, before, found[:, start, end] = known[key]
    return found
