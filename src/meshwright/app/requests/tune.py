"""What may be asked of `tune` and `calculon tune`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.app.requests.calculon import CalculonSpace
from meshwright.fields.field import group
from meshwright.fields.job import MONEY_AND_POWER, WHAT_AND_WHERE, JobFields, SpaceFields
from meshwright.fields.limits import StudyLimitFields
from meshwright.fields.request import Reading, Request
from meshwright.fields.study import StudyFields


def check_study(study: StudyFields, reading: Reading) -> None:
    """Tuners that exist and can do what is asked; a figure has an optimum to show regret from."""
    from meshwright.search.tuners.options import tune_options

    reading.attempt(lambda: tune_options(study))
    if "figure" in reading.given and not study.optimum:
        why, fix = "the verb needs it", "--figure draws regret: leave out --no-optimum"
        reading.problem("the optimum is missing", why, fix, "figure")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest(Request):
    """Search with a tuner, and compare it with the exact optimum."""

    examples: ClassVar = (
        "tune llama-3-8b --gpus 8xH100 --with random --trials 50",
        "tune llama-3.1-70b --gpus 64xH100 --with optuna --storage sqlite:///trials.db --resume",
        "tune llama-3.1-70b --gpus 64xH100 --compare --figure regret.svg",
    )
    returns: ClassVar = "Studies and the exact optimum."
    positional: ClassVar = ("model",)

    job: JobFields = group(JobFields, without=("tokens", "failures", "price", "calibration", *MONEY_AND_POWER))
    space: SpaceFields = group(
        SpaceFields,
        without=("offload", "methods"),
        schedule={"usual": "1f1b, gpipe, interleaved, the only ones it can search"},
    )
    study: StudyFields = group(StudyFields)
    limits: StudyLimitFields = group(StudyLimitFields, time_limit={"usual": "none"})

    def rules(self, reading: Reading) -> None:
        """Axes that exist, and a study that can be made."""
        from meshwright.planning.axes import check_axes
        from meshwright.planning.question.job_inputs import job_inputs

        reading.attempt(lambda: check_axes(**self.space.keywords()))
        check_study(self.study, reading)
        reading.also(lambda: job_inputs(self.job), needs=WHAT_AND_WHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonTuneRequest(Request):
    """Search with a tuner, and compare it with the exact optimum. The model is Calculon's."""

    examples: ClassVar = ("calculon tune gpt3-13B a100_80g --procs 64 --batch 64 --with random --trials 50",)
    returns: ClassVar = "Studies and the exact optimum."
    positional: ClassVar = ("app", "system")

    space: CalculonSpace = group(CalculonSpace)
    study: StudyFields = group(StudyFields)
    limits: StudyLimitFields = group(StudyLimitFields, time_limit={"usual": "none"})

    def rules(self, reading: Reading) -> None:
        """A study that can be made, in a space that is there."""
        check_study(self.study, reading)
        self.space.check(reading)
