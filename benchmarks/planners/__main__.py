"""Planners of the literature beside ours: `python -m benchmarks.planners`, which writes docs/planners.md.

Each planner plans each job in a process of its own, so that nothing is known from another one; processor time is user
and system, imports left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from benchmarks import ROOT, machine, today, version, write_page
from benchmarks.planners.aceso import Aceso
from benchmarks.planners.dapple import Dapple
from benchmarks.planners.galvatron import Galvatron
from benchmarks.planners.mist import Mist
from benchmarks.planners.pipedream import PipeDream
from benchmarks.planners.profile import Planner, answer
from meshwright import plan
from meshwright.fields.job import JobFields
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.specs.plan import ExecutionPlan, Worker
from meshwright.units import seconds, significant

PAGE = "planners.md"
PLANNERS: dict[str, type[Planner]] = {
    "PipeDream": PipeDream,
    "DAPPLE": Dapple,
    "Galvatron": Galvatron,
    "Aceso": Aceso,
    "Mist": Mist,
}
"""In the order of their years."""
OURS = "meshwright"
INTRODUCTION = f"""# Planners beside each other

The planners of five systems, written from their papers, on the prices of `estimate`: where a paper measures the layers
of a model, they read our table of layers. Each searches the plans that its paper searches, with its own model of a
step; the plan it likes best of those that fit is priced in full, as `estimate` prices any plan. So the step times
compare searches and spaces, not models of time or trainers. *Predicted by it* is the step by the planner's own model.
Processor time includes the table of layers, not imports.

`{OURS}` is the first plan of `plan`, which searches shardings, context parallelism, interleaved chunks, expert
parallelism and overlaps that the papers do not have, and proves that no plan of its space is quicker. It gives all
layers of a plan one strategy, but for recompute, where Galvatron and Mist may mix several: a few of their plans are
quicker by what that brings. Galvatron and Mist have no expert parallelism in their papers and are given ours.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job that all of them plan."""

    model: str
    gpus: str
    seq_len: int
    batch: int
    why: str

    @property
    def title(self) -> str:
        """Heading on the page."""
        return f"{self.model} on {self.gpus}, {self.why}"


CASES = (
    Case(model="llama-3-8b", gpus="1x8xH100", seq_len=8192, batch=64, why="one node"),
    Case(model="llama-3-8b", gpus="8x8xH100", seq_len=8192, batch=128, why="more devices than the model needs"),
    Case(model="llama-3.1-70b", gpus="8x8xH100", seq_len=8192, batch=256, why="a model that fills the memory"),
    Case(model="mixtral-8x7b", gpus="4x8xH100", seq_len=4096, batch=256, why="experts"),
    Case(model="gpt2-xl", gpus="16x1xA100-80", seq_len=1024, batch=128, why="slow links: one device in each node"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a planner found."""

    planner: str
    step_s: float | None
    """None where nothing fits."""
    claimed_s: float | None
    processor_s: float
    plan: str


def planned(name: str, case: Case) -> Row:
    """Plan a case, in this process.

    Args:
        name: of a planner.
        case: the job.
    """
    before_s = _processor_s()
    if name == OURS:
        best = plan(case.model, gpus=case.gpus, seq_len=case.seq_len, global_batch=case.batch, top=1).best
        return Row(
            planner=name,
            step_s=best.estimate.step_time_s,
            claimed_s=None,
            processor_s=_processor_s() - before_s,
            plan=f"`{best.name}`",
        )
    fields = JobFields(model=case.model, gpus=case.gpus, seq_len=case.seq_len, global_batch=case.batch)
    found = answer(PLANNERS[name](), job_inputs(fields))
    spent_s = _processor_s() - before_s
    if found is None:
        return Row(planner=name, step_s=None, claimed_s=None, processor_s=spent_s, plan="")
    return Row(
        planner=name,
        step_s=found.estimate.step_time_s,
        claimed_s=found.claimed_s,
        processor_s=spent_s,
        plan=in_words(found.plan),
    )


def in_words(one: ExecutionPlan) -> str:
    """Stages of a plan, equal neighbours together: `2 x 32 devices: 16 layers tp2.dp16.z0`.

    Args:
        one: of one pipeline.
    """
    (pipeline,) = one.pipelines
    said = (_stage(one, worker) for worker in pipeline.workers)
    stages = [(words, len(list(same))) for words, same in groupby(said)]
    words = "; ".join(f"{count} x {stage}" if count > 1 else stage for stage, count in stages)
    number = pipeline.num_micro_batches
    return f"{number} micro-batch{'es' if number > 1 else ''}; {words}"


def _stage(one: ExecutionPlan, worker: Worker) -> str:
    layers = []
    for run in worker.chunks[0].runs:
        strategy = one.strategies[run.strategy]
        words = [f"{name}{degree}" for name, degree in (("tp", strategy.tp), ("ep", strategy.expert.ep)) if degree > 1]
        words += [f"dp{strategy.dp}", f"z{strategy.data.zero}"]
        kind = strategy.recompute.kind
        words += [] if kind == "none" else ["rc-sel" if kind == "selective" else f"rc-{kind}"]
        layers.append(f"{run.layers} `{'.'.join(words)}`")
    devices = worker.num_devices
    return f"{devices} device{'s' if devices > 1 else ''}: {', '.join(layers)}"


def section(case: Case, rows: list[Row]) -> str:
    """Heading, command and table of a case.

    Args:
        case: the job.
        rows: of all planners, ours among them.
    """
    ours = next(row for row in rows if row.planner == OURS)
    assert ours.step_s is not None
    lines = []
    for row in rows:
        if row.step_s is None:
            times = ("nothing it proposes fits", "", "")
        else:
            claimed = "" if row.claimed_s is None else seconds(row.claimed_s)
            times = (seconds(row.step_s), f"{row.step_s / ours.step_s - 1.0:+.1%}", claimed)
        lines.append((row.planner, *times, f"{significant(row.processor_s)} s", row.plan))
    command = f"meshwright plan {case.model} --gpus {case.gpus} --seq {case.seq_len} --gbs {case.batch}"
    columns = ("planner", "step", "against ours", "predicted by it", "processor time", "plan")
    return f"## {case.title}\n\n`{command}`\n\n{_table(columns, lines)}"


def page(sections: list[str]) -> str:
    """The page.

    Args:
        sections: of all cases.
    """
    columns = ("planner", "published", "search", "left out here")
    known = [(name, one.source, one.searches, one.leaves_out) for name, one in ((n, p()) for n, p in PLANNERS.items())]
    about = f"Written by `make planners`: {version()}, {machine()}, {today()}."
    return "\n".join([INTRODUCTION, _table(columns, known), "", about, "", "\n\n".join(sections)])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _in_its_own_process(name: str, case: Case) -> Row:
    command = [sys.executable, "-m", "benchmarks.planners", "--planner", name, "--case", str(CASES.index(case))]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Row(**json.loads(run.stdout.splitlines()[-1]))


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system


def _rows(case: Case) -> Iterator[Row]:
    for name in (OURS, *PLANNERS):
        row = _in_its_own_process(name, case)
        print(f"{case.model} on {case.gpus}, {name}: {row.step_s}, {row.processor_s:.2f} s", file=sys.stderr)
        yield row


def main() -> None:
    """Write the page, or print one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planner", choices=(OURS, *PLANNERS), help="print this planner's row of one case as JSON")
    parser.add_argument("--case", type=int, default=0, choices=range(len(CASES)), help="number of the case")
    options = parser.parse_args()
    if options.planner:
        print(json.dumps(asdict(planned(options.planner, CASES[options.case]))))
        return
    print(write_page(PAGE, page([section(case, list(_rows(case))) for case in CASES])))


if __name__ == "__main__":
    main()
