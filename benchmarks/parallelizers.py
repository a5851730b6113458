"""Parallelizers behind `plan --parallelizer` compared: `python -m benchmarks.parallelizers`.

The step of the best plan by `estimate`, the step that the parallelizer itself claims for it, processor seconds of
asking, composing and pricing (of its own processes too), and how much was asked. Galvatron is asked where
MESHWRIGHT_GALVATRON_PYTHON names an interpreter that has it.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks import markdown_table
from meshwright import plan
from meshwright.errors import MeshwrightError
from meshwright.fields.job import JobFields
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.parallelizers.registry import HOMES, parallelizers_named
from meshwright.planning.mixed.parallelizers import SliceSource, claimed_s
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.units import seconds, significant

JOBS = (("llama-2-7b", "8xA100-40", 64), ("llama-3-8b", "16xH100,8xA100-80", 128))
"""Model, cluster and batch, of 4,096 tokens."""


def main() -> None:
    """Print a table for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,...", help="these parallelizers")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [*HOMES, "native,layerwise,calculon"]
    for model, gpus, batch in JOBS:
        own = plan(model, gpus=gpus, seq_len=4096, global_batch=batch, top=1).best.estimate.step_time_s
        print(f"{model} on {gpus}, batch {batch}; `plan` without --parallelizer: {seconds(own)}\n")
        rows = [row for name in names if (row := compared(name, model, gpus, batch)) is not None]
        columns = ("parallelizer", "step by estimate", "predicted by it", "processor time", "calls", "skipped")
        print(markdown_table(columns, rows), flush=True)
        print()


def compared(name: str, model: str, gpus: str, batch: int) -> tuple[str, ...] | None:
    """One row; None, with a word why on the standard error, where the parallelizer is not installed.

    Args:
        name: of a parallelizer, or several.
        model: of the job.
        gpus: likewise.
        batch: sequences of a step.
    """
    try:
        asked = parallelizers_named(name)
    except MeshwrightError as error:
        print(f"{name} is left out: {error.problems[0].what}", file=sys.stderr)
        return None
    inputs = job_inputs(JobFields(model=model, gpus=gpus, seq_len=4096, global_batch=batch))
    before_s = _processor_s()
    source = SliceSource(inputs, asked)
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    found = source.together(parts, thorough=True)
    spent_s = _processor_s() - before_s
    skipped = sum(len(one.skips) for one in source.composer.questions.parallelizers)
    times = (seconds(found[0].step_time_s), seconds(claimed_s(found[0]))) if found else ("nothing fits", "")
    said = name.replace(",", ", ")
    return said, *times, f"{significant(spent_s)} s", f"{source.counts['questions']:,}", f"{skipped:,}"


def _processor_s() -> float:
    """Of this process and of all that ended below it."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    main()
