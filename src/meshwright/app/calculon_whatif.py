"""What each number of a system is worth to the best execution of the Calculon model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.app.calculon_search import nothing_fits
from meshwright.app.calculon_space import (
    MOST_BATCH,
    MOST_PROCESSORS,
    Check,
    Source,
    choose_space,
    inputs_of,
    read_apps,
    read_systems,
)
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.whatif import WhatIf, what_if

if TYPE_CHECKING:
    pass

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
                **inputs_of(space.app, space.system, space.num_procs, space.batch, space.axes),
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
    app: Source | Application,
    system: Source | System,
    *,
    procs: int,
    batch: int,
    dtype: str | None = None,
    space: str = "optimal-execution",
    tp_overlap: bool = True,
    dp_overlap: bool = True,
    pin: str | Iterable[str] = (),
    factors: Iterable[float] = (0.5, 2.0),
    fixed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CalculonWhatIf:
    """How the best sample rate changes with each number of the system, searched anew for every change.

    Args:
        app, system, procs, batch, dtype, space, tp_overlap, dp_overlap, pin, fixed: as `calculon_search` takes them.
        factors: each number is multiplied by each of these.
        progress: called with the searches done and the searches in all.

    Returns:
        The numbers, that with the largest effect first.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name.
        InfeasibleError: the space is empty, or nothing in it fits.
    """
    check = Check()
    apps, systems = read_apps(check, [app]), read_systems(check, [system])
    check.whole("--procs", procs, MOST_PROCESSORS)
    check.whole("--batch", batch, MOST_BATCH)
    held = tuple(dict.fromkeys(factors))
    for factor in held:
        if not 1e-6 <= factor <= 1e6 or factor == 1:
            why = "a factor is a number above 0 that changes something"
            check.problem(f"--factors holds {factor:g}", why, "for example --factors 0.5,2", "--factors")
    if not held:
        check.problem(
            "--factors is empty", "there is something to change by", "for example --factors 0.5,2", "--factors"
        )
    choice = choose_space(
        check, systems, space=space, dtype=dtype, tp_overlap=tp_overlap, dp_overlap=dp_overlap, pin=pin
    )
    check.done()
    asked = ExecutionSpace(apps[0], systems[0], procs, batch, choice.axes(systems[0]))
    answer = what_if(asked, choice.axes, factors=held, fixed=fixed, progress=progress)
    if not answer.base.best:
        raise nothing_fits(asked, answer.base)
    return CalculonWhatIf(space=asked, factors=held, answer=answer)
