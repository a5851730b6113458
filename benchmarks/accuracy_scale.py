"""What the errors of `benchmarks.accuracy` are to be held against: a rule of thumb, pairs of runs, sources left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from textwrap import fill
from typing import Any

from benchmarks import markdown_table
from meshwright.app.validate import Prediction
from meshwright.report.score_table import Compared, score, score_cells

JOB = ("source", "model_name", "n_layers", "hidden", "gpu", "n_gpus", "seq_len", "global_batch_seqs")
"""Columns that runs of one job share."""
WIDTH = 120
LEAST_GAP = 0.02
"""Runs that differ by less are measured as equal."""

Row = tuple[dict[str, str], Prediction, Compared]


def constant_mfu(rows: Sequence[Row]) -> list[Compared]:
    """The same runs by one MFU for each device and format, the best there is: the median of its own runs."""
    done = [row for row in rows if row[1].mfu and row[2].predicted]
    reached = [(found.mfu or 0.0) * (run.predicted or 0.0) / run.measured for _, found, run in done]
    kinds = [(record.get("gpu", ""), record.get("dtype", "")[:4].lower()) for record, _, _ in done]
    usual = {kind: median(own for own, of in zip(reached, kinds, strict=True) if of == kind) for kind in set(kinds)}
    return [
        Compared(id=run.id, group=run.group, measured=run.measured, predicted=run.measured * own / usual[kind])
        for (_, _, run), own, kind in zip(done, reached, kinds, strict=True)
    ]


def pair_order(rows: Sequence[Row]) -> dict[str, tuple[int, float]]:
    """Pairs of runs of one job by source, and how many were predicted in the order they were measured in.

    Pairs that are predicted equal count half, pairs measured less than 2 % apart not at all.
    """
    jobs: dict[tuple[str, ...], list[Compared]] = {}
    for record, _, run in rows:
        if run.predicted:
            jobs.setdefault(tuple(record.get(name, "") for name in JOB), []).append(run)
    found: dict[str, tuple[int, float]] = {}
    for job, runs in jobs.items():
        for one, two in combinations(runs, 2):
            if abs(one.measured - two.measured) <= LEAST_GAP * min(one.measured, two.measured):
                continue
            a, b = one.predicted or 0.0, two.predicted or 0.0
            equal = abs(a - b) <= 1e-9 * max(a, b)
            right = 0.5 if equal else float((a < b) == (one.measured < two.measured))
            pairs, so_far = found.get(job[0], (0, 0.0))
            found[job[0]] = pairs + 1, so_far + right
    return found


def scale_text(rows: Sequence[Row], overall: Sequence[Compared]) -> str:
    """The rule of thumb, and pairs in order by source."""
    ours, rule = score("meshwright", overall), score("one MFU for each device and format", constant_mfu(rows))
    headings = ("rule", "runs", "predicted", "median error", "p90 error", "bias", "in interval")
    text = (
        "For scale, the same runs by a rule of thumb: one MFU for each device and format, the best there is.\n\n"
        + markdown_table(headings, score_cells([ours, rule]))
    )
    found = pair_order(rows)
    if not found:
        return text
    pairs, right = sum(n for n, _ in found.values()), sum(r for _, r in found.values())
    mean = sum(r / n for n, r in found.values()) / len(found)
    table = markdown_table(
        ("source", "pairs", "in order"),
        [(name, str(n), f"{r / n:.0%}") for name, (n, r) in sorted(found.items(), key=lambda one: -one[1][0])],
    )
    said = (
        "Order: pairs of runs of one source, model, device, number of devices, batch and length, measured more than 2% "
        f"apart. {right / pairs:.0%} of {pairs:,} pairs are predicted in order, {mean:.0%} as the mean of the sources."
    )
    return f"{text}\n\n{fill(said, WIDTH)}\n\n{table}"


def coverage_text(record: dict[str, Any]) -> str:
    """How often ranges hold for sources that neither the numbers nor the widths of ranges have seen."""
    ranges = record.get("ranges")
    if not ranges:
        return ""
    found = ranges["left_out"]
    few = "/ (1 + sources in the fit with runs"
    widths = ", ".join(
        f"{ranges['weights'][name]:+.2f} {what}"
        for name, what in (
            ("host", "x the share of the step that waits for the host"),
            ("experts", "with experts"),
            ("long", "for each doubling of the sequence above 8,192"),
            ("device", f"{few} on the device's generation)"),
            ("format", f"{few} in the format there)"),
            ("framework", f"{few} under the framework)"),
            ("software", f"{few} under its generation)"),
            ("like", f"{few} of such a model on the device, in the format and under the framework)"),
        )
    )
    table = markdown_table(
        ("source left out", "in interval"), [(name, f"{share:.0%}") for name, share in found["sources"].items()]
    )
    width = (
        "The range of a step is predicted x exp(+-q). q was fitted to errors of runs whose source had been left out: "
        f"ln q = {ranges['weights']['base']:.2f}, {widths}. All widths are those of the other sources times the "
        f"factor that left-out runs need. Counted on the fit's {record['runs']} runs, each with its source left "
        f"out of the numbers and of the widths, {found['inside']:.0%} lie inside ({found['inside_by_source']:.0%} as "
        f"the mean of the sources); the median of high / low is {found['median_high_over_low']:.2f}. What misses is "
        "whole sources: a machine or a code base unlike the others."
    )
    tie = (
        f"Two plans of one job are called a tie if they differ by less than {ranges['tie']:.0%}: that near, fewer than "
        "three of four pairs of measured runs are predicted in order."
    )
    return f"## Ranges\n\n{fill(width, WIDTH)}\n\n{fill(tie, WIDTH)}\n\n{table}"
