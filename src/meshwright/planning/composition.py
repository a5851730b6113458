"""What there is to say about plans that other parallelizers made parts of: who planned what, and what was skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.units import percent, seconds

MOST_SKIPS = 6
"""Reasons of skips that are said in words; all of them are in the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """A stage of the best plan and whose it is."""

    pipeline: int
    stage: int
    layers: tuple[int, int]
    """First and last."""
    group: str
    devices: int
    parallelizer: str
    strategies: tuple[str, ...]
    """Of its runs of layers, with their numbers of layers where there are several."""
    claimed_s: float
    """Forward and backward of a micro-batch, as it says."""
    priced_s: float
    """Likewise, as `estimate` says."""

    def text(self) -> str:
        """One line."""
        first, last = self.layers
        held = f"layer {first}" if first == last else f"layers {first}-{last}"
        return (
            f"pipeline {self.pipeline} stage {self.stage}: {held} on {self.devices} {self.group} by "
            f"{self.parallelizer}, {', '.join(self.strategies)}; a micro-batch takes {seconds(self.priced_s)}, "
            f"{self.parallelizer} says {seconds(self.claimed_s)}"
        )

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "pipeline": self.pipeline,
            "stage": self.stage,
            "layers": list(self.layers),
            "group": self.group,
            "devices": self.devices,
            "parallelizer": self.parallelizer,
            "strategies": list(self.strategies),
            "claimed_micro_batch_s": self.claimed_s,
            "micro_batch_s": self.priced_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """How the plans of an answer were composed of partial plans."""

    parallelizers: tuple[str, ...]
    step_time_s: float
    claimed_s: tuple[float, ...]
    """Step of each plan by what its parallelizers say of their slices."""
    slices: tuple[PlannedSlice, ...]
    """Of the best plan."""
    skips: tuple[str, ...]
    """What was not answered, or answered and not taken, and why."""
    counts: Mapping[str, int]
    own: str = ""
    """Title of the plan of our own search, nothing where it found none."""
    own_s: float | None = None
    tight: bool = False
    """Whether the plans leave less memory free than those of our own search."""

    def lines(self) -> tuple[str, ...]:
        """The answer's part in words."""
        said = self.claimed_s[0] / self.step_time_s - 1.0
        off = "as much" if abs(said) < 0.005 else f"{percent(abs(said))} {'more' if said > 0 else 'less'}"
        found = [one.text() for one in self.slices[:8]]
        if len(self.slices) > 8:
            found.append(f"and {len(self.slices) - 8} stages more")
        found.append(
            f"its parallelizers say {seconds(self.claimed_s[0])} a step, {off} than estimate, which prices every plan"
            if off != "as much"
            else f"its parallelizers say {seconds(self.claimed_s[0])} a step too"
        )
        if self.own_s is not None:
            change = self.own_s / self.step_time_s - 1.0
            than = (
                "no slower"
                if abs(change) < 0.0005
                else f"{percent(abs(change))} {'slower' if change > 0 else 'faster'}"
            )
            found.append(
                f"meshwright's own search: {seconds(self.own_s)}, {than}{', more memory left' * self.tight}: {self.own}"
            )
        found += [f"skipped: {line}" for line in self.skips[:MOST_SKIPS]]
        if len(self.skips) > MOST_SKIPS:
            found.append(f"skipped: {len(self.skips) - MOST_SKIPS} reasons more; --json has them")
        return tuple(found)

    def searched(self) -> str:
        """What was looked at."""
        looked = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if ":" not in name)
        return f"search: {looked}; the best found, not proved the best"

    def to_dict(self) -> dict[str, object]:
        """The `composition` entry of a plan set."""
        return {
            "parallelizers": list(self.parallelizers),
            "claimed_step_time_s": list(self.claimed_s),
            "slices": [one.to_dict() for one in self.slices],
            "skipped": list(self.skips),
            "own_search": None if self.own_s is None else {"title": self.own, "step_time_s": self.own_s},
        }

    def search(self) -> dict[str, object]:
        """The `search` entry of a plan set."""
        return {
            "space": self.counts.get("partial plans", 0),
            "priced": self.counts.get("priced in full", 0),
            "feasible": self.counts.get("priced in full", 0) - self.counts.get("priced in full: too large", 0),
            "looked_at": {name: count for name, count in self.counts.items() if ":" not in name},
            "pruned": {name: count for name, count in self.counts.items() if ":" in name},
            "optimal": False,
            "bound_step_time_s": None,
        }
