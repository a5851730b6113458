"""`calibrate`: the numbers behind predictions, fitted to measured runs and written as a file the library reads."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.app.validate import named_model
from meshwright.calibrate.chosen import choose_plan
from meshwright.calibrate.file import fit_record, write_calibration
from meshwright.calibrate.fit import MeasuredStep, fit, spread_out
from meshwright.errors import MeshwrightError, Problem, ViolationError
from meshwright.formats.measured import campaign, contradiction, in_reach, read_rows, read_run
from meshwright.library.devices import device

if TYPE_CHECKING:
    from meshwright.app.requests.measure import CalibrateRequest
    from meshwright.app.runs.from_log import FromLog


class NoBetter(ViolationError):
    """The fit predicts runs of sources it has not seen no better than the numbers of the literature."""

    default_code = "MW502"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What `calibrate` found."""

    record: dict[str, Any]
    """The content of the file."""
    left_out: tuple[tuple[str, str], ...]
    """Rows that cannot be priced, with the reason."""

    def to_dict(self) -> dict[str, object]:
        """As data: the file's content and the rows that were left out."""
        return {**self.record, "left_out_rows": [{"id": name, "why": why} for name, why in self.left_out]}


def calibrate(request: CalibrateRequest) -> Calibrated | FromLog:
    """Fit device and framework numbers to measured steps, or move them by one log.

    Returns:
        The numbers with ranges, the errors before and after, and the rows that were left out.

    Raises:
        InputError: a file cannot be read or written, or too few of its runs can be priced.
        UnsupportedError: scipy is missing.
        NoBetter: runs of left-out sources are predicted no better; nothing is written.
    """
    if request.from_log is not None:
        from meshwright.app.runs.from_log import calibrate_from_log

        return calibrate_from_log(
            request.from_log,
            request.plan,
            request.job,
            request.output,
            framework=request.framework,
            ranked=request.ranked,
        )
    return fit_runs(request.measured, request.output)


def fit_runs(measured_csv: Sequence[str | Path], out_json: str | Path | None = None) -> Calibrated:
    """Fit measured runs, as `calibrate` does."""
    steps: list[MeasuredStep] = []
    refused: list[tuple[str, str]] = []
    for path in measured_csv:
        for record in read_rows(path):
            step = measured_step(record)
            if isinstance(step, MeasuredStep):
                steps.append(step)
            elif step:
                refused.append(((record.get("id") or "").strip(), step))
    chosen = spread_out(steps)
    found = fit(chosen)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    names = ", ".join(sorted(Path(path).name for path in measured_csv))
    result = Calibrated(
        record=fit_record(found, chosen, date=today, source=f"measured steps of {names}"), left_out=tuple(refused)
    )
    if not found.improves:
        error = NoBetter(
            Problem(
                what="the fitted numbers predict held-out sources no better than the numbers before the fit",
                why="the runs are too few or contradict each other",
                fix="give runs of more sources, or calibrate one plan with --from-log; nothing was written",
            )
        )
        raise error
    if out_json is not None:
        write_calibration(result.record, out_json)
    return result


def measured_step(record: dict[str, str]) -> MeasuredStep | str:
    """A row as a step to fit to, or why not; empty for rows that are not meant to be scored."""
    measured_s = in_reach(record.get("target_iter_time_s"))
    if measured_s is None or (record.get("usable") or "True").strip().lower() != "true":
        return ""
    if wrong := contradiction(record):
        return wrong
    try:
        run = read_run(record, device, named_model)
        if isinstance(run, str):
            return run
        chosen = choose_plan(run)
    except MeshwrightError as error:
        return "; ".join(problem.what for problem in error.problems)
    if isinstance(chosen, str):
        return chosen
    return MeasuredStep(id=run.id, source=campaign(record), measured_s=measured_s, chosen=chosen)
