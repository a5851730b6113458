"""The packaged calibration: `python -m benchmarks.fit [--measured DIR] [--rounds N] [--left-out] [--no-write]`.

Fits to every measured file of full training, starting at the packaged numbers, and writes
src/meshwright/library/data/calibration.json and, for docs/accuracy.md, what each run was predicted at while its source
was left out: benchmarks/left_out.csv. With --left-out the packaged numbers and widths stay, and only the errors in that
file are written, as after a change of how rows are read.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from benchmarks import ROOT, today
from benchmarks.accuracy import FILES, VARIABLE, find_folder
from benchmarks.accuracy_tuning import ADAPTERS
from meshwright.app.calibrate import measured_step
from meshwright.calibrate.coverage import covering_ranges
from meshwright.calibrate.file import fit_record, write_calibration
from meshwright.calibrate.fit import Fit, MeasuredStep, fit, spread_out
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


def main(arguments: list[str] | None = None) -> int:
    """Fit, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit", description="Fit the packaged calibration.")
    parser.add_argument("--measured", metavar="DIR", help=f"folder of {', '.join(FILES)}; else {VARIABLE}")
    parser.add_argument("--rounds", type=int, default=2, help="of linearisation")
    parser.add_argument("--from-priors", action="store_true", help="start at published numbers, not the packaged ones")
    parser.add_argument("--left-out", action="store_true", help="leave sources out of the packaged numbers, fit none")
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
    rounds = 0 if options.left_out else options.rounds
    found = fit(chosen, rounds, start=start, tell=lambda line: print(line, flush=True))
    record = fit_record(found, chosen, date=today(), source=f"measured steps of {', '.join(names)}")
    print(record["errors"])
    print({name: record["ranges"]["left_out"][name] for name in ("inside", "median_high_over_low")})
    if not options.no_write:
        if not options.left_out:
            write_calibration(record, PACKAGED)
        write_left_out(found, chosen, packaged_widths() if options.left_out else {})
    return 0


if __name__ == "__main__":
    sys.exit(main())
