"""What `run` and `verify` found, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshwright.units import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def step_line(step: int, loss: float, seconds_: float) -> str:
    """One step as it is done.

    Args:
        step: the step from 0.
        loss: the loss of the step.
        seconds_: the seconds that it took.
    """
    return f"step {step:4d}  loss {loss:.6f}  {seconds(seconds_)}"


def render_run(run: Mapping[str, Any]) -> RenderableType:
    """What is left to say behind the steps.

    Args:
        run: a `meshwright.run/1`.
    """
    from rich.console import Group

    timing = run["timing"]
    lines = [
        f"{run['model']}, {run['plan']}, {run['devices']} devices, backend {run['backend']}, {run['dtype']}",
        "layers " + "+".join(map(str, run["stage_layers"])) + f" = {sum(run['stage_layers'])}",
        _step_times(timing, len(run["losses"])),
    ]
    lines += [f"recovered: {one}" for one in run["recoveries"]]
    if run["assumptions"]:
        lines.append("by default: " + "; ".join(run["assumptions"]))
    return Group(*lines)


def _step_times(timing: Mapping[str, Any], steps: int) -> str:
    """Measured and predicted step time; the first call alone says only how long compiling took."""
    first, predicted = seconds(timing["first_step_s"]), seconds(timing["predicted_step_time_s"])
    if timing["step_time_s"] is None:
        if steps > 1:
            return f"{steps} steps in the call that compiles, {first} each; predicted {predicted} per step"
        return f"first step {first} (compiles); predicted {predicted} per step, measured from 2 steps on"
    measured = seconds(timing["step_time_s"])
    return f"first step {first} (compiles), then {measured} per step; predicted {predicted} ({timing['error']:+.0%})"


SHOWN = 5
"""Tensors that are farthest off."""


def render_verified(found: Mapping[str, Any]) -> RenderableType:
    """Whether a plan computes what one device does, and where it is farthest off.

    Args:
        found: a `meshwright.verify/1`.
    """
    from rich.console import Group
    from rich.table import Table

    result = "equals one device" if found["ok"] else "does NOT equal one device"
    lines = [
        f"{found['model']}, {found['plan']}, {found['devices']} devices, backend {found['backend']}, {found['dtype']}",
        f"{result} after {found['steps']} steps: loss {found['loss']:.1e}, gradients {found['gradient']:.1e}, weights"
        f" {found['weight']:.1e}; tolerance {found['tolerance']:.0e}",
    ]
    if found["routed"]:
        same = found["routed"] - found["routed_otherwise"]
        lines.append(f"routing: {same:,} of {found['routed']:,} choices of experts are the same")
    table = Table("tensor", "gradient", "weight", box=None, header_style="bold")
    farthest = sorted(found["tensors"], key=lambda one: -max(one["gradient"], one["weight"]))
    for one in farthest[:SHOWN]:
        table.add_row(one["tensor"], f"{one['gradient']:.1e}", f"{one['weight']:.1e}")
    rest = len(farthest) - SHOWN
    after = [f"and {rest} closer ones"] if rest > 0 else []
    if found["zero_gradient"]:
        after.append("not compared, their true gradient is zero: " + ", ".join(found["zero_gradient"]))
    if found["assumptions"]:
        after.append("by default: " + "; ".join(found["assumptions"]))
    return Group(*lines, table, *after)
