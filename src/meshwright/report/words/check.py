"""What `check` says of a plan, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.errors import Problem
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.formats.launch_file import LaunchFile
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.repair.of_plan import Repair
from meshwright.planning.whole_run import WholeRun
from meshwright.report.words.verdict import peak_text, plan_sentence, run_sentence
from meshwright.units import of_capacity, percent, seconds


def check_sentence(
    title: str,
    question: PlanQuestion,
    estimate: StepEstimate | None,
    violations: int,
    better: tuple[str, float] | None,
    run: WholeRun | None = None,
) -> str:
    """The verdict on a plan that was checked.

    Args:
        title: the title of the plan.
        question: the plan with its model and cluster.
        estimate: the estimate of it; None where it is not legal.
        violations: how many there are.
        better: name and gain of a quicker plan.
        run: the whole run under the plan; None where its tokens are not stated.
    """
    if estimate is None:
        count = f"{violations} violation{'s' if violations != 1 else ''}"
        return f"{title} is not legal for {question.inputs.model.name} on {question.inputs.cluster.name}: {count}."
    faster = f" {better[0]} is {percent(better[1])} faster." if better is not None and better[1] > 0 else ""
    return plan_sentence(question.job, estimate) + (f" {run_sentence(run)}." if run else "") + faster


def asks(questions: Sequence[Problem]) -> str:
    """The verdict on a script that leaves something open: what it is, the first three of many.

    Args:
        questions: what is asked for, at least one.
    """
    first = "; ".join(one.what for one in questions[:3])
    more = f"; and {len(questions) - 3} more" if len(questions) > 3 else ""
    return f"Not checked: {first}{more}. Nothing was guessed."


def as_read(launch: LaunchFile | None) -> dict[str, object] | None:
    """What was read of a launch script, as data."""
    if launch is None:
        return None
    return {
        "values": [{"option": said.option, "value": said.value, "place": said.place or None} for said in launch.said],
        "not_priced": [said.option for said in launch.unpriced],
        "devices": launch.row.devices if launch.row is not None else None,
    }


def tight(estimate: StepPrice) -> Iterator[str]:
    """A warning where little memory is left."""
    if estimate.fits == "tight":
        place = estimate.place(estimate.fullest)
        yield f"tight: {place} needs {peak_text(estimate)}; less than 8% is left for what is not modelled"


def repair_line(repair: Repair) -> str:
    """A change that repairs a plan: `tp 4 -> 8 (dp 4 -> 2): 12 s, 60 of 79 GiB (tp8.dp2...)`."""
    trained = "; changes training results" if repair.changes_training else ""
    tight = " (tight)" if repair.fits == "tight" else ""
    peak = of_capacity(repair.peak_memory_bytes, repair.capacity_bytes)
    return f"{repair.change}: {seconds(repair.step_time_s)}, {peak}{tight} ({repair.name}){trained}"
