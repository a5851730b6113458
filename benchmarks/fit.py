"""The packaged calibration: `python -m benchmarks.fit [--measured DIR] [--rounds N] [--left-out [--widths]]
[--only WORDS] [--no-write]`.

Fits to every measured file of full training, starting at the packaged numbers, and writes
src/meshwright/library/data/calibration.json and, for docs/accuracy.md, what each run was predicted at while its source
was left out: benchmarks/left_out.csv. With --left-out the packaged numbers and widths stay, and only the errors in that
file, their summary and what ranges hold of them are written, as after a change of how rows are read; with --widths,
ranges are made as wide as these errors say, as after a change of what widths depend on. With --only device.blackwell
numbers with this in their names move, by the runs that they touch, and the rest of both files stays.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT, today
from benchmarks.accuracy import FILES, VARIABLE, find_folder
from benchmarks.accuracy_tuning import ADAPTERS
from benchmarks.one_step import on_left_out, tell
from meshwright.app.calibrate import measured_step
from meshwright.calibrate.coverage import covering_ranges
from meshwright.calibrate.file import error_summary, fit_record, write_calibration
from meshwright.calibrate.fit import BETWEEN, Fit, MeasuredStep, Runs, fit, spread_out, touches
from meshwright.calibrate.parameters import fitted_quantities
from meshwright.formats.measured import read_rows
from meshwright.library.calibration import PACKAGED, calibration

LEFT_OUT = ROOT / "benchmarks" / "left_out.csv"
COLUMNS = ("id", "source", "left_out", "half_width")
"""Run, campaign, ln(predicted / measured) and the half-width of its range, with the source left out of both."""


def read_steps(folder: Path) -> tuple[list[MeasuredStep], list[str]]:
    """Runs of every file of step times, and the names of the files."""
    names = [
        name
        for name, (metric, *_) in FILES.items()
        if metric == "time" and name != ADAPTERS and (folder / name).is_file()
    ]
    found = (measured_step(record) for name in names for record in read_rows(folder / name))
    return [step for step in found if isinstance(step, MeasuredStep)], names


def packaged_widths() -> dict[str, float]:
    """Half-widths by run, as the file has them."""
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row["half_width"]) for row in csv.DictReader(file)}


def write_left_out(found: Fit, steps: list[MeasuredStep], kept: dict[str, float]) -> None:
    """Errors and widths of runs whose source was left out, for the accuracy page; `kept` widths stay."""
    widths = covering_ranges(found, steps).log_half_widths.tolist()
    half = [kept.get(step.id, width) for step, width in zip(steps, widths, strict=True)]
    with LEFT_OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for step, error, width in zip(steps, found.left_out.tolist(), half, strict=True):
            writer.writerow((step.id, step.source, f"{error:.4f}", f"{width:.4f}"))


def write_widths(found: Mapping[str, Any]) -> None:
    """The packaged file with the widths, spread and left-out errors of another record.

    Numbers stay, and with them what they alone say: how far runs of one source are apart, and when two plans tie.
    """
    record: dict[str, Any] = json.loads(PACKAGED.read_text(encoding="utf-8"))
    kept = {name: record["ranges"][name] for name in ("own", "tie")}
    record |= {"ranges": found["ranges"] | kept, "spread": found["spread"]}
    record["errors"]["left_out"] = found["errors"]["left_out"]
    write_calibration(record, PACKAGED)


def write_errors(after: Runs) -> None:
    """The packaged file with the errors of left_out.csv, and how many of them the ranges there hold; numbers stay.

    Args:
        after: ln(predicted / measured) of each run under the packaged numbers.
    """
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    errors, half = (np.array([float(row[name]) for row in rows]) for name in ("left_out", "half_width"))
    inside, of = np.abs(errors) <= half, np.array([row["source"] for row in rows])
    sources = {name: round(float(inside[of == name].mean()), 4) for name in dict.fromkeys(of.tolist())}
    record: dict[str, Any] = json.loads(PACKAGED.read_text(encoding="utf-8"))
    record["errors"] |= {"after": error_summary(after), "left_out": error_summary(errors)}
    record["ranges"]["left_out"] |= {
        "inside": round(float(inside.mean()), 4),
        "inside_by_source": round(float(np.mean(list(sources.values()))), 4),
        "sources": sources,
    }
    write_calibration(record, PACKAGED)


def write_some(words: list[str], steps: list[MeasuredStep], start: Mapping[str, float], rounds: int) -> dict[str, Any]:
    """Numbers with any of these words in their names, fitted to runs they touch; the rest of both files as it was."""
    every = fitted_quantities((step.owners[0] for step in steps), (step.software for step in steps))
    moved = [parameter for parameter in every if any(word in parameter.name for word in words)]
    own = [step for step in steps if any(touches(parameter, step) for parameter in moved)]
    print(f"{len(moved)} numbers, {len(own)} runs", flush=True)
    found = fit(own, rounds, moved, start, lambda line: print(line, flush=True), between=BETWEEN)
    record: dict[str, Any] = json.loads(PACKAGED.read_text(encoding="utf-8"))
    again = f"; {', '.join(words)} again on {today()}"
    new = fit_record(found, own, date=today(), source="")["numbers"]
    kept = {name: value for name, value in record["numbers"].items() if name not in {one.name for one in moved}}
    record |= {"numbers": kept | new, "source": record["source"] + again}
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    errors = dict(zip((step.id for step in own), found.left_out.tolist(), strict=True))
    for row in rows:
        row["left_out"] = f"{errors.get(row['id'], float(row['left_out'])):.4f}"
    with LEFT_OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    after = dict(zip((step.id for step in own), found.after.tolist(), strict=True))
    now = [after.get(step.id, math.log(step.chosen.estimate.step_time_s / step.measured_s)) for step in steps]
    record["errors"]["after"] = error_summary(np.array(now))
    record["errors"]["left_out"] = error_summary(np.array([float(row["left_out"]) for row in rows]))
    write_calibration(record, PACKAGED)
    return record


def main(arguments: list[str] | None = None) -> int:
    """Fit, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit", description="Fit the packaged calibration.")
    parser.add_argument("--measured", metavar="DIR", help=f"folder of {', '.join(FILES)}; else {VARIABLE}")
    parser.add_argument("--rounds", type=int, default=2, help="of linearisation")
    parser.add_argument("--from-priors", action="store_true", help="start at published numbers, not the packaged ones")
    parser.add_argument("--left-out", action="store_true", help="leave sources out of the packaged numbers, fit none")
    parser.add_argument("--widths", action="store_true", help="with --left-out: fit the widths of ranges")
    parser.add_argument("--only", metavar="WORDS", help="fit numbers with any of these in their names, by commas")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    folder = find_folder(options.measured)
    if folder is None:
        print(f"no measured runs found: give --measured DIR or set {VARIABLE}")
        return 2
    steps, names = read_steps(folder)
    chosen = spread_out(steps)
    print(f"{len(chosen)} of {len(steps)} runs", flush=True)
    start = {} if options.from_priors else {name: number.value for name, number in calibration(str(PACKAGED)).numbers}
    if options.only:
        print(write_some(options.only.split(","), chosen, start, options.rounds)["errors"])
        return 0
    rounds = 0 if options.left_out else options.rounds
    found = fit(chosen, rounds, start=start, tell=lambda line: print(line, flush=True), between=BETWEEN)
    record = fit_record(found, chosen, date=today(), source=f"measured steps of {', '.join(names)}")
    print(record["errors"])
    print({name: record["ranges"]["left_out"][name] for name in ("inside", "median_high_over_low")})
    tell(list(on_left_out(found, chosen)))
    if not options.no_write:
        widths = options.widths or not options.left_out
        if not options.left_out:
            write_calibration(record, PACKAGED)
        elif widths:
            write_widths(record)
        write_left_out(found, chosen, {} if widths else packaged_widths())
        if not widths:
            write_errors(found.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
