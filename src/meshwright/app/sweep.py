"""The best plan of every combination of a study, in one Parquet file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.app.requests.sweep import SweepRequest
from meshwright.app.studies.file import read_study
from meshwright.app.studies.study import StudyAxis, StudyQuestion, SweepStudy, plain_value
from meshwright.app.studies.sweeping import OnProgress, StreamedSweep, check_output, check_size, stream
from meshwright.app.verbs import VERBS
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.estimate.step import BREAKDOWN
from meshwright.fields.gather import Gather
from meshwright.formats.sweep_file import SweepFile, parquet
from meshwright.search.tasks import Runner

SCHEMA = "meshwright.sweep/1"
QUESTIONS_AT_ONCE = 512
"""Questions handed out together, so that tasks of a large study do not wait in memory."""
TEXTS = ("plan", "fits", "basis")
WHOLES = ("rank", "devices", "seq_len", "global_batch")
NUMBERS = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "capacity_bytes",
    "price_per_step",
    "energy_j",
    "parameters",
    "active_parameters",
    "bound_step_time_s",
    *(f"{part}_s" for part in BREAKDOWN),
)
"""Columns beside those of the axes, in SI; what is not known is empty."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What came of a question."""

    number: int
    values: tuple[tuple[str, Any], ...]
    rows: tuple[Row, ...]
    """Rows of its plans, the best first."""
    optimal: bool
    """Whether nothing of its space is quicker."""
    space: int
    """Plans in the space that was searched."""
    why_not: str
    """Empty where plans were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptTask:
    """A question as a task: it can be pickled, and done again."""

    question: StudyQuestion
    top: int

    def __call__(self) -> Swept:
        """Ask it."""
        return asked(self.question, self.top)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(StreamedSweep):
    """What a sweep found, combination by combination; its rows are in the file."""

    study: SweepStudy

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.sweep/1`."""
        return {
            "schema": SCHEMA,
            **self.written("redone_tasks"),
            "verb": self.study.verb,
            "axes": [
                {"name": axis.name, "values": [plain_value(one) for one in axis.values]} for axis in self.study.axes
            ],
            "effects": main_effects(self.study, self.designs),
        }


def sweep(request: SweepRequest, *, on_progress: OnProgress | None = None) -> Sweep:
    """Ask every combination of a study, and stream the best plans into a Parquet file; see `sweeping.stream`.

    Args:
        request: the study, the file, and where to search.
        on_progress: called as combinations end.

    Returns:
        What each combination came to.

    Raises:
        InputError: a study that cannot be read, all problems together, or a file that cannot be gone on with.
        UnsupportedError: an unknown name, or pyarrow or Ray missing.
        StoppedError: interrupted; the file holds the complete combinations.
    """
    gather, path = Gather(), Path(request.output)
    gather.attempt(lambda: check_output(path, resume=request.resume, force=request.force))
    study = gather.attempt(lambda: read_study(request.study))
    if study is not None:
        gather.attempt(lambda: check_size(study.size))
    gather.done()
    assert study is not None
    schema = arrow_schema(study.axes)
    digest = study.fingerprint(top=request.top)
    file = SweepFile(path=path, schema=SCHEMA, columns=lambda: schema, fingerprint=digest)
    done = stream(
        tuple(study.questions()),
        file,
        partial(_ask_all, top=request.top),
        partial(_write, file),
        noun="plans",
        resume=request.resume,
        ray=request.ray,
        on_progress=on_progress,
    )
    return Sweep(
        path=path,
        study=study,
        designs=tuple({**one.about, "rows": one.rows} for one in done.complete),
        before=done.before,
        redone=done.redone,
        elapsed_s=done.elapsed_s,
    )


def _ask_all(questions: Sequence[StudyQuestion], runner: Runner, *, top: int) -> Iterator[Swept]:
    """What came of questions, as they end."""
    for first in range(0, len(questions), QUESTIONS_AT_ONCE):
        tasks = [SweptTask(question=one, top=top) for one in questions[first : first + QUESTIONS_AT_ONCE]]
        for _, found in runner(tasks):
            yield found


def asked(question: StudyQuestion, top: int) -> Swept:
    """The answer of one question, as rows.

    Args:
        question: the question of a study.
        top: plans to keep.
    """
    from dataclasses import replace

    how: dict[str, Any] = {"number": question.number, "values": question.values}
    try:
        request: Any = question.request()
        verb = VERBS[question.verb]
        # Rows do not say who runs a plan, and on few devices asking takes longer than planning.
        answer = (
            verb.answer(replace(request, top=top), trainers=False) if question.verb == "plan" else verb.answer(request)
        )
    except (InfeasibleError, InputError, UnsupportedError) as error:
        problem = error.problems[0]
        why = problem.what if not problem.why else f"{problem.what}: {problem.why}"
        return Swept(**how, rows=(), optimal=False, space=0, why_not=why)
    found, mixed = answer.certificate, answer.searched
    bound_s = found.bound_step_time_s if found is not None else mixed.bound_s if mixed is not None else None
    rows = tuple(_row(answer, plan, bound_s) for plan in answer.plans[:top])
    exact, space = (found.optimal, found.space) if found is not None else (False, len(rows))
    return Swept(**how, rows=rows, optimal=exact, space=space, why_not="")


def _row(answer: Any, plan: Any, bound_s: float | None) -> Row:
    estimate, workload = plan.estimate, answer.workload
    fullest = max(estimate.stages, key=lambda stage: stage.peak_memory_bytes / stage.capacity_bytes)
    devices = plan.plan.devices
    numbers = {name: getattr(estimate, name, None) for name in (*NUMBERS, "fits", "basis")}
    return {
        **numbers,
        "plan": plan.title,
        "rank": plan.rank,
        "devices": devices,
        "seq_len": workload.seq_len,
        "global_batch": workload.global_batch,
        "tokens_per_s": estimate.tokens_per_s_per_device * devices,
        "peak_memory_bytes": fullest.peak_memory_bytes,
        "capacity_bytes": fullest.capacity_bytes,
        "parameters": answer.model.parameters,
        "active_parameters": answer.model.active_parameters,
        "bound_step_time_s": bound_s,
        **{f"{part}_s": seconds for part, seconds in estimate.breakdown_s},
    }


def _write(file: SweepFile, found: Swept) -> int:
    """The rows of one combination, and what it came to; plans in its space."""
    rows = file.add(arrow_table(file.columns(), found)) if found.rows else 0
    kept = (
        "plan",
        "devices",
        "step_time_s",
        "tokens_per_s",
        "tokens_per_s_per_device",
        "mfu",
        "fits",
        "peak_memory_bytes",
        "capacity_bytes",
        "price_per_step",
        "energy_j",
    )
    best = found.rows[0] if found.rows else {}
    about = {
        "design": found.number,
        "values": dict(found.values),
        **{name: best.get(name) for name in kept},
        "optimal": found.optimal,
        "space": found.space,
        "why_not": found.why_not or None,
    }
    file.end(found.number, rows, about)
    return found.space


def arrow_schema(axes: Sequence[StudyAxis]) -> Any:
    """Columns and their types.

    Args:
        axes: the axes of the study.
    """
    arrow, _ = parquet()
    types = {"design": arrow.int32()}
    types |= {_column(axis.name): _type_of(arrow, [plain_value(one) for one in axis.values]) for axis in axes}
    types |= dict.fromkeys(WHOLES, arrow.int64()) | dict.fromkeys(TEXTS, arrow.string())
    types |= dict.fromkeys(NUMBERS, arrow.float64()) | {"optimal": arrow.bool_()}
    return arrow.schema([arrow.field(name, kind) for name, kind in types.items()])


def _column(axis: str) -> str:
    """The column of an axis; a plan is stated in one column, and written out with its defaults in another."""
    return f"stated_{axis}" if axis in TEXTS else axis


def _type_of(arrow: Any, values: Sequence[Any]) -> Any:
    """The narrowest type that holds all values."""
    for kind, type_ in ((bool, arrow.bool_()), (int, arrow.int64())):
        if all(type(one) is kind for one in values):
            return type_
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
    return arrow.float64() if numbers else arrow.string()


def arrow_table(schema: Any, found: Swept) -> Any:
    """The rows of one combination as an Arrow table.

    Args:
        schema: the schema of the file.
        found: the plan set, of at least one plan.
    """
    arrow, _ = parquet()
    axes = {_column(name): value for name, value in found.values}
    rows = [{"design": found.number, **axes, **row, "optimal": found.optimal} for row in found.rows]

    def cells(field: Any) -> Any:
        cells = [row.get(field.name) for row in rows]
        as_cell = str if arrow.types.is_string(field.type) else float if arrow.types.is_floating(field.type) else None
        if as_cell is not None:
            cells = [None if one is None else as_cell(one) for one in cells]
        return arrow.array(cells, type=field.type)

    return arrow.table([cells(field) for field in schema], schema=schema)


def main_effects(study: SweepStudy, designs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each value of each axis is worth: designs that differ in it alone, compared with its first value.

    Between clusters of which only one has a device, the numbers of that device differ too.

    Args:
        study: the study with these axes.
        designs: what came of them.

    Returns:
        For every further value: pairs of designs, those of which both fit; geometric means of tokens per second, and of
        the price of a token, over those with the first value; and in how many pairs only the one or the other fits.
    """
    return [_effect(axis, value, designs) for axis in study.varied for value in map(plain_value, axis.values[1:])]


def _effect(axis: StudyAxis, value: Any, designs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = plain_value(axis.values[0])
    before, after = ([one for one in designs if one["values"][axis.name] == own] for own in (first, value))
    common = _common(axis, before, after)
    base: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in before:
        base.setdefault(tuple(one["values"][name] for name in common), []).append(one)
    pairs = [(a, b) for b in after for a in base.get(tuple(b["values"][name] for name in common), [])]
    both = [(a, b) for a, b in pairs if _runs(a) and _runs(b)]
    priced = [(a, b) for a, b in both if a["price_per_step"] and b["price_per_step"]]
    return {
        "axis": axis.name,
        "from": first,
        "to": value,
        "pairs": len(pairs),
        "compared": len(both),
        "tokens_per_s_ratio": _mean(b["tokens_per_s"] / a["tokens_per_s"] for a, b in both),
        "price_per_token_ratio": _mean(_price_per_token(b) / _price_per_token(a) for a, b in priced),
        "gained": sum(1 for a, b in pairs if _runs(b) and not _runs(a)),
        "lost": sum(1 for a, b in pairs if _runs(a) and not _runs(b)),
    }


def _runs(design: Mapping[str, Any]) -> bool:
    """Whether it has a plan that fits."""
    return bool(design["plan"]) and design["fits"] != "no"


def _price_per_token(design: Mapping[str, Any]) -> float:
    return float(design["price_per_step"] / (design["tokens_per_s"] * design["step_time_s"]))


def _mean(ratios: Iterable[float]) -> float | None:
    """Geometric."""
    found = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(found) / len(found)) if found else None


def _common(axis: StudyAxis, *sides: Sequence[Mapping[str, Any]]) -> list[str]:
    """The other axes; between clusters only those that both have: a device that one lacks has no numbers there."""
    if not all(sides):
        return []
    stated = {name for side in sides for name in side[0]["values"]}
    if axis.name == "gpus":
        stated = {name for name in stated if all(side[0]["values"][name] is not None for side in sides)}
    return sorted(stated - {axis.name})
