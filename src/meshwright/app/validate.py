"""`validate`: every row of a measured-runs file predicted, written out and scored."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from meshwright.calibrate.chosen import choose_plan
from meshwright.errors import MeshwrightError, Problem, ViolationError
from meshwright.estimate.result import StageEstimate, StepEstimate
from meshwright.formats.measured import MeasuredRun, in_reach, model_or_none, read_rows, read_run
from meshwright.formats.writing import write_file
from meshwright.library.devices import device
from meshwright.library.models import resolve
from meshwright.library.software import software
from meshwright.planning.question.batch import check_batch
from meshwright.report.score_table import Compared, Score, score_by_group
from meshwright.specs.model import ModelSpec
from meshwright.units import GIB

COLUMNS = (
    "id",
    "pred_iter_time_s",
    "pred_iter_time_lo_s",
    "pred_iter_time_hi_s",
    "pred_peak_mem_gib",
    "pred_peak_mem_lo_gib",
    "pred_peak_mem_hi_gib",
    "verdict",
    "why_not",
)
"""Columns of the file of predictions."""

METRICS = {"time": "target_iter_time_s", "memory": "target_peak_mem_gib"}
"""What is scored, and the column of its measurement."""

# The range of a memory figure: below, without the working memory of the largest operator and with half of it elsewhere;
# above, what allocators are reported to lose beyond the share that is counted (3-8%) and as much again for libraries.
MEMORY_LOW = 0.10
MEMORY_HIGH = 0.15
# Eager PyTorch keeps what its autograd finds, gathered inputs and unfused factors in nanotron for example: measured
# peaks lie up to half above what is counted.
AUTOGRAD_HIGH = 0.50
AUTOGRAD = ("pytorch-eager", "pytorch-eager-no-sync", "nanotron")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One row of the file of predictions; either numbers or `why_not`."""

    id: str
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_memory_bytes: float | None = None
    """Counted as the row counts it: allocated, reserved, or the whole device."""
    verdict: str = ""
    why_not: str = ""
    plan: str = ""
    """The plan that was priced, in its one-line form."""
    assumptions: tuple[str, ...] = ()
    mfu: float | None = None
    framework: str = ""
    """Framework whose numbers of the library it ran under."""

    @property
    def memory_range_bytes(self) -> tuple[float, float] | None:
        """Low and high of the memory figure."""
        peak = self.peak_memory_bytes
        high = AUTOGRAD_HIGH if self.framework.partition("@")[0] in AUTOGRAD else MEMORY_HIGH
        return None if peak is None else (peak * (1 - MEMORY_LOW), peak * (1 + high))

    def cells(self) -> tuple[str, ...]:
        """The prediction as text, in the order of COLUMNS."""
        low, high = self.memory_range_bytes or (None, None)
        times = (self.step_time_s, self.step_time_low_s, self.step_time_high_s)
        sizes = [None if size is None else size / GIB for size in (self.peak_memory_bytes, low, high)]
        numbers = ["" if number is None else f"{number:.6g}" for number in (*times, *sizes)]
        return (self.id, *numbers, self.verdict, self.why_not)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions of a file and how good they are."""

    measured: str
    predictions: tuple[Prediction, ...]
    scores: tuple[tuple[str, tuple[Score, ...]], ...]
    """Scores by metric of METRICS: `ALL`, then by source. Only usable rows with a measurement count."""

    @property
    def predicted(self) -> int:
        """Rows with a prediction, usable or not."""
        return sum(not prediction.why_not for prediction in self.predictions)

    @property
    def broken(self) -> tuple[Prediction, ...]:
        """Rows on which meshwright itself failed."""
        return tuple(found for found in self.predictions if found.why_not.startswith("internal: "))

    def to_dict(self) -> dict[str, object]:
        """As data: what `validate --json` prints."""
        return {
            "schema": "meshwright.validation/1",
            "measured": self.measured,
            "rows": len(self.predictions),
            "predicted": self.predicted,
            "scores": {metric: [found.to_dict() for found in scores] for metric, scores in self.scores},
        }


class AboveLimit(ViolationError):
    """Predictions were written, and their median error is above the limit; carries the result."""

    default_code = "MW501"
    result: Validation


class BrokenRows(MeshwrightError):
    """Predictions were written, and some rows met an error of meshwright itself; carries the result."""

    default_code = "MW101"
    result: Validation


def validate(measured: str | Path, output: str | Path | None = None, fail_above: float | None = None) -> Validation:
    """Predict every row of a measured-runs file and score the predictions.

    error = predicted / measured - 1, over the rows whose column `usable` is not False.

    Args:
        measured: the runs; its columns are listed in the documentation.
        output: the output where the predictions go, one row per input row, in its order; None writes nothing.
        fail_above: median absolute error in percent above which the result is a violation.

    Returns:
        Predictions and scores.

    Raises:
        InputError: the file cannot be read or written.
        AboveLimit: the median error of time or memory is above the limit, or nothing was predicted.
        BrokenRows: meshwright failed on a row.
    """
    records = read_rows(measured)
    predictions = tuple(predict(record) for record in records)
    result = Validation(
        measured=str(measured), predictions=predictions, scores=scores(records, predictions, by="source")
    )
    if output is not None:
        _write(Path(output), predictions)
    _refuse_broken(result)
    if fail_above is not None:
        _refuse_above(result, fail_above)
    return result


def predict(record: dict[str, str]) -> Prediction:
    """The prediction of one row, or why there is none; never raises."""
    name = (record.get("id") or "").strip()
    try:
        run = read_run(record, device, named_model)
        if isinstance(run, str):
            return Prediction(id=name, why_not=run)
        check_batch(run.workload.global_batch)
        return _predict_run(run)
    except MeshwrightError as error:
        return Prediction(id=name, why_not="; ".join(problem.what for problem in error.problems))
    except Exception as error:  # one broken row must not cost the others; validate() reports it and fails
        return Prediction(id=name, why_not=f"internal: {type(error).__name__}: {error}")


def compared_rows(
    records: Sequence[dict[str, str]], predictions: Sequence[Prediction], metric: str, by: str
) -> list[Compared]:
    """Usable rows that have a measurement of a metric, each with its prediction.

    Args:
        records: the records of the measured file.
        predictions: the predictions in the same order.
        metric: the metric in METRICS.
        by: column to group by.
    """
    found = []
    for record, prediction in zip(records, predictions, strict=True):
        target = in_reach(record.get(METRICS[metric], ""))
        if target is None or (record.get("usable") or "True").strip().lower() != "true":
            continue
        if metric == "time":
            value = prediction.step_time_s
            low, high = prediction.step_time_low_s, prediction.step_time_high_s
        else:
            size, sizes = prediction.peak_memory_bytes, prediction.memory_range_bytes
            value = None if size is None else size / GIB
            low, high = (None, None) if sizes is None else (sizes[0] / GIB, sizes[1] / GIB)
        group = (record.get(by) or "").strip()
        found.append(Compared(id=prediction.id, group=group, measured=target, predicted=value, low=low, high=high))
    return found


def scores(
    records: Sequence[dict[str, str]], predictions: Sequence[Prediction], *, by: str
) -> tuple[tuple[str, tuple[Score, ...]], ...]:
    """Scores of every metric the file has measurements of."""
    compared = {metric: compared_rows(records, predictions, metric, by) for metric in METRICS}
    return tuple((metric, score_by_group(runs)) for metric, runs in compared.items() if runs)


def _predict_run(run: MeasuredRun) -> Prediction:
    chosen = _choose(run)
    if isinstance(chosen, str):
        return Prediction(id=run.id, why_not=chosen)
    estimate = chosen.estimate
    return Prediction(
        id=run.id,
        step_time_s=estimate.step_time_s,
        step_time_low_s=estimate.step_time_low_s,
        step_time_high_s=estimate.step_time_high_s,
        peak_memory_bytes=_counted_bytes(run, estimate),
        verdict=estimate.fits,
        plan=chosen.row.format(),
        assumptions=tuple(f"{assumed.name}: {assumed.value}" for assumed in run.assumptions),
        mfu=estimate.mfu,
        framework=run.workload.software,
    )


_choose = lru_cache(maxsize=4096)(choose_plan)


def _counted_bytes(run: MeasuredRun, estimate: StepEstimate) -> float:
    """Peak memory, counted as the row counts it.

    What a framework's allocator reports is without the driver's context and the communicators' buffers; what it
    reserves is that, the fragmentation, and what it holds for later as long as there is room.
    """

    framework = software(run.workload.software, run.workload.calibration)

    def counted(stage: StageEstimate) -> float:
        parts = dict(stage.memory_bytes)
        beside = run.workspace_bytes + run.more_activations * parts["activations"]
        beside += run.head_bytes if stage is estimate.stages[-1] else 0.0
        allocated = stage.peak_memory_bytes - parts["comm_buffers"] - parts["overhead"] + beside
        if run.memory_kind == "allocated":
            return allocated
        room = max(0.0, stage.capacity_bytes - stage.peak_memory_bytes - beside)
        cached = min(framework.cached * allocated, room)
        reserved = allocated * (1 + framework.fragmentation)
        return (stage.peak_memory_bytes + beside if run.memory_kind == "device" else reserved) + cached

    stages = estimate.stages[-1:] if run.last_stage else estimate.stages
    return max(counted(stage) for stage in stages)


@lru_cache(maxsize=4096)
def named_model(name: str) -> ModelSpec | None:
    """A library model; a row's name is never taken for a path."""
    if "/" in name or "\\" in name or name.strip() in ("", "-", ".", "..") or os.path.lexists(name):
        return None
    return model_or_none(resolve, name)


def _write(path: Path, predictions: Sequence[Prediction]) -> None:
    """All rows or no file."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(prediction.cells() for prediction in predictions)
    write_file(path, buffer.getvalue())


def _refuse_broken(result: Validation) -> None:
    broken = result.broken
    if not broken:
        return
    error = BrokenRows(
        [
            Problem(what=f"row {found.id}: {found.why_not}", why="this is a bug in meshwright", fix="please report it")
            for found in broken[:10]
        ]
    )
    error.result = result
    raise error


def _refuse_above(result: Validation, limit_percent: float) -> None:
    problems = list(_above(result, limit_percent))
    if problems:
        error = AboveLimit(problems)
        error.result = result
        raise error


def _above(result: Validation, limit_percent: float) -> Iterator[Problem]:
    if not result.scores:
        yield Problem(
            what=f"{result.measured}: no usable row has a measurement",
            why="there is nothing to compare predictions with",
        )
    for metric, found in result.scores:
        overall = found[0]
        if overall.median_error is None:
            yield Problem(what=f"{metric}: none of {overall.runs} usable runs could be predicted", why="see why_not")
        elif overall.median_error * 100 > limit_percent:
            yield Problem(
                what=f"{metric}: median absolute error {overall.median_error:.2%}",
                why=f"above the limit of {limit_percent:g}%",
            )
