"""How many devices are enough: the smallest cluster whose best plan meets a time, a deadline or a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.app.plan import plan_set
from meshwright.app.plan_set import PlanSet
from meshwright.errors import InfeasibleError, InputError, Problem
from meshwright.library.devices import device as library_device
from meshwright.planning.job_inputs import Count, job_inputs, parse_count
from meshwright.planning.size import MOST_DEVICES, CurvePoint, Goal, Sizing, nodes_of
from meshwright.records import plain
from meshwright.report.words.sizing import considered_text, goal_text
from meshwright.specs.device import DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.units import percent, seconds, significant

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SizeAnswer(Answer):
    """The fewest devices, their plan, and the curve of counts searched."""

    device: str
    devices: int
    goal: Goal
    text: str
    considered: str
    """Which counts were considered, and what became of them."""
    plans: PlanSet
    curve: tuple[CurvePoint, ...]
    """The counts that were searched, in the order of devices."""

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.size/1`."""
        return {
            "schema": "meshwright.size/1",
            "device": self.device,
            "devices": self.devices,
            "goal": self.goal.to_dict(),
            "text": self.text,
            "considered": self.considered,
            "curve": plain(self.curve),
            "plan_set": self.plans.to_dict(),
        }


def size(
    model: ModelSpec | str | os.PathLike[str],
    device: DeviceSpec | str,
    *,
    days: float | None = None,
    step_time: float | None = None,
    max_price: float | None = None,
    tokens: Count | None = None,
    seq_len: Count | None = None,
    global_batch: Count | None = None,
    tokens_per_step: Count | None = None,
    dtype: str = "bf16",
    optimizer: str = "adam",
    price: float | None = None,
    pin: str | Iterable[str] = (),
    forbid: str | Iterable[str] = (),
) -> SizeAnswer:
    """The fewest devices whose best plan meets the goal.

    Parts of a node and whole nodes in round numbers (made of 2, 3, 5 and 7) are looked at from few to many, as more
    devices that degrees divide badly may be slower than fewer. Counts whose least possible time, memory or price
    misses the goal are left out unsearched.

    Args:
        model: library name, path or spec.
        device: library name or spec.
        days: the run may take; needs `tokens`.
        step_time: seconds a step may take.
        max_price: the run may cost; needs `tokens` and a price.
        tokens: of the run, `15T`.
        seq_len, global_batch, tokens_per_step, dtype, optimizer, price: as `plan` takes them.
        pin, forbid: as `plan` takes them.

    Returns:
        The number of devices, its plans, and the curve of all counts searched.

    Raises:
        InputError: no goal, or malformed input, all problems together.
        UnsupportedError: an unknown name.
        InfeasibleError: no number of devices up to 65,536 meets the goal.
    """
    goal = _goal(days, step_time, max_price, tokens)
    spec = device if isinstance(device, DeviceSpec) else library_device(device)
    base = job_inputs(
        model,
        cluster=nodes_of(spec, 1),
        seq_len=seq_len,
        global_batch=global_batch,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
        tokens=tokens,
        price=price,
    )
    if goal.max_price is not None and base.cluster.groups[0].price_per_hour is None:
        fix = "say what a device costs in an hour with --price"
        raise InputError(Problem(what=f"no price of {spec.name} is known", why="--max-price needs one", fix=fix))
    sizing = Sizing(
        base,
        goal,
        tuple([pin] if isinstance(pin, str) else pin),
        tuple([forbid] if isinstance(forbid, str) else forbid),
    )
    found = sizing.first()
    curve = tuple(sorted(sizing.tried.values(), key=lambda point: point.devices))
    if found is None:
        if sizing.unusable is not None and not sizing.bounds:
            raise sizing.unusable
        raise InfeasibleError(_impossible(spec, goal, curve, sizing), code="MW302")
    inputs, best = sizing.found(found.devices)
    plans = plan_set(inputs, best, top=1)
    fewest = "are the fewest" if not sizing.skipped else "are enough"
    return SizeAnswer(
        device=spec.name,
        devices=found.devices,
        goal=goal,
        text=f"{found.devices:,} x {spec.name} {fewest} for {goal_text(goal)}. {plans.verdict.text}",
        considered=considered_text(sizing),
        plans=plans,
        curve=curve,
    )


def _goal(days: object, step_time: object, max_price: object, tokens: Count | None) -> Goal:
    problems: list[Problem] = []
    limits = {"days": days, "step_time": step_time, "max_price": max_price}
    numbers: dict[str, float | None] = {}
    for name, value in limits.items():
        try:
            numbers[name] = None if value is None else parse_count(name, value)  # type: ignore[arg-type]
        except InputError as error:
            problems += error.problems
    if all(value is None for value in limits.values()):
        fix = "say --days, --step-time or --max-price"
        problems.append(
            Problem(what="no goal is given", why="the fewest devices that meet what?", fix=fix, field="days")
        )
    for name in ("days", "max_price"):
        if limits[name] is not None and tokens is None:
            why = "a run's length needs the tokens it trains on"
            problems.append(
                Problem(what=f"{name} is given without tokens", why=why, fix="say --tokens 15T", field="tokens")
            )
    if problems:
        raise InputError(problems, code="MW207")
    return Goal(days=numbers["days"], step_time_s=numbers["step_time"], max_price=numbers["max_price"])


def _impossible(device: DeviceSpec, goal: Goal, curve: tuple[CurvePoint, ...], sizing: Sizing) -> Problem:
    what = f"no number of {device.name} meets {goal_text(goal)}"
    fitting = [point for point in curve if point.step_time_s is not None]
    points = fitting or list(sizing.bounds.values())
    if sizing.fewest() > MOST_DEVICES:
        return Problem(
            what=what,
            why=f"at peak speed it takes {sizing.fewest():,} devices; up to {MOST_DEVICES:,} are tried",
            fix="allow more time, or use a faster device",
            field="days",
        )
    if not points or (curve and not fitting):
        why = f"no plan fits; {considered_text(sizing)}"
        return Problem(what=what, why=why, fix="use a device with more memory", field="devices")
    could = "" if fitting else "any plan could be "
    if goal.max_price is not None:
        best = min(points, key=lambda point: point.price if point.price is not None else math.inf)
        reached = f"the cheapest {could}is {best.price:,.0f} with {best.devices:,}" if best.price is not None else ""
    else:
        best = min(points, key=lambda point: point.step_time_s or math.inf)
        took = f"{significant(best.days)} days" if best.days is not None else seconds(best.step_time_s or 0.0)
        mfu = "" if best.mfu is None else f" ({percent(best.mfu)} MFU)"
        reached = f"the fastest {could}is {took} with {best.devices:,}{mfu}"
    return Problem(
        what=what,
        why=f"{reached}; {considered_text(sizing)}",
        fix="allow more, raise the global batch so that more devices have work, or use a faster device",
        field="days",
    )
