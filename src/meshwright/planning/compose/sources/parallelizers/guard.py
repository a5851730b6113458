"""Any parallelizer, run so that it cannot spoil a search: what raises, hangs or claims the impossible is skipped.

A false claim is an answer that cannot be: more devices than were given, layers that are not the slice's, times that are
negative or quicker than the devices' peak allows.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.errors import MeshwrightError
from meshwright.specs.cluster import Island
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan
from meshwright.specs.workload import Workload
from meshwright.units import seconds

TIME_LIMIT_S = 60.0
"""Time limit of one question; planners of equal devices answer for one slice in less."""
MOST_SHOWN = 400
"""Characters of what a parallelizer raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A question that was not answered, or an answer that was not taken."""

    parallelizer: str
    part: str
    """The slice and the island, in words."""
    reason: str

    def __str__(self) -> str:
        return f"{self.parallelizer} on {self.part}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class Guarded:
    """A parallelizer that never raises, always ends and answers what can be."""

    inner: Parallelizer
    time_limit_s: float = TIME_LIMIT_S
    """Time limit of one question. A parallelizer that takes longer is given up: a thread cannot be stopped."""
    skips: list[Skip] = field(default_factory=list)
    asked: int = 0
    taken: int = 0
    """Partial plans that were taken."""
    hung: bool = False

    @property
    def name(self) -> str:
        """Name of the parallelizer."""
        return str(getattr(self.inner, "name", type(self.inner).__name__))

    @property
    def every_size(self) -> bool:
        """Whether its answer for an island holds those for every smaller part of it."""
        return bool(getattr(self.inner, "every_size", False))

    @property
    def slow(self) -> bool:
        """Whether a question takes it seconds."""
        return bool(getattr(self.inner, "slow", False))

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """The partial plans that can be; arguments as `Parallelizer.plan`."""
        where = slice_words(part, island)
        if self.hung:
            return []
        self.asked += 1
        answer = self._answer(part, island, workload, micro_batch)
        if isinstance(answer, str):
            self._skip(where, answer)
            return []
        good: list[PartialPlan] = []
        for number, plan in enumerate(answer, 1):
            wrong = _wrong(plan, part, island, workload, micro_batch)
            if wrong is None:
                good.append(plan)
            else:
                self._skip(where, f"answer {number} of {len(answer)} cannot be: {wrong}")
        self.taken += len(good)
        return good

    def report(self) -> list[str]:
        """What was skipped, equal reasons together, the most frequent first."""
        by_reason = Counter(skip.reason for skip in self.skips)
        first = {skip.reason: skip for skip in reversed(self.skips)}
        return [
            f"{first[reason]}" + (f" (and {count - 1} more like it)" if count > 1 else "")
            for reason, count in by_reason.most_common()
        ]

    def _skip(self, where: str, reason: str) -> None:
        self.skips.append(Skip(parallelizer=self.name, part=where, reason=reason))

    def _answer(
        self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int
    ) -> list[PartialPlan] | str:
        """What the parallelizer says, or why it said nothing."""
        said: list[object] = []
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                said.append(self.inner.plan(part, island, workload, micro_batch))
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=ask, name=f"parallelizer {self.name}", daemon=True)
        thread.start()
        thread.join(self.time_limit_s)
        if thread.is_alive():
            self.hung = True
            return f"gave no answer within {seconds(self.time_limit_s)}; it is asked nothing more"
        if raised:
            return _said(raised[0])
        if not isinstance(said[0], list):
            return f"answered with {type(said[0]).__name__}, not with a list of partial plans"
        return said[0]


def _wrong(plan: object, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> str | None:
    """The first reason why an answer cannot be, or that it cannot even be read."""
    try:
        return next(false_claims(plan, part, island, workload, micro_batch), None)
    except Exception as error:
        return f"it cannot be read: {_said(error)}"


def _said(error: BaseException) -> str:
    """An exception in a sentence."""
    if isinstance(error, MeshwrightError):
        return "; ".join(f"{one.what} ({one.why})" if one.why else one.what for one in error.problems)[:MOST_SHOWN]
    text = " ".join(str(error).split())[:MOST_SHOWN]
    return f"raised {type(error).__name__}" + (f": {text}" if text else "")


def slice_words(part: ModelSlice, island: Island) -> str:
    """A slice and an island in words: `20 layers and the head on 16 of H100`."""
    edges = [name for name, held in (("the embedding", part.embedding), ("the head", part.head)) if held]
    layers = f"{part.num_layers} layer{'s' if part.num_layers != 1 else ''}"
    return f"{' and '.join([layers, *edges])} on {island.devices} of {island.group.name}"


def false_claims(plan: object, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> Iterator[str]:
    """Why an answer cannot be; nothing where it can.

    The least time of a forward pass is 2 FLOP for each active parameter and token at the highest peak of the devices:

        forward_s >= 2 x parameters x tokens / (devices x peak)

    Args:
        plan: the answer.
        part: the slice that was asked for.
        island: the devices that were given.
        workload: the step.
        micro_batch: sequences that were asked for.
    """
    if not isinstance(plan, PartialPlan):
        yield f"it is a {type(plan).__name__}, not a PartialPlan"
        return
    devices = plan.devices
    if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= island.devices:
        yield f"it uses {devices!r} devices of the {island.devices} it was given"
        return
    if plan.micro_batch != micro_batch:
        yield f"its micro-batch is {plan.micro_batch!r}, asked for was {micro_batch}"
    for name in ("forward_s", "backward_s", "sync_s", "state_bytes", "activation_bytes"):
        value = getattr(plan, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            yield f"{name} is {value!r}, not a number of at least 0"
            return
    held = sum(run.layers for run in plan.runs)
    if held != part.num_layers:
        yield f"it holds {held} layers, the slice has {part.num_layers}"
    if any(run.layers < 1 or not 0 <= run.strategy < len(plan.strategies) for run in plan.runs):
        yield f"a run names a strategy beyond its {len(plan.strategies)}, or no layer"
        return
    for strategy in plan.strategies:
        if strategy.devices != devices:
            yield f"tp {strategy.tp} x cp {strategy.cp} x dp {strategy.dp} is not {devices} devices"
        if micro_batch % strategy.dp:
            yield f"dp {strategy.dp} does not divide the micro-batch of {micro_batch} sequences"
    least_s = least_forward_s(part, island, workload, micro_batch, devices)
    # One percent for what a parallelizer rounds.
    if plan.forward_s < 0.99 * least_s:
        shown = f"{seconds(plan.forward_s)}, less than the {seconds(least_s)} at their peak"
        yield f"a forward pass on {devices} devices takes {shown}"


def least_forward_s(part: ModelSlice, island: Island, workload: Workload, micro_batch: int, devices: int) -> float:
    """Seconds that no forward pass of a slice can beat; arguments as `false_claims`."""
    hidden = part.model.hidden
    parameters = sum(layer.active_parameters(hidden) * count for layer, count in part.layers)
    peak = max(peak for _, peak in island.group.device.peak_flop_per_s)
    return 2.0 * parameters * micro_batch * workload.seq_len / (devices * peak)
