"""A strategy for every layer of a stage under a memory budget: a knapsack over its layers.

    least[k, v, g] = min over strategies s of  least[k - 1, v - size(s), group(s)] + time(s) (+ a move between groups)

with memory v in coarse units, rounded up, so that what is found fits. Working memory is that of the layer which needs
most of it and no sum, so that a program is solved for each size it may have.

Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism" (VLDB
2022), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from meshwright.estimate.memory import COMMUNICATOR_BYTES
from meshwright.shapes import Float, Int
from meshwright.specs.strategy import LayerStrategy
from meshwright.units import MIB

UNIT_BYTES = 64 * MIB
"""Unit of memory in the dynamic program."""
ROUNDING = 1e-12
"""Share of a time by which sums of equal terms differ."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LayerOptions:
    """Strategies of a layer on the devices of one stage, one a row."""

    strategies: tuple[LayerStrategy, ...]
    time_s: Float[np.ndarray, " options"]
    """Seconds of one micro-batch, synchronisation shared among them."""
    forward_s: Float[np.ndarray, " options"]
    """Part of it."""
    sync_s: Float[np.ndarray, " options"]
    """Gradient sums and optimizer once a step; each micro-batch carries its share in `time_s`."""
    edge_s: Float[np.ndarray, "options edges"]
    """More in the first layer (embedding) and the last (head)."""
    edge_forward_s: Float[np.ndarray, "options edges"]
    """Part of it."""
    state_bytes: Float[np.ndarray, " options"]
    kept_bytes: Float[np.ndarray, " options"]
    transient_bytes: Float[np.ndarray, " options"]
    """Working memory, and buffers of the groups of devices."""
    edge_bytes: Float[np.ndarray, "options edges"]
    micro_batches: int
    """Micro-batches that share what happens once a step."""
    group: Int[np.ndarray, " options"]
    """Equal for options between which activations need not move."""
    move_s: float


class StagePrograms:
    """The quickest strategies of a stage's layers; what is found for a few layers is kept for more of them."""

    def __init__(self, options: LayerOptions, room_bytes: float) -> None:
        """Solve nothing yet.

        Args:
            options: strategies of a layer.
            room_bytes: the room bytes of a device, for states, activations and working memory.
        """
        self.options, self.room_bytes = options, room_bytes
        self._free: dict[bool, _Knapsack] = {}
        self._transients: dict[int, list[float]] = {}
        self._programs: dict[tuple[float, int, bool, bool], _Knapsack] = {}

    def best(self, layers: int, in_flight: int, embedding: bool, head: bool) -> tuple[float, list[int]] | None:
        """Seconds of a micro-batch and the option of each layer, for every size the working memory may have.

        Args:
            layers: the number of layers of the stage.
            in_flight: micro-batches that it keeps.
            embedding: whether its first layer holds the embedding.
            head: whether its last layer holds the head.
        """
        free = self._unlimited(layers, embedding, head)
        if self._fits(free[1], in_flight, embedding, head):
            return free
        best: tuple[float, list[int]] | None = None
        options = self.options
        for transient in self._working_memories(in_flight):
            key = transient, in_flight, embedding, head
            if key not in self._programs:
                allowed = np.flatnonzero(options.transient_bytes <= transient)
                held = options.state_bytes + in_flight * options.kept_bytes
                room = self.room_bytes - transient - around_bytes(embedding, head)
                self._programs[key] = _Knapsack(options, allowed, held, options.edge_bytes, embedding, room)
            program = self._programs[key]
            solved = program.solve(layers, head) if program.may_hold(layers) else None
            if solved is not None and (best is None or solved[0] < best[0]):
                best = solved
            if best is not None and best[0] <= self.least_s(layers, embedding, head):
                break
        return best

    def least_s(self, layers: int, embedding: bool, head: bool) -> float:
        """Seconds that no program of so many layers is below, whatever the memory; arguments as `best`."""
        return self._unlimited(layers, embedding, head)[0] * (1 + ROUNDING)

    def _unlimited(self, layers: int, embedding: bool, head: bool) -> tuple[float, list[int]]:
        """The quickest strategies of layers that take no memory."""
        if embedding not in self._free:
            every = np.arange(len(self.options.strategies))
            nothing = np.zeros((len(every), 2))
            self._free[embedding] = _Knapsack(self.options, every, nothing[:, 0], nothing, embedding, 0.0)
        solved = self._free[embedding].solve(layers, head)
        assert solved is not None, "nothing limits it"
        return solved

    def _fits(self, numbers: list[int], in_flight: int, embedding: bool, head: bool) -> bool:
        options, own = self.options, np.array(numbers)
        held = (options.state_bytes + in_flight * options.kept_bytes)[own].sum() + options.transient_bytes[own].max()
        ends = embedding * options.edge_bytes[own[0], 0] + head * options.edge_bytes[own[-1], 1]
        return bool(held + ends + around_bytes(embedding, head) <= self.room_bytes)

    def _working_memories(self, in_flight: int) -> list[float]:
        """Working memory of every option that may be of use: none of its group beats it in time and memory."""
        if in_flight not in self._transients:
            options = self.options
            held = options.state_bytes + in_flight * options.kept_bytes
            useful = _undominated(options, np.arange(len(held)), held, options.transient_bytes)
            self._transients[in_flight] = np.unique(options.transient_bytes[useful]).tolist()
        return self._transients[in_flight]


def around_bytes(embedding: bool, head: bool) -> float:
    """Buffers of transfers to and from other stages.

    Args:
        embedding: whether the stage is the first.
        head: whether it is the last.
    """
    return 0.0 if embedding and head else COMMUNICATOR_BYTES


class _Knapsack:
    """Layers one behind the other, each by one of some options, within the memory that is left beside their work."""

    def __init__(
        self,
        options: LayerOptions,
        allowed: Int[np.ndarray, " allowed"],
        held: Float[np.ndarray, " options"],
        edge_bytes: Float[np.ndarray, "options edges"],
        embedding: bool,
        room_bytes: float,
    ) -> None:
        self.options, self.edge_bytes, self.embedding = options, edge_bytes, embedding
        self.units = int(room_bytes // UNIT_BYTES)
        self.allowed = _undominated(options, allowed, held)
        self.held = held[self.allowed]
        self.group, self.groups = options.group[self.allowed], int(options.group.max()) + 1
        # reached[k][g, v]: least seconds of k layers within v units, for a next layer of group g; picks[k]: by which
        # option of the last of them.
        self.reached = [np.zeros((self.groups, max(self.units, 0) + 1))]
        self.picks: list[Int[np.ndarray, "groups units_plus_1"]] = []
        self.sizes: list[Int[np.ndarray, " allowed"]] = []

    def may_hold(self, layers: int) -> bool:
        """Whether so many layers fit at their smallest."""
        return layers * int(np.ceil(self.held.min() / UNIT_BYTES)) <= self.units

    def solve(self, layers: int, head: bool) -> tuple[float, list[int]] | None:
        """Seconds and the options of so many layers; None where they do not fit.

        Args:
            layers: the number of layers, at least one.
            head: whether the last of them holds the head.
        """
        if self.units < 0:
            return None
        while len(self.picks) < layers - 1:
            self._extend()
        cost_s, size = self._taken(layers - 1, head)
        left = self.units - size
        before = self.reached[layers - 1][self.group, np.maximum(left, 0)]
        values = np.where(left >= 0, cost_s + before, np.inf)
        number, room = int(values.argmin()), self.units
        least_s = float(values[number])
        if not np.isfinite(least_s):
            return None
        numbers = [number]
        for layer in range(layers - 1, 0, -1):
            room -= int((size if layer == layers - 1 else self.sizes[layer])[number])
            number = int(self.picks[layer - 1][self.group[number], room])
            numbers.append(number)
        return least_s, _in_runs([int(self.allowed[one]) for one in reversed(numbers)], self.options.group)

    def _taken(self, layer: int, head: bool) -> tuple[Float[np.ndarray, " allowed"], Int[np.ndarray, " allowed"]]:
        """Seconds and units of a layer by each option."""
        ends = np.array([layer == 0 and self.embedding, head])
        cost_s = self.options.time_s[self.allowed] + self.options.edge_s[self.allowed] @ ends
        size = np.ceil((self.held + self.edge_bytes[self.allowed] @ ends) / UNIT_BYTES).astype(int)
        return cost_s, size

    def _extend(self) -> None:
        """One more layer, behind which others follow."""
        cost_s, size = self._taken(len(self.picks), False)
        before = self.reached[-1]
        of_group = np.full_like(before, np.inf)
        chosen = np.zeros(before.shape, int)
        for number, (group, taken) in enumerate(zip(self.group.tolist(), size.tolist(), strict=True)):
            if taken > self.units:
                continue
            least, behind = of_group[group, taken:], cost_s[number] + before[group, : self.units + 1 - taken]
            chosen[group, taken:][behind < least] = number
            np.minimum(least, behind, out=least)
        quickest = of_group.argmin(axis=0)
        moved = of_group.min(axis=0) + self.options.move_s
        stays = of_group <= moved
        self.picks.append(np.where(stays, chosen, np.take_along_axis(chosen, quickest[None], axis=0)))
        self.reached.append(np.minimum(of_group, moved))
        self.sizes.append(size)


def _in_runs(numbers: list[int], group: Int[np.ndarray, " options"]) -> list[int]:
    """Equal strategies side by side where their order costs nothing: inside, between layers of one group."""
    inner = [list(same) for _, same in groupby(numbers[1:-1], key=lambda number: int(group[number]))]
    return [*numbers[:1], *(number for same in inner for number in sorted(same)), *numbers[1:][-1:]]


def _undominated(
    options: LayerOptions,
    allowed: Int[np.ndarray, " allowed"],
    held: Float[np.ndarray, " options"],
    *more: Float[np.ndarray, " options"],
) -> Int[np.ndarray, " kept"]:
    """Options no other one of the same group beats in time and memory, at the edges of the pipeline or between."""
    costs = np.column_stack([options.time_s, held, options.edge_s, options.edge_bytes, *more])[allowed]
    alike = options.group[allowed][:, None] == options.group[allowed]
    no_worse = (costs[:, None] <= costs).all(axis=2)
    better = (costs[:, None] < costs).any(axis=2) | (np.arange(len(allowed))[:, None] < np.arange(len(allowed)))
    beaten = (alike & no_worse & better).any(axis=0)
    return allowed[~beaten]
