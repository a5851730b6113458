"""What tuning gives: studies, each with its distance from the exact optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.errors import InputError, Problem
from meshwright.search.tuners.base import Optimum
from meshwright.search.tuners.study import Study

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A study and what it was called."""

    label: str
    study: Study

    def regret(self, optimum: Optimum | None) -> float | None:
        """How much worse the best trial is than the optimum, relative to it; None if either is unknown."""
        best = self.study.best
        if best is None or optimum is None or best.outcome.value is None:
            return None
        return best.outcome.value / optimum.value - 1.0

    def to_dict(self, optimum: Optimum | None, *, trials: bool) -> dict[str, Any]:
        """As data; with every row, or only with the best after each."""
        study = self.study
        rows = {"trials": [trial.to_dict() for trial in study.trials]} if trials else {}
        return {
            "label": self.label,
            "tuner": study.tuner,
            "algorithm": study.algorithm,
            "scheduler": study.scheduler,
            "seed": study.seed,
            "count": len(study.trials),
            "counts": study.counts,
            "resumed": study.resumed,
            "best": study.best.to_dict() if study.best else None,
            "regret": self.regret(optimum),
            "incumbents": [{"trials": done, "value": value} for done, value in study.incumbents()],
            **rows,
        }

    def timing(self) -> dict[str, Any]:
        """Seconds, which no second run repeats."""
        trials = self.study.trials
        return {
            "wall_s": self.study.wall_s,
            "priced_s": sum(trial.took_s for trial in trials),
            "took_s": [trial.took_s for trial in trials],
            "at_s": [trial.at_s for trial in trials],
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TuneAnswer(Answer):
    """One study, or several on the same space with the same budget."""

    space: str
    objective: str
    size: int
    """Legal points."""
    trials: int
    optimum: Optimum | None
    studies: tuple[Judged, ...]
    compared: bool
    left_out: tuple[tuple[str, str], ...] = ()
    """Tuners that could not take part, and why."""

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.tune/1`, or `meshwright.tune-comparison/1`."""
        optimum = self.optimum
        found = {
            "space": self.space,
            "objective": self.objective,
            "size": self.size,
            "budget": self.trials,
            "optimum": None
            if optimum is None
            else {"value": optimum.value, "name": optimum.name, "space": optimum.space},
            "timing": {
                "search_s": optimum.search_s if optimum else None,
                "studies": [judged.timing() for judged in self.studies],
            },
        }
        if self.compared:
            return {
                "schema": "meshwright.tune-comparison/1",
                **found,
                "studies": [judged.to_dict(optimum, trials=False) for judged in self.studies],
                "left_out": [{"tuner": tuner, "why": why} for tuner, why in self.left_out],
            }
        return {"schema": "meshwright.tune/1", **found, **self.studies[0].to_dict(optimum, trials=True)}

    def figure(self) -> str:
        """Regret per trial and per second, as SVG.

        Raises:
            InputError: the optimum is not known, so there is no regret.
        """
        if self.optimum is None:
            problem = Problem(
                what="there is no figure of regret without the optimum", fix="leave out --no-optimum", field="figure"
            )
            raise InputError(problem, code="MW253")
        from meshwright.report.regret import regret_svg

        document = self.to_dict()
        return regret_svg(document if self.compared else {**document, "studies": [document]})

    def __repr__(self) -> str:
        return f"TuneAnswer({self.space}: {', '.join(judged.label for judged in self.studies)})"
