"""What may be asked of `size`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from meshwright.app.requests.plan import PICTURE, PLAN_SET_FILE
from meshwright.fields.field import ask, group
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.fields.kinds import Duration, FieldKind, Number, OutputFile
from meshwright.fields.limits import LimitFields
from meshwright.fields.request import Reading, Request

if TYPE_CHECKING:
    from meshwright.specs.device import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest(Request):
    """The fewest devices for a deadline, a step time or a budget.

    Parts of a node, and numbers of nodes with no prime factor above 7, are searched in ascending order: more devices
    can be slower than fewer where degrees divide them badly. Counts whose lower bound of time, memory or price misses
    the goal are not searched.
    """

    examples: ClassVar = (
        "size llama-3.1-70b --device H100 --days 30 --tokens 2T",
        "size llama-3-8b --device A100-80 --step-time 10",
    )
    returns: ClassVar = "The number of devices, its plans, and the curve of all counts searched."
    positional: ClassVar = ("model", "device")

    job: JobFields = group(JobFields, without=("gpus", "cluster"))
    device: DeviceSpec | str = ask(
        "A name of `gpus list`.",
        FieldKind(metavar="D", annotation="DeviceSpec | str"),
        required="for example --device H100",
    )
    days: float | None = ask("Longest training time in days; needs --tokens.", Number(metavar="N"))
    step_time: float | None = ask("Longest step time: 10, 10s, 2min.", Duration())
    max_price: float | None = ask("Upper limit on the cost of the run; needs --tokens.", Number(metavar="USD"))
    space: SpaceFields = group(SpaceFields, without=("schedule", "offload", "methods"))
    limits: LimitFields = group(LimitFields)
    output: str | None = ask(PLAN_SET_FILE, OutputFile(), short="-o", python=False)
    svg: str | None = ask(PICTURE, OutputFile(), python=False, rare=True)

    def rules(self, reading: Reading) -> None:
        """A goal, and the length of the run where the goal is of a run."""
        if not self.given & {"days", "step_time", "max_price"}:
            what = (
                f"{reading.called('days')}, {reading.called('step_time')} or {reading.called('max_price')} is missing"
            )
            reading.problem(what, "a size needs a goal to meet", "for example --step-time 10", "days")
        if "tokens" not in self.given and self.given & {"days", "max_price"}:
            why, fix = "a run's length needs the tokens it trains on", "for example --tokens 15T"
            reading.problem(f"{reading.called('tokens')} is missing", why, fix, "tokens")
        from meshwright.planning.axes import check_axes

        reading.attempt(lambda: check_axes(**self.space.keywords()))
        reading.also(self._job_problems)

    def _job_problems(self) -> None:
        from dataclasses import replace

        from meshwright.library.devices import device
        from meshwright.planning.question.job_inputs import job_inputs

        name = self.device if isinstance(self.device, str) and self.device else "H100"
        device(name)
        job_inputs(replace(self.job, gpus=f"1x{name}"))
