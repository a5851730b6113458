"""Two plans beside each other, in words: the verdict, what differs, and which numbers to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.plan_shape import bare_row
from meshwright.planning.question.tuned import trained_text
from meshwright.planning.ties import differing_parts, tied
from meshwright.report.words.reasons import parts_text
from meshwright.report.words.titles import shortened_title, strategy_text
from meshwright.report.words.verdict import FITS_WORDS, peak_text
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.job import Job
from meshwright.specs.lengths import Lengths, mean_length
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.plan import Pipeline
from meshwright.specs.precision import ROLES
from meshwright.specs.row import PlanRow
from meshwright.units import gib, seconds, significant, slower

Setting = tuple[str, str, str]
"""Name, and its value in the first and the second plan."""
DEGREES = {"tp": "tp", "tp_overlap": "tp overlap", "cp_degree": "cp"} | {
    name: name for name in ("pp", "vpp", "ep", "etp", "dp", "sharding", "mbs", "gbs", "schedule")
}
"""Fields of a row and what they are called."""


def comparison_sentence(ratio: float, a: StepPrice, b: StepPrice, rates: tuple[float, float, str] | None) -> str:
    """Which plan is faster, by what, and how their memory compares.

    Args:
        ratio: the ratio by what share of the first the second is slower.
        a: the first plan.
        b: the second.
        rates: the rates of both with their unit where they do different work; None where their seconds compare.
    """
    verdict = "tie" if tied(ratio, a) else f"the second is {slower(ratio)}"
    parts = parts_text(differing_parts(a, b)) if rates is None else ""
    step = f"{seconds(a.step_time_s)} vs {seconds(b.step_time_s)}"
    if rates is not None:
        step = f"{significant(rates[0])} vs {significant(rates[1])} {rates[2]}"
    peaks = " vs ".join(f"{peak_text(one)} ({FITS_WORDS[one.fits]})" for one in (a, b))
    return f"{verdict}: {step}" + (f" ({parts})" if parts else "") + f"; memory {peaks}"


def differing_settings(one: PlannedJob, two: PlannedJob) -> Iterator[Setting]:
    """Settings that differ: degrees where both plans are rows, else stages of their pipelines."""
    facts = _MEASURED if isinstance(one, MeasuredJob) else _MODELLED
    found = [(name, show(one), show(two)) for name, show in facts.items()]
    rows = _row(one), _row(two)
    if rows[0] is not None and rows[1] is not None:
        found += [(shown, str(getattr(rows[0], n)), str(getattr(rows[1], n))) for n, shown in DEGREES.items()]
        found.append(("recompute", _recompute(one, rows[0]), _recompute(two, rows[1])))
        found.append(("offload", rows[0].offload or "none", rows[1].offload or "none"))
    else:
        found += [(name, show(one), show(two)) for name, show in _STAGES.items()]
    return ((name, a, b) for name, a, b in found if a != b)


def stated_settings(job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Every setting of one plan by the names that `differing_settings` has for them."""
    facts = _MEASURED if isinstance(job, MeasuredJob) else _MODELLED
    yield from ((name, show(job)) for name, show in facts.items())
    row = _row(job)
    if row is None:
        yield from ((name, show(job)) for name, show in _STAGES.items())
        return
    yield from ((shown, str(getattr(row, name))) for name, shown in DEGREES.items())
    yield from (("recompute", _recompute(job, row)), ("offload", row.offload or "none"))


def training_settings(job: PlannedJob) -> Iterator[str]:
    """Names of the settings that decide what is trained; another value of any other changes its execution alone.

    Args:
        job: the job whose schedule counts where it applies gradients that are not of the present weights.
    """
    yield from _OF_TRAINING
    if not all(schedule_named(line.schedule.name).exact_semantics for line in job.plan.pipelines):
        yield "schedule"


def memory_notes(a: StepPrice, b: StepPrice) -> Iterator[str]:
    """Where the fullest stages are, and which kind of memory differs most."""
    places = a.place(a.fullest), b.place(b.fullest)
    if places[0] != places[1]:
        yield f"fullest: {places[0]} of the first, {places[1]} of the second"
    change = b.fullest.peak_memory_bytes - a.fullest.peak_memory_bytes
    first, second = dict(a.fullest.memory_bytes), dict(b.fullest.memory_bytes)
    # Of what moved as the peak did: another kind may have moved more the other way.
    way = 1 if change > 0 else -1
    largest = max(first, key=lambda kind: way * (second[kind] - first[kind]))
    grown = second[largest] - first[largest]
    if change and way * grown > 0:
        sign = "more" if change > 0 else "less"
        kind = f"{largest.replace('_', ' ')} {'+' if grown > 0 else '-'}{gib(abs(grown))}"
        yield f"memory: {gib(abs(change))} {sign} on the fullest stage, mostly {kind}"


def _lengths(lengths: Lengths) -> str:
    return f"mean {mean_length(lengths):,.0f}, longest {lengths[-1][0]:,}" if lengths else "alike"


def _row(job: PlannedJob) -> PlanRow | None:
    return (row_of(job.plan, job.model) or bare_row(job.plan, job.model)) if isinstance(job, Job) else None


def _recompute(job: PlannedJob, row: PlanRow) -> str:
    per_layer = isinstance(job, Job) and row_of(job.plan, job.model) is None
    return "per layer" if per_layer else f"{row.recompute}{row.recompute_layers or ''}"


def _each_pipeline(job: PlannedJob, show: Callable[[Pipeline], str]) -> str:
    """A text for each pipeline, equal ones counted."""
    counts = Counter(show(pipeline) for pipeline in job.plan.pipelines)
    return " | ".join(f"{count} x ({text})" if count > 1 else text for text, count in counts.items())


def _layers(job: PlannedJob) -> str:
    def show(pipeline: Pipeline) -> str:
        return shortened_title([sum(chunk.num_layers for chunk in worker.chunks) for worker in pipeline.workers])

    return _each_pipeline(job, show)


def _chunks(job: PlannedJob) -> str:
    return _each_pipeline(job, lambda pipeline: str(max(len(worker.chunks) for worker in pipeline.workers)))


def _micro_batches(job: PlannedJob) -> str:
    def show(pipeline: Pipeline) -> str:
        return f"{pipeline.num_micro_batches} of {job.plan.data_degree(pipeline) * pipeline.micro_batch}"

    return _each_pipeline(job, show)


def _strategies(job: PlannedJob) -> str:
    def show(pipeline: Pipeline) -> str:
        index = (job.plan.strategy_index(pipeline, worker) for worker in pipeline.workers)
        return " > ".join(dict.fromkeys(strategy_text(job.plan.strategies[number]) for number in index))

    return _each_pipeline(job, show)


def _format(role: str, job: Any) -> str:
    """The format that a recipe has for one role."""
    return str(getattr(job.workload.precision, ROLES[role].attribute))


_STAGES: dict[str, Callable[[PlannedJob], str]] = {
    "pipelines": lambda job: str(len(job.plan.pipelines)),
    "layers": _layers,
    "chunks": _chunks,
    "micro-batches": _micro_batches,
    "strategies": _strategies,
    "schedule": lambda job: ", ".join(dict.fromkeys(line.schedule.name for line in job.plan.pipelines)),
}
"""Parts of plans that are no rows of degrees."""
_SAID_OF_STAGES = {"pipelines": "{} pipelines", "chunks": "{} chunks", "strategies": "{}", "schedule": "{}"}
"""How a difference is said behind a title, where its name alone would not do."""


def distinct_titles(plans: Sequence[tuple[PlannedJob, str]]) -> list[str]:
    """Titles of plans of one cluster; one that an earlier plan has is followed by what differs from that plan.

    Args:
        plans: each with its title.
    """
    first: dict[str, PlannedJob] = {}
    return [_distinct(job, title, first.setdefault(title, job)) for job, title in plans]


def _distinct(job: PlannedJob, title: str, first: PlannedJob) -> str:
    other = [(name, show(job)) for name, show in _STAGES.items() if show(job) != show(first)]
    said = [_said(name, text) for name, text in other]
    return f"{title} ({', '.join(said)})" if said else title


def _said(name: str, text: str) -> str:
    """A setting of stages in words: `2 chunks`, `1 pipeline`."""
    words = _SAID_OF_STAGES.get(name, f"{name} {{}}").format(text)
    return words.removesuffix("s") if text == "1" else words


_MODELLED: dict[str, Callable[[Any], str]] = {
    "model": lambda job: job.model.name,
    "training": lambda job: trained_text(job.model).partition(":")[0] or "all weights",
    "cluster": lambda job: job.cluster.name,
    "devices": lambda job: str(job.plan.devices),
    "seq_len": lambda job: str(job.workload.seq_len),
    "lengths": lambda job: _lengths(job.workload.sequence_lengths),
    "packing": lambda job: job.workload.packing if job.workload.sequence_lengths else "none",
    "dtype": lambda job: job.workload.precision.name,
    **{role: partial(_format, role) for role in ROLES},
    "optimizer": lambda job: job.workload.optimizer,
}
_OF_TRAINING = ("model", "training", "seq_len", "lengths", "packing", "dtype", *ROLES, "optimizer", "gbs", "batch")
"""Settings that decide what is trained."""
_MEASURED: dict[str, Callable[[Any], str]] = {
    "model": lambda job: job.profile.name,
    "cluster": lambda job: job.cluster.name,
    "profiles": lambda job: job.profile.source,
    "measured numbers": lambda job: job.profile.fingerprint[:19],
    "devices": lambda job: str(job.plan.devices),
    "batch": lambda job: str(job.global_batch),
}
