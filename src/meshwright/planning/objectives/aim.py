"""What is wanted of a plan: the least of time, memory or cost, under limits of time and price.

    --max-step-time        the cheapest step that takes no longer
    --max-price-per-step   the quickest step that costs no more
    --days, --max-price    the same of a whole run of so many tokens

One `Aim` says it for one kind of device, for several, and for measured profiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshwright.catalogue import Catalogue
from meshwright.errors import InfeasibleError, InputError, Problem, unknown_name
from meshwright.fields.job import AimFields
from meshwright.planning.objectives.base import Objective, Offer, Planned
from meshwright.units import DAY_S, seconds, significant, usd

if TYPE_CHECKING:
    from meshwright.specs.workload import Workload

OBJECTIVES: Catalogue[Objective] = Catalogue(
    __package__, {"time": "time:TIME", "cost": "cost:COST", "memory": "memory:MEMORY", "energy": "energy:ENERGY"}
)
"""The objectives there are: a new one is a file beside this one and a line here."""

_ROUNDING = 1e-9
"""Relative: a plan at its own step's limit keeps to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What makes a plan better, and what it must keep to."""

    objective: str = "time"
    max_step_time_s: float = math.inf
    max_price_per_step: float = math.inf
    """Highest price of a step, in USD."""
    days: float = math.inf
    """Longest time of the whole run."""
    max_price: float = math.inf
    """Highest price of the whole run, in USD."""
    steps: float | None = None
    """Steps of the run; its time includes failures and checkpoints once limits of the run are limits of its steps."""

    @property
    def by(self) -> Objective:
        """The objective itself."""
        return OBJECTIVES[self.objective]

    @property
    def limited(self) -> bool:
        """Whether any limit is given."""
        limits = (self.max_step_time_s, self.max_price_per_step, self.days, self.max_price)
        return any(math.isfinite(limit) for limit in limits)

    @property
    def rents(self) -> bool:
        """Whether fewer devices may be the better answer."""
        return self.by.rents or math.isfinite(self.max_price_per_step)

    def of_run(self, workload: Workload, devices: int) -> Aim:
        """Limits of the whole run as limits of a step.

            step <= days / steps,  price of a step <= price of the run / steps,
            steps = tokens / tokens of a step / goodput

        Args:
            workload: says the tokens, and what interrupts the run.
            devices: any one's failure interrupts it.

        Raises:
            InputError: nobody said how many tokens the run has.
        """
        if not (math.isfinite(self.days) or math.isfinite(self.max_price)):
            return self
        if workload.tokens is None:
            names = [n for n, limit in (("--days", self.days), ("--max-price", self.max_price)) if math.isfinite(limit)]
            why = "how long a run is, and what it costs, depends on its tokens"
            fix = "give --tokens 2T, or limit one step: --max-step-time, --max-price-per-step"
            raise InputError(
                [Problem(what=f"{name} without --tokens", why=why, fix=fix, field="tokens") for name in names],
                code="MW206",
            )
        from meshwright.estimate.sequences import tokens_of_step
        from meshwright.planning.goodput import goodput

        share = goodput(devices, workload.failures, 0.0).share
        steps = workload.tokens / tokens_of_step(workload) / share
        return replace(
            self,
            max_step_time_s=min(self.max_step_time_s, self.days * DAY_S / steps),
            max_price_per_step=min(self.max_price_per_step, self.max_price / steps),
            steps=steps,
        )

    def excess(self, offer: Offer[Planned]) -> float:
        """Shares of the limits by which an offer exceeds them, summed; 0 for one that keeps to them."""
        # Limits of a run are limits of steps that take as long as preemptions make them.
        kept = 1.0 if self.steps is None else offer.kept
        steps = (offer.step_time_s / kept, offer.price_per_step / kept)
        pairs = zip(steps, (self.max_step_time_s, self.max_price_per_step), strict=True)
        over = (value / limit - 1.0 if limit else math.inf * (value > 0) for value, limit in pairs if value > limit)
        return sum(share for share in over if share > _ROUNDING)

    def rank(self, offer: Offer[Planned]) -> tuple[float, ...]:
        """Offers that keep to the limits first, then those nearest to them; among these the least of the objective."""
        return (self.excess(offer), *self.by.key(offer))

    def limits_text(self) -> str:
        """The limits in words: `5 s and 0.2 USD a step`."""
        parts = [
            seconds(self.max_step_time_s) if math.isfinite(self.max_step_time_s) else "",
            f"{usd(self.max_price_per_step)}" if math.isfinite(self.max_price_per_step) else "",
        ]
        said = " and ".join(part for part in parts if part) + " a step"
        runs = [
            f"{significant(self.days)} days" if math.isfinite(self.days) else "",
            usd(self.max_price) if math.isfinite(self.max_price) else "",
        ]
        run = " and ".join(part for part in runs if part)
        return f"{said} ({run} for the run)" if run else said

    def rule(self) -> str:
        """What is looked for, in words."""
        return f"{self.by.best} step found within {self.limits_text()}"

    def to_dict(self) -> dict[str, float]:
        """The limits as data, those that are given."""
        limits = {
            "max_step_time_s": self.max_step_time_s,
            "max_price_per_step": self.max_price_per_step,
            "days": self.days,
            "max_price": self.max_price,
        }
        return {name: limit for name, limit in limits.items() if math.isfinite(limit)}


QUICKEST = Aim()
"""What is wanted where nothing else is said."""


def aim_of(fields: AimFields) -> Aim:
    """The aim that a request states; without an objective time, or cost where only times are limited.

    Raises:
        InputError: an unknown objective.
    """
    objective = fields.objective
    if objective is not None and objective not in OBJECTIVES:
        raise InputError(unknown_name("objective", str(objective)[:60], OBJECTIVES), code="MW206")
    limits = {
        "max_step_time_s": fields.max_step_time,
        "max_price_per_step": fields.max_price_per_step,
        "days": fields.days,
        "max_price": fields.max_price,
    }
    stated = {name: limit for name, limit in limits.items() if limit is not None}
    if objective is None:
        timed, paid = stated.keys() & {"max_step_time_s", "days"}, stated.keys() & {"max_price_per_step", "max_price"}
        objective = "cost" if timed and not paid else "time"
    return Aim(objective=objective, **stated)


def admitted(aim: Aim, offers: Sequence[Offer[Planned]], what: str) -> Offer[Planned]:
    """The best offer, if it keeps to the limits.

    Args:
        aim: the limits.
        offers: those looked at, the best first; at least one.
        what: model and cluster, in words.

    Raises:
        InfeasibleError: it does not; names the nearest that can be had.
    """
    if aim.excess(offers[0]) == 0:
        return offers[0]
    quickest = min(offers, key=lambda offer: (offer.step_time_s, offer.price_per_step))
    cheapest = min(offers, key=lambda offer: (offer.price_per_step, offer.step_time_s))
    late, dear = quickest.step_time_s > aim.max_step_time_s, cheapest.price_per_step > aim.max_price_per_step
    both = math.isfinite(aim.max_step_time_s) and math.isfinite(aim.max_price_per_step)
    why, fixes = [], []
    if late or both:
        why.append(f"the quickest found takes {_said(quickest)}")
    if late:
        fixes.append(f"allow {_time_option(aim, quickest.step_time_s)}, or add devices")
    if dear or both:
        why.append(f"the cheapest found takes {_said(cheapest)}")
    if dear:
        fixes.append(f"allow {_price_option(aim, cheapest.price_per_step)}, or find cheaper devices")
    if not fixes:
        in_time = [offer for offer in offers if offer.step_time_s <= aim.max_step_time_s]
        least = min(in_time, key=lambda offer: offer.price_per_step)
        why.append(f"the cheapest found within the time limit takes {_said(least)}")
        fixes.append(f"allow {_price_option(aim, least.price_per_step)}, or a longer step")
    raise InfeasibleError(
        what=f"no plan found of {what} keeps to {aim.limits_text()}",
        why="; ".join(why),
        fix="; ".join(fixes),
        field="max_step_time" if late else "max_price_per_step",
        code="MW302",
    )


def _time_option(aim: Aim, step_time_s: float) -> str:
    """What would allow a step of this time: the limits that forbid it, in their own units."""
    days = step_time_s * (aim.steps or 0.0) / DAY_S
    own = not aim.steps or aim.max_step_time_s < aim.days * DAY_S / aim.steps * (1 - _ROUNDING)
    options = [f"--days {_rounded_up(days)}"] if days > aim.days else []
    return " and ".join([*options, *([f"--max-step-time {_rounded_up(step_time_s)}"] if own else [])])


def _price_option(aim: Aim, price_per_step: float) -> str:
    """What would allow a step of this price, likewise."""
    run = price_per_step * (aim.steps or 0.0)
    own = not aim.steps or aim.max_price_per_step < aim.max_price / aim.steps * (1 - _ROUNDING)
    options = [f"--max-price {_rounded_up(run)}"] if run > aim.max_price else []
    return " and ".join([*options, *([f"--max-price-per-step {_rounded_up(price_per_step)}"] if own else [])])


def _said(offer: Offer[Planned]) -> str:
    price = f" and costs {usd(offer.price_per_step)}" if offer.price_per_step else ""
    return f"{seconds(offer.step_time_s)}{price} a step, on {offer.on}"


def _rounded_up(value: float) -> str:
    """Three digits, never below the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - _ROUNDING) * unit:.12g}"
