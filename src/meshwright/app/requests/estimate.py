"""What may be asked of `estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from meshwright.app.requests.plan import PICTURE, PLAN_SET_FILE
from meshwright.fields.field import ask, group
from meshwright.fields.job import NAME, PLAN_HELP, WHAT_AND_WHERE, JobFields
from meshwright.fields.kinds import FieldKind, OutputFile, Spec, Texts
from meshwright.fields.request import Reading, Request

if TYPE_CHECKING:
    from meshwright.specs.workload import Workload

PLAN_KIND = FieldKind(metavar="PLAN", annotation="PlanLike | ExecutionPlan | PlanRow")


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest(Request):
    """One plan's step time, memory and breakdown; whether it fits.

    What is not given comes from the plan file, else by default. Nothing is searched.
    """

    examples: ClassVar = (
        "estimate llama-3.1-70b --plan tp8.pp4.mbs1.z1.rc-full --gpus 64xH100",
        "estimate --plan plans.json#2",
        "estimate llama-3.1-70b --plan tp8.pp4.mbs1.z1.rc-full --gpus 64xH100 --schedule all",
    )
    returns: ClassVar = "A plan set of one plan and no search; with schedules, the plan under each of them."
    positional: ClassVar = ("model", "plan", "cluster", "workload")

    plan: Any = ask(PLAN_HELP, PLAN_KIND, required="--plan tp8.pp4.mbs1.z1, or a plan file")
    job: JobFields = group(JobFields)
    workload: Workload | None = ask(
        "A Workload, instead of its separate fields.", Spec(annotation="Workload"), cli=False
    )
    schedule: tuple[str, ...] = ask(
        "Compare the plan under these pipeline schedules.", Texts(metavar="NAME,...|all", repeated=False)
    )
    target: str | None = ask(
        "Priced as this framework runs the plan, which is refused where it cannot; names as in `export --to`.",
        NAME,
        rare=True,
    )
    output: str | None = ask(PLAN_SET_FILE, OutputFile(), short="-o", python=False)
    svg: str | None = ask(PICTURE, OutputFile(), python=False, rare=True)

    def rules(self, reading: Reading) -> None:
        """Names of schedules; one plan is written, or schedules are compared."""
        from meshwright.planning.axes import schedule_names, target_rule
        from meshwright.planning.question.job_inputs import job_inputs

        reading.attempt(lambda: target_rule(self.target))
        if self.schedule and self.target is not None:
            why, fix = "schedules are compared under one software", "drop one of them, or state --software"
            reading.problem("both --schedule and --target are given", why, fix)
        if self.schedule:
            reading.attempt(lambda: schedule_names(self.schedule, refused=True))
            if "output" in self.given:
                why = "a plan set holds plans, and one is compared with itself"
                reading.problem("both --schedule and --output are given", why, "drop one of them")
        reading.also(lambda: job_inputs(self.job), needs=WHAT_AND_WHERE)
