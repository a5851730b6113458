"""The page of pipeline schedules: `python -m benchmarks.schedules [--check]`.

Every line is read off the catalogue or simulated: one row and one section a schedule, with its figure.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks import DOCS
from meshwright.report.picture import schedule_picture
from meshwright.report.timeline_svg import timeline_svg
from meshwright.schedules import SCHEDULES, Kind, Schedule, schedule_named
from meshwright.schedules.equal_stages import ScheduleRun, run_schedule
from meshwright.specs import PlanRow
from meshwright.targets.run.rules import unrunnable_settings
from meshwright.units import significant

PAGE, FIGURES = "schedules.md", "schedules"
WORKERS, MICRO_BATCHES = 4, 8
GRID = [(p, m, v) for p in range(1, 9) for m in range(1, 25) for v in range(1, 5)]
"""Sizes at which the constraints are looked for."""

Rule = Callable[[int, int, int], bool]
RULES: dict[str, Rule] = {
    "p >= 2": lambda p, m, v: p >= 2,
    "p even": lambda p, m, v: p % 2 == 0,
    "v = 1": lambda p, m, v: v == 1,
    "v = 2": lambda p, m, v: v == 2,
    "v >= 2": lambda p, m, v: v >= 2,
    "v >= 2 for p >= 2": lambda p, m, v: v >= 2 or p == 1,
    "v even": lambda p, m, v: v % 2 == 0,
    "p at most 4, its segments, for v >= 2": lambda p, m, v: v == 1 or p <= 4,
    "m >= 2": lambda p, m, v: m >= 2,
    "m even": lambda p, m, v: m % 2 == 0,
    "m >= p": lambda p, m, v: m >= p,
    "m >= 2p - 1": lambda p, m, v: m >= 2 * p - 1,
    "m >= 2p": lambda p, m, v: m >= 2 * p,
    "m a multiple of p": lambda p, m, v: m % p == 0,
    "m a multiple of p or less than p": lambda p, m, v: m % p == 0 or m < p,
}
"""What schedules ask of workers, micro-batches and chunks, in the words of the page."""


@cache
def example(name: str) -> ScheduleRun:
    """The schedule at the size of the page; recomputation takes as long as the forward it repeats."""
    run = run_schedule(name, WORKERS, MICRO_BATCHES)
    if run.timeline.table.kinds & {Kind.R, Kind.X}:
        return run_schedule(name, WORKERS, MICRO_BATCHES, recompute_s=1.0)
    return run


def constraints(schedule: Schedule) -> str:
    """The fewest rules that say where the schedule is legal."""
    legal = {size for size in GRID if not schedule.problems(*size)}
    held = {text: {size for size in GRID if rule(*size)} for text, rule in RULES.items()}
    always = [text for text in held if legal <= held[text]]
    together = set(GRID).intersection(*(held[text] for text in always)) if always else set(GRID)
    # The weakest first, so that what is left says most.
    for text in sorted(always, key=lambda text: -len(held[text])):
        others = [held[other] for other in always if other != text]
        if set(GRID).intersection(*others) == together:
            always.remove(text)
    said = ", ".join(always) or "any p, m and v"
    return said if together == legal else f"{said}, and more that its error messages name"


def closed_form(schedule: Schedule) -> str:
    """The formula of its time, as its source states it."""
    for owner in type(schedule).__mro__:
        for method in ("split_closed_form_s", "closed_form_s"):
            if owner is not Schedule and method in owner.__dict__:
                return (
                    (inspect.getdoc(owner.__dict__[method]) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")
                )
    return "not known"


def description(schedule: Schedule) -> str:
    """What its docstring says, without the source."""
    text = inspect.getdoc(type(schedule)) or ""
    return text.partition("\nSource:")[0].replace("*", r"\*").strip()


def _peaks(run: ScheduleRun) -> str:
    share = run.schedule.tasks_per_share(run.v)
    unit = "" if share == 1 else f", in 1/{share} of a worker's share"
    return ", ".join(str(peak) for peak in run.peak_activations) + unit


def _percent(share: float) -> str:
    return f"{max(share, 0.0):.1%}"


def _semantics(schedule: Schedule) -> str:
    exact = "exact" if schedule.exact_semantics else "asynchronous"
    return exact if schedule.flushes else f"{exact}, no flush"


def row(name: str) -> tuple[str, ...]:
    """Its line in the table of all."""
    schedule, run = SCHEDULES[name], example(name)
    return (
        f"[{name}](#{name})",
        f'<a href="#{name}"><img src="{FIGURES}/{name}.svg" width="240" alt="{name}"></a>',
        constraints(schedule),
        significant(run.timeline.makespan_s, 4),
        _percent(run.timeline.bubble_makespan),
        _percent(run.timeline.bubble_span),
        _peaks(run),
        str(max(schedule.worker_weight_copies(run.p, run.m, run.v))),
        _semantics(schedule),
        _plain(schedule.source),
    )


HEADINGS = (
    *("schedule", "p 4, m 8", "constraints", "time", "idle of makespan", "idle of span", "peak activations"),
    *("weight copies", "gradient", "source"),
)


def section(name: str) -> str:
    """Its section: figure, description, properties."""
    schedule, run = SCHEDULES[name], example(name)
    sent = len(schedule_picture(run.to_dict(), run.timeline).transfers.start_s)
    bubble = (
        f"{_percent(run.timeline.bubble_makespan)} of the makespan, {_percent(run.timeline.bubble_span)} of the span"
    )
    facts = {
        "other names": ", ".join(schedule.aliases),
        "constraints": constraints(schedule),
        "time, closed form": closed_form(schedule),
        "time here": f"{significant(run.timeline.makespan_s, 4)}, v = {run.v}",
        "bubble here": bubble if schedule.flushes else f"{bubble}; none between steps, which follow without a flush",
        "peak activations here": _peaks(run),
        "weight copies here": ", ".join(str(held) for held in schedule.worker_weight_copies(run.p, run.m, run.v)),
        "transfers here": f"{significant(sent / run.m)} per micro-batch between workers",
        "extra traffic": schedule.traffic or "none",
        "gradient": "that of the global batch"
        if schedule.exact_semantics
        else "not that of one version of the weights",
        "in plans": f"stated, not searched: {schedule.not_searched}" if schedule.not_searched else "yes",
        "trained here": _run(name),
        "source": schedule.source,
    }
    for item in schedule.parameters():
        default = "" if item.default is None else f" Default: {item.default}."
        facts[f"parameter `{item.name}`"] = f"{item.help}{default}"
    rows = [(label, _plain(text)) for label, text in facts.items() if text]
    return (
        f"## {name}\n\n{schedule.title}.\n\n![{name} with 4 workers and 8 micro-batches]({FIGURES}/{name}.svg)\n\n"
        f"{description(schedule)}\n\n{_table(('property', 'value'), rows)}"
    )


def _run(name: str) -> str:
    """Whether `run` and `verify` train with a schedule, and why not."""
    refused = unrunnable_settings(PlanRow(pp=4, mbs=2, gbs=16, schedule=name))
    without = schedule_named(name).not_run
    return next((f"no: {problem.why}" for problem in refused), f"yes, but {without}" if without else "yes")


def _plain(text: str) -> str:
    """Text for a cell: no letters that Markdown reads."""
    return text.replace("|", r"\|").replace("*", r"\*")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def figure(name: str) -> str:
    """Its drawing."""
    run = example(name)
    return timeline_svg([schedule_picture(run.to_dict(), run.timeline)])


def page() -> str:
    """The page of the documentation."""
    table = _table(HEADINGS, [row(name) for name in SCHEDULES])
    sections = "\n\n".join(section(name) for name in SCHEDULES)
    return f"""# Pipeline schedules

Written by `make schedules` from the catalogue and the simulator.

There are {len(SCHEDULES)}, each a table of tasks that is checked when it is built: every micro-batch does everything
once, nothing runs before its inputs are there, no workers wait for each other in a circle. One simulator times them
all. Draw them at another size and with other times with `meshwright schedule zb-h1 --p 8 --m 32`; see how one runs in
a plan of yours with `meshwright trace plans.json`. [Extending](extending.md#a-schedule) says how to add one.

Figures and numbers are for p = {WORKERS} workers, m = {MICRO_BATCHES} micro-batches and the fewest chunks v per worker
that the schedule allows. Forward, input gradient and weight gradient of a worker's share take 1 each and transfers
nothing; recomputation takes 1 where the schedule has tasks for it. *Idle of makespan* is 1 - busy / (p x makespan);
*idle of span* counts from the first start to the last end of the worker that spans longest, as the zero-bubble papers
do. *Peak activations* are those alive at once on each worker. In formulas f, b, i and w are the seconds of a forward, a
backward, an input and a weight gradient on a full worker share.

{table}

{sections}
"""


def files() -> dict[str, str]:
    """Everything the page consists of, by its path inside the documentation."""
    drawn = {f"{FIGURES}/{name}.svg": figure(name) for name in SCHEDULES}
    return {PAGE: page().rstrip() + "\n", **drawn}


def stale(made: Mapping[str, str], folder: Path = DOCS) -> list[str]:
    """Files that are not what was made, and figures that were not made."""
    old = [f"{FIGURES}/{path.name}" for path in (folder / FIGURES).glob("*.svg")]
    differ = [name for name, text in made.items() if not (folder / name).is_file() or _read(folder / name) != text]
    return sorted({*differ, *(name for name in old if name not in made)})


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the page and its figures, or say which of them are out of date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description="The page of schedules.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something is out of date")
    options = parser.parse_args(arguments)
    made = files()
    old = stale(made)
    if options.check:
        print("\n".join(old) or "up to date")
        return 1 if old else 0
    (DOCS / FIGURES).mkdir(exist_ok=True)
    for name in old:
        if name in made:
            (DOCS / name).write_text(made[name], encoding="utf-8")
        else:
            (DOCS / name).unlink()
    print(f"{len(old)} files written below {DOCS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
