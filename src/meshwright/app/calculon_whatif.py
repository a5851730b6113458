"""What each number of a system is worth to the best execution of the Calculon model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.calculon_search import nothing_fits
from meshwright.app.requests.calculon import CalculonWhatIfRequest
from meshwright.calculon.choice import Check, inputs_of, read_space
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.whatif import WhatIf, what_if

SCHEMA = "meshwright.calculon-what-if/1"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonWhatIf(Answer):
    """Sensitivities of an optimum, the largest first."""

    space: ExecutionSpace
    factors: tuple[float, ...]
    answer: WhatIf

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-what-if/1`."""
        space = self.space
        best = self.answer.base.best[0]
        return {
            "schema": SCHEMA,
            "inputs": {
                **inputs_of(space),
                "factors": list(self.factors),
            },
            "base": {
                "sample_rate": best.sample_rate,
                "total_time_s": best.stats["total_time"],
                "execution": asdict(best.execution),
                "search": self.answer.base.certificate.to_dict(),
            },
            "numbers": [
                {
                    "name": number.name,
                    "value": number.value,
                    "unit": number.unit,
                    "spread_sample_rate": number.spread,
                    "changes": [
                        {
                            "factor": change.factor,
                            "sample_rate": change.best.sample_rate if change.best else None,
                            "repriced_sample_rate": change.repriced_rate,
                            "moved": list(change.moved),
                            "execution": asdict(change.best.execution) if change.best else None,
                        }
                        for change in number.changes
                    ],
                }
                for number in self.answer.numbers
            ],
        }

    def __repr__(self) -> str:
        first = self.answer.numbers[0]
        return f"CalculonWhatIf({first.name} matters most, by {first.spread:.4g} samples/s)"

    def svg(self) -> str:
        """The tornado plot."""
        from meshwright.report.tornado import tornado_svg

        return tornado_svg(self.to_dict())


def calculon_what_if(
    request: CalculonWhatIfRequest, *, progress: Callable[[int, int], None] | None = None
) -> CalculonWhatIf:
    """How the best sample rate changes with each number of the system, searched anew for every change.

    Args:
        request: application, system and space; each number is multiplied by each of its factors.
        progress: called with the searches done and the searches in all.

    Returns:
        The numbers, that with the largest effect first.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name.
        InfeasibleError: the space is empty, or nothing in it fits.
    """
    check = Check()
    factors = tuple(dict.fromkeys(request.factors))
    for factor in factors:
        if not 1e-6 <= factor <= 1e6 or factor == 1:
            why = "a factor is a number above 0 that changes something"
            check.problem(f"--factors holds {factor:g}", why, "for example --factors 0.5,2", "--factors")
    if not factors:
        check.problem(
            "--factors is empty", "there is something to change by", "for example --factors 0.5,2", "--factors"
        )
    space, choice = read_space(request.space, check)
    answer = what_if(space, choice.axes, factors=factors, fixed=request.space.options.fixed, progress=progress)
    if not answer.base.best:
        raise nothing_fits(space, answer.base)
    return CalculonWhatIf(space=space, factors=factors, answer=answer)
