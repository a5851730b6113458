"""What may be asked of `schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from meshwright.fields.field import Field, ask, group, settings
from meshwright.fields.kinds import Choice, FieldKind, Flag, Number, OutputFile, Texts, Whole, Window
from meshwright.fields.limits import LimitFields
from meshwright.fields.request import Reading, Request

if TYPE_CHECKING:
    from meshwright.schedules import ScheduleParameter

OF_BEST = ("times", "room", "released_by_input", "allow", "split", "objective")
SECONDS = Number(metavar="S", zero=True, high=1e9)
NOT_WANTED = "is given"


def _parameters() -> tuple[Field, ...]:
    """What the schedules say of their own settings."""
    from meshwright.schedules import parameters

    return tuple(
        Field(
            name=one.name,
            help=f"{one.help.rstrip('.')} ({', '.join(one.schedules)}).",
            kind=_kind(one),
            default=False if one.kind == "flag" else None,
            rare=True,
        )
        for one in parameters()
    )


def _kind(parameter: ScheduleParameter) -> FieldKind:
    if parameter.kind == "flag":
        return Flag()
    if parameter.kind == "workers":
        return FieldKind(metavar="R_R_...")
    return Whole(low=parameter.low) if parameter.kind == "whole" else FieldKind(metavar="|".join(parameter.choices))


def _seconds(help_text: str, default: float) -> Any:
    return ask(help_text, SECONDS, default=default, usual=f"{default:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest(Request):
    """Draw, price and check one pipeline schedule with equal stages.

    Times are in seconds, of one micro-batch on all layers of a worker.
    """

    examples: ClassVar = (
        "schedule list",
        "schedule 1f1b --p 4 --m 8",
        "schedule interleaved --p 4 --m 8 --v 2 --tf 1 --ti 1 --tw 1 --tc 0.1",
        "schedule 1f1b,zb-h1 --p 4 --m 8 --svg both.svg",
        "schedule best --m 16 --times stages.csv",
        "schedule zb-h2 --p 4 --m 8 --csv order.csv",
        "schedule --from order.csv",
    )
    returns: ClassVar = "The schedule simulated, several on one time axis, the fastest, or the list of all."
    positional: ClassVar = ("name", "p", "m", "v")

    name: tuple[str, ...] = ask(
        "A schedule, several as 1f1b,zb-h1 on one time axis, `list` for all, or `best` for the fastest.",
        Texts(metavar="NAME", commas=True, repeated=False),
        argument=True,
    )
    p: int | None = ask("Workers.", Whole())
    m: int | None = ask("Micro-batches.", Whole())
    v: int | None = ask("Chunks per worker.", Whole(), usual="the fewest allowed")
    tf: float = _seconds("Forward.", 1.0)
    ti: float = _seconds("Input gradient.", 1.0)
    tw: float = _seconds("Weight gradient.", 1.0)
    tr: float = _seconds("Recomputation.", 0.0)
    tc: float = _seconds("Latency of a transfer; it occupies no worker.", 0.0)
    parameters: Mapping[str, int | str | bool] = settings(_parameters)
    lost: int | None = ask("Lost worker, from 0; the others' order is drawn (bamboo).", Whole(low=0))
    times: str | None = ask("CSV or JSON of stage times and bytes (best).", FieldKind(metavar="FILE"))
    room: float | None = ask("Micro-batches whose activations fit on each worker (best).", Number(metavar="N"))
    released_by_input: float | None = ask(
        "Share of an activation that the input gradient of a split backward already frees, with --room (best).",
        Number(metavar="SHARE", zero=True, high=1),
        usual="0",
    )
    allow: tuple[str, ...] = ask(
        "Schedules to choose from (best).", Texts(metavar="NAME,NAME", commas=True, repeated=False)
    )
    split: bool = ask("Whole backwards only in list scheduling (best).", Flag(), default=True, option="--no-split")
    objective: str = ask(
        "What `best` minimises: the makespan, or the longest span of a worker, which is the step time in steady state"
        " with post-validated updates.",
        Choice(names=("makespan", "span"), noun="objective"),
        default="makespan",
        usual="makespan",
    )
    svg: str | None = ask("Write the drawing as a figure, SVG or PNG.", OutputFile())
    window: tuple[float, float] | None = ask(
        "The part of the time that the figure shows, such as 40%-60% of a long schedule.", Window(), usual="all of it"
    )
    csv: str | None = ask("Write the schedule as a CSV that PyTorch loads.", OutputFile())
    source: str | None = ask(
        "Read a PyTorch schedule CSV, instead of NAME, --p and --m.", FieldKind(metavar="FILE"), option="--from"
    )
    limits: LimitFields = group(LimitFields)  # of best

    @property
    def listed(self) -> bool:
        """Whether the list of all schedules is wanted."""
        return self.name == ("list",)

    @property
    def best(self) -> bool:
        """Whether the fastest order is looked for."""
        return self.name == ("best",)

    @property
    def seconds(self) -> dict[str, float]:
        """Durations by the names of simulations."""
        return {
            "forward_s": self.tf,
            "input_s": self.ti,
            "weight_s": self.tw,
            "recompute_s": self.tr,
            "transfer_s": self.tc,
        }

    def rules(self, reading: Reading) -> None:
        """A schedule with its size, a file of one, the list, or the search: each with fields of its own."""
        if self.source is not None:
            why = "the file of --from says the order of every worker"
            reading.refuse(("name", "p", "m", "v"), NOT_WANTED, why, "leave it out")
        else:
            if not self.name:
                reading.missing("name", "name a schedule; `meshwright schedule list` shows all")
            if self.listed:
                why = "the list is of all schedules, whatever their size"
                reading.refuse(("p", "m", "v", "tf", "ti", "tw", "tr", "tc", "svg"), NOT_WANTED, why)
            else:
                self._sized(reading)
        if reading.typed and "svg" not in self.given:
            reading.refuse(("window",), f"without {reading.called('svg')}", "it is a part of the figure")
        if not self.best:
            reading.refuse(OF_BEST, NOT_WANTED, "only `schedule best` looks for an order", "leave it out")
        elif self.room is None:
            why = "it counts in the memory that --room states; a file of stage times has a column of that name"
            reading.refuse(("released_by_input",), NOT_WANTED, why, "state --room, or leave it out")
        self._of_names(reading)
        if not self.best and not self.listed:
            from meshwright.schedules import schedule_named

            for name in self.name:
                reading.also(lambda name=name: schedule_named(name))  # type: ignore[misc]

    def _of_names(self, reading: Reading) -> None:
        """What goes with named schedules, or with one alone."""
        unnamed, several, filed = self.best or self.listed, len(self.name) > 1, self.source is not None
        if unnamed or filed:
            reading.refuse(tuple(self.parameters), NOT_WANTED, "it belongs to schedules that are named", "leave it out")
        if unnamed or several:
            reading.refuse(("csv",), NOT_WANTED, "it writes one named schedule", "name one")
        if unnamed or several or filed:
            reading.refuse(("lost",), NOT_WANTED, "a worker of one named schedule is lost", "name one")

    def _sized(self, reading: Reading) -> None:
        for size in ("p", "m"):
            if size not in self.given and not (size == "p" and "times" in self.given):
                reading.missing(size, f"for example {reading.called(size)} 8")
