"""What may be asked of `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.fields.field import ask, group
from meshwright.fields.job import NAME, WHAT_AND_WHERE, AimFields, JobFields, SpaceFields
from meshwright.fields.kinds import Duration, FieldKind, Flag, Number, OutputFile, Texts, Whole
from meshwright.fields.limits import LimitFields
from meshwright.fields.request import Reading, Request

PICTURE = "Write the answer as a figure, SVG or PNG."
PLAN_SET_FILE = "Also write the plan set there."
REPLANNING = frozenset(
    ("replan_from", "lost", "added", "horizon", "top", "pin", "forbid", "output", "time_limit", "memory_limit")
)
MEASURED = frozenset(
    (
        "profiles",
        "model",
        "gpus",
        "cluster",
        "global_batch",
        "price",
        "objective",
        "max_step_time",
        "max_price_per_step",
    )
) | {"output", "top", "time_limit", "memory_limit"}


def _objectives() -> str:
    """The catalogue of objectives, each with what it minimises."""
    from meshwright.planning.objectives import OBJECTIVES

    return "; ".join(f"{one.name}: {one.help}" for one in OBJECTIVES.values()) + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(Request):
    """The best plans, with reasons, runner-up and certificate.

    With measured profiles the model is one of theirs; with an earlier plan, its job is planned again on the devices
    that are left.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "plan llama-3.1-70b --gpus 64xH100",
        "plan ./config.json --cluster cluster.toml --seq 8192 --gbs 1024 -o plans.json",
        "plan deepseek-v3 --gpus 2048xH800 --pin ep=64 --target megatron --tokens 15T",
        "plan llama-3.1-70b --cluster regions.toml --max-step-time 40s",
        "plan llama-3-8b --gpus 16xH100,8xA100-80 --parallelizer native,calculon",
        "plan OPT-350 --gpus 8xA100-40,8xV100-16 --profiles DIR --gbs 256",
        "plan --replan-from plans.json#1 --lost 8xH100",
    )
    returns: ClassVar = "The plans, best first, one per layout of degrees."
    positional: ClassVar = ("model",)

    job: JobFields = group(JobFields)
    top: int = ask("Plans to list.", Whole(metavar="K", high=1000), default=5, usual="5")
    aim: AimFields = group(AimFields, objective={"help": _objectives})
    space: SpaceFields = group(SpaceFields)
    limits: LimitFields = group(LimitFields)
    target: str | None = ask("Only plans that this framework can run; names as in `export --to`.", NAME, rare=True)
    pareto: bool = ask("Also list the Pareto front of time, memory, devices and cost; takes longer.", Flag(), rare=True)
    tolerance: float | None = ask(
        "Plan groups whose devices differ by at most this as one island: 0.1 is 10%.",
        Number(zero=True, high=100),
        rare=True,
    )
    parallelizer: tuple[Any, ...] = ask(
        "Parallelizers that plan slices of the model on equal devices, of which plans are composed: native, layerwise, "
        "calculon, galvatron, compiler, or module:Class of your own.",
        Texts(
            metavar="NAME,...",
            commas=True,
            repeated=False,
            annotation="str | Parallelizer | Iterable[str | Parallelizer]",
        ),
        rare=True,
    )
    profiles: str | None = ask(
        "Folder of measured layer profiles; MODEL is one of its models.", FieldKind(metavar="DIR"), rare=True
    )
    replan_from: str | None = ask(
        "Re-plan the job of a plan file after its cluster changed.", FieldKind(metavar="PLAN"), rare=True
    )
    lost: str | None = ask(
        "With --replan-from: devices lost, 8xH100, a group by name, or device numbers 16-23.",
        FieldKind(metavar="G"),
        rare=True,
    )
    added: str | None = ask("With --replan-from: devices added, as --gpus.", FieldKind(metavar="G"), rare=True)
    horizon: float | None = ask(
        "With --replan-from: how long the new plan is used, 12h; moving counts against it.",
        Duration(stated=True),
        usual="the mean time until the next failure",
        rare=True,
    )
    output: str | None = ask(PLAN_SET_FILE, OutputFile(), short="-o", python=False)
    svg: str | None = ask("Write the front of --pareto as a figure, SVG or PNG.", OutputFile(), python=False, rare=True)

    @property
    def again(self) -> bool:
        """Whether an earlier plan's job is planned again."""
        return bool(self.given & {"replan_from", "lost", "added", "horizon"})

    def rules(self, reading: Reading) -> None:
        """One of three questions, each with fields of its own."""
        if self.again:
            self._of_an_earlier_plan(reading)
        elif self.profiles is not None:
            self._of_profiles(reading)
        else:
            self._of_a_model(reading)

    def _of_an_earlier_plan(self, reading: Reading) -> None:
        if "replan_from" not in self.given:
            reading.missing("replan_from", "name the plan file of the job: --replan-from plans.json#1")
        why = "the plan file says what is trained, and the change what it is trained on"
        reading.refuse(tuple(n for n in reading.fields if n not in REPLANNING), "with --replan-from", why)
        if "replan_from" in self.given and not self.given & {"lost", "added"}:
            fix = "say what changed: --lost 8xH100, --lost 16-23, --added 8xH100"
            reading.problem("--lost or --added is missing", "the verb needs it", fix, "lost")

    def _of_profiles(self, reading: Reading) -> None:
        from meshwright.planning.objectives import OBJECTIVES

        untold = ("tokens", "failures", "days", "max_price")
        why = "profiles do not tell how many tokens a sequence has"
        fix = "limit one step: --max-step-time or --max-price-per-step"
        reading.refuse(untold, "with --profiles", why, fix)
        why = "measured profiles are fp32 with Adam at one sequence length, in 1F1B"
        unused = tuple(name for name in reading.fields if name not in MEASURED and name not in untold)
        reading.refuse(unused, "with --profiles", why)
        self._aimed(reading)
        objective = OBJECTIVES.get(self.aim.objective or "time")
        if objective is not None and not objective.measured:
            why = "plans of measured profiles cannot be ordered by it"
            reading.problem(f"--objective {objective.name} with --profiles", why, "--objective time")
        if "model" not in self.given:
            reading.missing("model")
        if "global_batch" not in self.given:
            reading.missing("global_batch", "say the sequences of a step: --gbs 256")

    def _aimed(self, reading: Reading) -> None:
        from meshwright.planning.objectives import aim_of

        reading.attempt(lambda: aim_of(self.aim))

    def _of_a_model(self, reading: Reading) -> None:
        from meshwright.planning.axes import check_axes, target_rule
        from meshwright.planning.question.job_inputs import job_inputs

        self._aimed(reading)
        if self.svg is not None and not self.pareto:
            reading.problem("--svg without --pareto", "the figure shows the Pareto front", "add --pareto", "svg")
        if self.parallelizer and self.pareto:
            why = "the front of time, memory, devices and cost is that of meshwright's own search of one kind of device"
            reading.problem("--pareto with --parallelizer", why, "leave one of them out", "pareto")
        if "tokens" not in self.given:
            why = "how long a run is, and what it costs, depends on its tokens"
            fix = "give --tokens 2T, or limit one step: --max-step-time, --max-price-per-step"
            reading.refuse(("days", "max_price"), f"without {reading.called('tokens')}", why, fix)
        reading.attempt(lambda: target_rule(self.target))
        reading.attempt(lambda: check_axes(**self.space.keywords()))
        if self.parallelizer:
            from meshwright.planning.compose.sources.parallelizers.registry import parallelizers_named

            reading.attempt(lambda: parallelizers_named(self.parallelizer))
        reading.also(lambda: job_inputs(self.job), needs=WHAT_AND_WHERE)
