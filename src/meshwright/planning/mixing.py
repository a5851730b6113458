"""What a composition over several kinds of device is worth, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.units import percent, seconds, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """The best plan on a part of the cluster."""

    said: str
    step_time_s: float | None
    """None where nothing fits."""
    price_per_step: float | None = None
    """USD; None where a price is not known."""

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {"devices": self.said, "step_time_s": self.step_time_s, "price_per_step": self.price_per_step}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Neighbouring stages of a pipeline on one group."""

    group: str
    pipeline: int
    stages: tuple[int, int]
    """First and last."""
    nodes: tuple[int, int]
    """Likewise, counted in the group."""
    layers: int

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "group": self.group,
            "pipeline": self.pipeline,
            "stages": list(self.stages),
            "nodes": list(self.nodes),
            "layers": self.layers,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """What the best plan gains from every kind of device, and what it rests on."""

    step_time_s: float
    used: int
    """Groups that hold any worker."""
    alone: tuple[Subset, ...]
    """Each kind without the others."""
    without: tuple[tuple[str, Subset], ...]
    """All kinds but the named one."""
    held: tuple[str, ...]
    """Who holds which layers."""
    slowest: str
    sensitive: str
    """The number that moves the step the most."""
    frameworks: tuple[str, ...]
    idle: tuple[str, ...]
    """Devices that are left out, and why."""
    places: tuple[Place, ...]
    """Which nodes hold which stages."""
    counts: Mapping[str, int]
    per_step: float | None = None
    """Price of a step, where that was the objective."""
    bound_s: float | None = None
    """That no plan's step undercuts."""

    @property
    def best_alone(self) -> Subset | None:
        """The quickest kind by itself."""
        able = [subset for subset in self.alone if subset.step_time_s is not None]
        return min(able, key=lambda one: one.step_time_s or 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """Share of the step that mixing saves over the best kind alone; None where none can do it."""
        best = self.best_alone
        return None if best is None or best.step_time_s is None else 1.0 - self.step_time_s / best.step_time_s

    def worth(self) -> str:
        """One sentence."""
        best, gain = self.best_alone, self.gain
        if best is None or gain is None or best.step_time_s is None:
            return "No kind of device can train the model by itself."
        if self.used == 1 and self.per_step is not None:
            return "Mixing costs more: one kind of device by itself is the cheapest found."
        if self.used == 1:
            return f"Mixing does not pay: {best.said} by themselves are the best found."
        if self.per_step is not None:
            return f"The cheapest found; {best.said} by themselves would take {seconds(best.step_time_s)}."
        faster = best.step_time_s / self.step_time_s - 1.0
        if gain <= 0:
            return f"{best.said} by themselves would take {seconds(best.step_time_s)}."
        return (
            f"Mixing pays: {percent(gain)} less time than the {seconds(best.step_time_s)} of {best.said} by themselves "
            f"({percent(faster)} more tokens per second)."
        )

    @property
    def proved(self) -> str:
        """How near the step is to what no plan can undercut."""
        if self.bound_s is None:
            return "the best found, not proved the best"
        return (
            f"{percent(self.step_time_s / self.bound_s - 1.0)} above the {seconds(self.bound_s)} that no plan undercuts"
        )

    def lines(self) -> tuple[str, ...]:
        """The rest in words."""
        found = [*self.held, self.slowest]
        for name, rest in self.without:
            if rest.step_time_s is None:
                found.append(f"without {name}: nothing fits")
            else:
                loss = rest.step_time_s / self.step_time_s - 1.0
                change = f"{percent(loss)} slower" if loss > 0 else "no slower"
                found.append(f"without {name}: {seconds(rest.step_time_s)}, {change}")
        for one in self.alone:
            said = "does not fit" if one.step_time_s is None else seconds(one.step_time_s)
            if self.per_step is not None and one.price_per_step is not None:
                said += f", {significant(one.price_per_step)} USD"
            found.append(f"{one.said} alone: {said}")
        found += [self.sensitive, *self.frameworks]
        looked = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if ":" not in name)
        found.append(f"search: {looked}; {self.proved}")
        return tuple(line for line in found if line)

    def to_dict(self) -> dict[str, object]:
        """The `mixing` entry of a plan set."""
        best = self.best_alone
        return {
            "gain": self.gain,
            "best_alone": best.to_dict() if best else None,
            "alone": [one.to_dict() for one in self.alone],
            "without": [{"group": name, **rest.to_dict()} for name, rest in self.without],
            "held": list(self.held),
            "slowest_stage": self.slowest,
            "sensitive_to": self.sensitive,
            "frameworks": list(self.frameworks),
            "idle": list(self.idle),
            "price_per_step": self.per_step,
            "map": [place.to_dict() for place in self.places],
        }

    def search(self) -> dict[str, object]:
        """The `search` entry of a plan set."""
        pruned = {name: count for name, count in self.counts.items() if ":" in name}
        seen = self.counts.get("strategies", 0) + self.counts.get("routes", 0) + self.counts.get("blends", 0)
        return {
            "space": seen,
            "priced": self.counts.get("priced in full", 0),
            "feasible": self.counts.get("priced in full", 0) - self.counts.get("priced in full: too large", 0),
            "looked_at": {name: count for name, count in self.counts.items() if ":" not in name},
            "pruned": pruned,
            "optimal": False,
            "bound_step_time_s": self.bound_s,
        }
