"""The accuracy page by class of run: dense, with experts, formats, makers, sharding, lengths, one node."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from benchmarks import markdown_table
from benchmarks.accuracy_scale import WIDTH, Row
from meshwright.report.score_table import Compared, Score, quantile, score

Record = dict[str, str]
LONG = 16384
"""Tokens of a sequence from which on it counts as long."""
LIMIT = 0.09
"""Median error of every class."""
INSIDE = (0.80, 0.97)

CLASSES: dict[str, Callable[[Record, str], bool]] = {
    "dense": lambda record, plan: not record.get("n_experts"),
    "experts": lambda record, plan: bool(record.get("n_experts")),
    "8 bits and less": lambda record, plan: "fp8" in record.get("dtype", "") or "fp4" in record.get("dtype", ""),
    "Blackwell": lambda record, plan: record.get("gpu", "").startswith(("B200", "B300", "GB200", "GB300")),
    "AMD": lambda record, plan: record.get("gpu", "").startswith("MI"),
    "TPU": lambda record, plan: record.get("gpu", "").startswith("TPU"),
    "FSDP": lambda record, plan: any(part.startswith(("fsdp", "hsdp")) for part in plan.split(".")),
    "long context": lambda record, plan: float(record.get("seq_len") or 0) >= LONG,
    "one node": lambda record, plan: float(record.get("n_gpus") or 0) <= float(record.get("nodes_gpus") or 8),
}
"""Class: whether a row of a measured file and the plan it ran are of it."""


def read_left_out(path: Path) -> dict[str, tuple[float, float]]:
    """By run: ln(predicted / measured) and the half-width of its range, with its source left out of both."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: (float(row["left_out"]), float(row["half_width"])) for row in csv.DictReader(file)}


def never_seen(run: Compared, left_out: dict[str, tuple[float, float]], *, fitted: bool) -> Compared | None:
    """A run as predicted while its source was left out; as it is where its file is in no fit, None where unknown."""
    if not fitted:
        return run
    if run.id not in left_out or not run.predicted:
        return None
    error, half = left_out[run.id]
    predicted = run.measured * math.exp(error)
    return replace(run, predicted=predicted, low=predicted * math.exp(-half), high=predicted * math.exp(half))


def classes_text(rows: Sequence[tuple[Row, bool]], left_out: dict[str, tuple[float, float]]) -> str:
    """A line per class: fitted sources, and sources as the fit had never seen them.

    Args:
        rows: scored runs of step times, and whether their file is in the fit.
        left_out: of `read_left_out`.
    """
    lines = []
    for name, belongs in {"all": lambda record, plan: True, **CLASSES}.items():
        own = [(run, fitted) for (record, found, run), fitted in rows if run.predicted and belongs(record, found.plan)]
        if not own:
            continue
        seen = score(name, [run for run, fitted in own if fitted])
        unseen = [found for run, fitted in own if (found := never_seen(run, left_out, fitted=fitted))]
        new = score(name, unseen)
        held = new.in_interval
        ratio = quantile((run.high / run.low for run in unseen if run.low and run.high), 0.5)
        lines.append(
            (
                name,
                str(seen.runs),
                _errors(seen),
                str(new.runs),
                _errors(new),
                "-" if new.bias is None else f"{new.bias:+.1%}",
                "-" if held is None else f"{held:.0%}",
                "-" if ratio is None else f"{ratio:.2f}",
                "yes" if _holds(new) else "no",
            )
        )
    headings = ("class", "runs", "in the fit", "runs", "never seen", "bias", "in range", "high / low", "holds")
    said = (
        "Median and 90th percentile of the error by class of run. *In the fit*: every scored run of files that the "
        "numbers were fitted to. *Never seen*: the runs the fit looked at, each predicted with its source left out of "
        "the numbers and of the widths of ranges (benchmarks/left_out.csv), and runs of adapters, which no fit looks "
        f"at. *Holds*: on sources never seen a median of at most {LIMIT:.0%}, and {INSIDE[0]:.0%} to {INSIDE[1]:.0%} "
        "in range."
    )
    return f"## By class of run\n\n{fill(said, WIDTH)}\n\n{markdown_table(headings, lines)}"


def _holds(found: Score) -> bool:
    """Of sources never seen."""
    if found.median_error is None or found.in_interval is None:
        return False
    return found.median_error <= LIMIT and INSIDE[0] <= found.in_interval <= INSIDE[1]


def _errors(found: Score) -> str:
    if found.median_error is None:
        return "-"
    return f"{found.median_error:.1%} and {found.p90_error or 0.0:.1%}"
