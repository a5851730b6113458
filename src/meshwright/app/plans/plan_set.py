"""The answer of `plan` and `estimate`: ranked plans with their estimates, the verdict, and what it all rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from meshwright.app.answer import Answer, model_entry
from meshwright.errors import InputError
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.formats.cluster import Assumption
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.plan_shape import title
from meshwright.planning.rank_map import RankMap, rank_map
from meshwright.planning.ties import tied
from meshwright.planning.whole_run import WholeRun
from meshwright.records import plain
from meshwright.report import page
from meshwright.report.words.identities import identities
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.titles import title_of
from meshwright.report.words.verdict import RunnerUp, Verdict, run_sentence
from meshwright.schedules.plan_rows import row_of
from meshwright.search.result import PlanCertificate
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from meshwright.units import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from meshwright.app.explain import Explanation
    from meshwright.app.export import Exported
    from meshwright.app.trace import Trace
    from meshwright.formats.plan_json import PlannedJob
    from meshwright.planning.mixed.mixing import Mixing
    from meshwright.planning.mixed.slices import Composition
    from meshwright.planning.mixed.source import SearchRecord
    from meshwright.planning.under_trainers import TrainerPlan
    from meshwright.search.front import FrontPlan
    from meshwright.specs.calibration import Calibration
    from meshwright.specs.measured import MeasuredModel, MeasuredWorkload


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RankedPlan:
    """One plan of an answer."""

    rank: int
    """1 is the best."""
    job: PlannedJob
    row: PlanRow | None
    """The plan as one row of degrees; None where it needs more."""
    estimate: StepPrice

    @property
    def name(self) -> str | None:
        """The one-line form."""
        return self.job.name

    @property
    def plan(self) -> ExecutionPlan:
        """The plan."""
        return self.job.plan

    @property
    def layout(self) -> tuple[int, ...]:
        """The degrees (tp, cp, ep, etp, pp, dp) of the first layers."""
        pipeline = self.plan.pipelines[0]
        strategy = self.plan.strategies[self.plan.strategy_index(pipeline, pipeline.workers[0])]
        expert = strategy.expert
        return (strategy.tp, strategy.cp, expert.ep, expert.etp, len(pipeline.workers), strategy.dp)

    @property
    def hash(self) -> str:
        """`sha256:` and the digest of the plan file's content."""
        from meshwright.formats.plan_json import content_hash  # a table of plans shows none

        return content_hash(self.job)

    @property
    def title(self) -> str:
        """The one-line form, or what comes nearest to it."""
        return title_of(self.job, self.row)

    def identities(self) -> tuple[str, ...]:
        """Products and sums that must hold: `64 = tp4 x pp4 x dp4`, `layers 20+20+20+20 = 80`, `1024 = dp4 x ...`."""
        return identities(self.job, self.row)

    def rank_map(self) -> RankMap:
        """Which ranks form which group."""
        return rank_map(self.job)

    def explain(self) -> Explanation:
        """Why this plan: the ladder from plain data parallelism, its neighbours, and what it is sensitive to."""
        from meshwright.app.explain import explain

        return explain(self.job)

    def export(self, target: str = "megatron", directory: str | Path | None = None, *, force: bool = False) -> Exported:
        """The plan as files of a framework; see `meshwright.app.export.export`."""
        from meshwright.app.export import export

        return export(self.job, target, directory, force=force)

    def trace(self, output: str | Path | None = None, *, svg: str | Path | None = None) -> Trace:
        """One step, task by task, as a trace file for Perfetto and a figure; see `meshwright.app.trace.trace`."""
        from meshwright.app.requests.read import TraceRequest
        from meshwright.app.trace import trace

        return trace(TraceRequest.read({"plan": self.job, "output": output, "svg": svg}))

    def save(self, path: str | Path) -> Path:
        """Write the plan file."""
        from meshwright.formats.plan_json import write_job
        from meshwright.formats.writing import write_file
        from meshwright.library.made_with import made_with  # an answer on a screen does not say it

        write_file(path, write_job(self.job, made_with(self.job)))
        return Path(path)

    def to_dict(self) -> dict[str, object]:
        """An entry of `plans`; `plan` is a plan file of its own."""
        from meshwright.formats.plan_json import job_document
        from meshwright.library.made_with import made_with  # likewise

        return self.shown() | {"plan": job_document(self.job, made_with(self.job))}

    def shown(self) -> dict[str, object]:
        """What people are shown of it: all but the file."""
        return {
            "rank": self.rank,
            "name": self.name,
            "title": self.title,
            "identities": list(self.identities()),
            "estimate": self.estimate.to_dict(),
        }

    def __getattr__(self, name: str) -> Any:
        raise _absent("RankedPlan", name)

    def __repr__(self) -> str:
        return (
            f"RankedPlan({self.rank}: {self.title}, {seconds(self.estimate.step_time_s)}, fits: {self.estimate.fits})"
        )

    def __rich__(self) -> RenderableType:
        from meshwright.report.plan_tables import render_plan

        return render_plan(self.shown())

    def _repr_html_(self) -> str:
        from meshwright.report.html import plan_html

        return plan_html(self.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanSet(Answer, Sequence[RankedPlan]):
    """The plans of an answer, best first. Indexing and iterating give its `RankedPlan`s."""

    model: ModelSpec | MeasuredModel
    cluster: ClusterSpec
    """What the user has; the plans say how much of it they use."""
    workload: Workload | MeasuredWorkload
    assumptions: tuple[Assumption, ...]
    verdict: Verdict
    plans: tuple[RankedPlan, ...]
    certificate: PlanCertificate | None = None
    """None where nothing was searched."""
    pareto: tuple[FrontPlan, ...] = ()
    """Plans no other beats in time and memory at once, to 10% slower than the best; empty unless asked for."""
    aim: Aim = QUICKEST
    """What the plans are ordered by, and what they keep to."""
    warnings: tuple[str, ...] = ()
    """Idle devices, groups that leave their domain, tight memory, settings of a plan file that were changed."""
    run: WholeRun | None = None
    """Days and cost of the best plan, where the tokens of the run are known."""
    mixing: Mixing | None = None
    """What several kinds of device are worth together; None where there is one."""
    searched: SearchRecord | None = None
    """What a composer looked at; None where the certificate says it."""
    composition: Composition | None = None
    """Who planned which slice; None where our own search planned all."""
    trainers: tuple[TrainerPlan, ...] = ()
    """The best plan under each trainer of adapters; empty where weights are trained, or a target is named."""

    @property
    def best(self) -> RankedPlan:
        """The first plan."""
        return self.plans[0]

    @property
    def tied_ranks(self) -> tuple[int, ...]:
        """Ranks of the plans that cannot be told apart from the best by their time, the best first; empty for none."""
        best = self.best.estimate
        ratios = ((plan.rank, plan.estimate.step_time_s / best.step_time_s - 1.0) for plan in self.plans)
        ranks = tuple(rank for rank, ratio in ratios if tied(ratio, best))
        return ranks if len(ranks) > 1 and self.aim.by.exact else ()

    def explain(self) -> Explanation:
        """The best plan explained."""
        return self.best.explain()

    def trace(self, output: str | Path | None = None, *, svg: str | Path | None = None) -> Trace:
        """One step of the best plan; see `RankedPlan.trace`."""
        return self.best.trace(output, svg=svg)

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.plan-set/1`."""
        return self._document(plain(self.plans))

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        from meshwright.library.made_with import calibration_of  # an answer on a screen does not say it

        return calibration_of(self.best.job)

    def __rich__(self) -> RenderableType:
        return page(self._document([plan.shown() for plan in self.plans]))

    def _document(self, plans: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "schema": "meshwright.plan-set/1",
            "inputs": {
                "model": model_entry(self.model),
                "cluster": self.cluster.describe(),
                "workload": self.workload.describe(),
                "objective": self.aim.objective,
                "limits": self.aim.to_dict(),
                "assumptions": plain(self.assumptions),
            },
            "verdict": self.verdict.to_dict(),
            "plans": [
                {**plan, "title": title} for plan, title in zip(plans, distinct_plan_titles(self.plans), strict=True)
            ],
            "tie": {"within": self.best.estimate.tie, "ranks": list(self.tied_ranks)},
            "rank_map": self.best.rank_map().to_dict(),
            "warnings": list(self.warnings),
        }
        if self.certificate is not None:
            document["search"] = self.certificate.to_dict()
            if self.pareto and isinstance(self.model, ModelSpec):
                document["pareto"] = [_front_entry(point, self.model) for point in self.pareto]
            document["timing"] = {"search_s": self.certificate.search_s}
        if self.searched is not None:
            document["search"] = self.searched.to_dict()
        if self.mixing is not None or self.composition is not None:
            document = _with_mixed(document, self)
        if self.trainers:
            document["trainers"] = [one.to_dict() for one in self.trainers]
        if self.run is not None:
            document["run"] = self.run.to_dict() | {"text": run_sentence(self.run)}
        return document

    def front_svg(self) -> str:
        """The front of `pareto=True` as a figure: step time and memory, coloured by the number of devices.

        Raises:
            InputError: no front was asked for.
        """
        from meshwright.report.front_drawing import front_svg

        front = self.to_dict().get("pareto")
        if not isinstance(front, list) or not front:
            fix = "plan with --pareto, in Python pareto=True"
            raise InputError(what="there is no front to draw", why="none was searched", fix=fix, field="pareto")
        smallest = min(group.device.memory_bytes for group in self.cluster.groups)
        return front_svg(f"{self.model.name} on {self.cluster.name}", front, smallest)

    @overload
    def __getitem__(self, index: int) -> RankedPlan: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[RankedPlan, ...]: ...

    def __getitem__(self, index: int | slice) -> RankedPlan | tuple[RankedPlan, ...]:
        return self.plans[index]

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[RankedPlan]:
        return iter(self.plans)

    def __getattr__(self, name: str) -> Any:
        raise _absent("PlanSet", name)

    def __repr__(self) -> str:
        count = f"{len(self.plans)} plan{'s' if len(self.plans) != 1 else ''}"
        return f"PlanSet({count} of {self.model.name} on {self.cluster.name}: {self.verdict.text})"

    def _repr_html_(self) -> str:
        from meshwright.report.html import plan_set_html

        return plan_set_html(self.to_dict())


_LACKS = {
    "run": "export('megatron', 'launch') writes what starts a run",
    "apply": "export('megatron', 'launch') writes what starts a run",
}
"""What this version lacks, and what to do instead."""


def _absent(kind: str, name: str) -> AttributeError:
    instead = f"; this version has none yet: {_LACKS[name]}" if name in _LACKS else ""
    return AttributeError(f"{kind!r} object has no attribute {name!r}{instead}")


def ranked(job: Job, estimate: StepEstimate, rank: int = 1) -> RankedPlan:
    """A job with its estimate as an entry of an answer."""
    return RankedPlan(rank=rank, job=job, row=row_of(job.plan, job.model), estimate=estimate)


def runner_up(best: RankedPlan, other: RankedPlan | None, aim: Aim, mixing: Mixing | None = None) -> RunnerUp | None:
    """Another plan and why it is not the first: what it loses by, or that no framework runs it; None without one.

    Args:
        best: the first plan.
        other: the next.
        aim: what they are ordered by.
        mixing: says whether a quicker plan was passed over for one that a framework runs.
    """
    if other is None:
        return None
    because = reason_text(aim.by.difference(best.estimate, other.estimate))
    time_s = other.estimate.step_time_s
    if mixing is not None and mixing.launched and mixing.passed_over_s == time_s < best.estimate.step_time_s:
        because = f"{mixing.launched.target} cannot run it; {because}"
    return RunnerUp(
        name=other.name, title=distinct_plan_titles((best, other))[-1], step_time_s=time_s, loses_because=because
    )


def distinct_plan_titles(plans: Sequence[RankedPlan]) -> list[str]:
    """Titles of plans, each its own: plans on the same groups are called alike."""
    titles = [plan.title for plan in plans]
    if len(set(titles)) == len(titles):
        return titles
    from meshwright.report.words.comparison import distinct_titles  # titles of plans of one kind differ

    return distinct_titles([(plan.job, title) for plan, title in zip(plans, titles, strict=True)])


def _with_mixed(document: dict[str, Any], answer: PlanSet) -> dict[str, Any]:
    """What an answer over several kinds of device says besides."""
    from meshwright.report.words.mixed import composition_document, mixing_document  # with the search of several kinds

    if answer.mixing is not None:
        mixing = mixing_document(answer.mixing)
        document["mixing"] = mixing
        document["verdict"] |= {name: mixing[name] for name in ("alone", "without")}
    if answer.composition is not None:
        document["composition"] = composition_document(answer.composition)
    return document


def _front_entry(point: FrontPlan, model: ModelSpec) -> dict[str, object]:
    found, estimate = point.plan, point.plan.estimate
    return {
        "name": found.row.format() if found.row else None,
        "title": title(found.plan, model, found.row.format() if found.row else None),
        "devices": found.plan.devices,
        "step_time_s": estimate.step_time_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "price_per_step": estimate.price_per_step,
        "device_seconds": point.devices * estimate.step_time_s,
        "fits": estimate.fits,
    }
