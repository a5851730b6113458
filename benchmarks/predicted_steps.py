"""Steps predicted and run on eight virtual devices: `meshwright run` for some plans of one model.

Every executable of the plan is run alone; a prediction replays the lists with these times, and shares the work of all
devices out among the cores of this machine.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from benchmarks.timing import run

MODEL = ("llama-3.1-8b", "--layers", "4", "--hidden", "256", "--vocab", "2048", "--seq", "64")
PLANS = ("dp8.mbs4.gbs32", "tp2.dp4.mbs4.gbs32", "pp2.dp4.mbs2.gbs32", "pp4.dp2.mbs4.gbs32.zb-h1")
STEPS = 6


@dataclass(frozen=True, slots=True)
class Predicted:
    """One plan."""

    plan: str
    predicted_s: float
    measured_s: float
    """Median of the steps behind the first."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


def predicted_steps() -> list[Predicted]:
    """Every plan, run once; one that fails is told and left out."""
    found = []
    for plan in PLANS:
        done = run([sys.executable, "-m", "meshwright", "run", *MODEL, "--plan", plan, "--steps", str(STEPS), "--json"])
        if done.code:
            print(f"  {plan}: exit {done.code}: {done.error.strip()[:300]}", file=sys.stderr)
            continue
        timing = json.loads(done.output)["timing"]
        found.append(Predicted(plan, timing["predicted_step_time_s"], timing["step_time_s"]))
    return found
