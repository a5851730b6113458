"""What a plan can be the best in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from meshwright.errors import InputError, Problem
from meshwright.units import seconds

if TYPE_CHECKING:  # help lists the objectives, and shall not load what prices plans
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.reason import Reason
    from meshwright.specs.cluster import NodeGroup


Planned = TypeVar("Planned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Generic[Planned]):
    """A plan, what it takes and what it costs."""

    plan: Planned
    step_time_s: float
    price_per_step: float
    """0 where prices are not known and not asked for."""
    energy_j: float = 0.0
    """Energy of a step; 0 where a power is not known and not asked for."""
    peak_memory_bytes: float
    on: str
    """The devices it uses, in words."""
    kept: float = 1.0
    """Share of the time that preemptions of the nodes it uses leave, compared with a job on none of them."""


def lasting_s(offer: Offer[Any]) -> float:
    """Seconds of the run for each step, with what preemptions of spot nodes take."""
    return offer.step_time_s / offer.kept


def _price_per_hour(group: NodeGroup) -> float | None:
    return group.price_per_hour


def amount_difference(
    what: str, best: StepPrice, other: StepPrice, amounts: tuple[float, float], **more: str
) -> Reason:
    """Share by which a step of another plan takes more, 0 where the best takes nothing, and the parts behind it.

    Args:
        what: the reason's kind.
        best: the step compared with.
        other: the step of the other plan.
        amounts: the amounts of both.
        more: further facts of the reason.
    """
    from meshwright.planning.reason import Reason
    from meshwright.planning.ties import differing_parts

    mine, its = amounts
    ratio = its / mine - 1.0 if mine else 0.0
    return Reason.of(what, ratio=ratio, **more, best=mine, other=its, parts=differing_parts(best, other))


def require_known(what: str, unknown: Iterable[str], *, why: str, fix: str, field: str) -> None:
    """An amount that is compared is known of every device.

    Args:
        what: the amount of one device.
        unknown: devices of which nobody said it.
        why: the reason why it is needed.
        fix: how it is said.
        field: the field that says it.

    Raises:
        InputError: there are any.
    """
    problems = [Problem(what=f"no {what} is known for {name}", why=why, fix=fix, field=field) for name in unknown]
    if problems:
        raise InputError(problems, code="MW212")


def require_prices(unknown: Iterable[str]) -> None:
    """Cost compares devices by their prices; devices whose price nobody said are an `InputError`."""
    require_known(
        "price",
        unknown,
        why="what a step costs is that of the devices it uses, each at its own price",
        fix="give price_per_device_hour of its group in a cluster file, one --price for all devices, or --prices",
        field="price_per_device_hour",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One thing that is minimised: a file of this folder, and a line of `OBJECTIVES`."""

    name: str
    """`--objective NAME`."""
    help: str
    """What is minimised, for `--help`."""
    best: str
    """What the best step is called: `quickest`."""
    key: Callable[[Offer[Any]], tuple[float, ...]]
    """Order of offers, the best first."""
    difference: Callable[[StepPrice, StepPrice], Reason]
    """What another plan loses by."""
    rule: str = ""
    """What is minimised among which plans, where that is not all of them."""
    proof: str = "bound"
    """What the search proves: `bound` of all plans, `front` of those near the quickest, `part` of a cluster."""
    rents: bool = False
    """Fewer devices may be better."""
    per_hour: Callable[[NodeGroup], float | None] = _price_per_hour
    """What an hour of one device of a group counts, where devices are rented; None where it is not known."""
    requires: Callable[[Iterable[str]], None] | None = None
    """Refuses groups, by name, of which that is not known."""
    orders_alike: bool = False
    """Plans on one kind of device are ordered without it, too: by their device-hours."""
    paid_links: bool = True
    """What crosses links that are paid for counts."""
    counts_energy: bool = False
    """The answer says what energy a step takes."""
    compared: Callable[[Offer[Any]], float] = lasting_s
    """What part of a plan is compared with what parts of the cluster take by themselves."""
    compared_unit: str = "s"
    """Unit of what is compared, as names of numbers end in it."""
    compared_text: Callable[[float], str] = seconds
    """What is compared, in words."""
    less: str = "less time"
    """What a plan is that takes less of it."""
    saves: str = "cheaper"
    """Why devices stay idle, a key of `report.words.reasons.IDLE`."""
    from_front: bool = False
    """Chosen from the plans that none near the quickest beats in time and memory at once."""
    exact: bool = False
    """The order of the search itself, so that ties, measured plans and the memory reserve speak of it."""
    measured: bool = True
    """Plans of measured profiles can be ordered by it."""

    def __reduce__(self) -> tuple[Callable[[str], Objective], tuple[str]]:
        """Pickle by name: answers cross from the process of a search to that of a page, and its functions cannot."""
        return _named, (self.name,)


def _named(name: str) -> Objective:
    from meshwright.planning.objectives import OBJECTIVES  # made of this file's

    return OBJECTIVES[name]
