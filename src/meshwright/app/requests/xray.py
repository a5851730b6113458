"""What may be asked of `xray`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.app.requests.estimate import PLAN_KIND
from meshwright.fields.field import ask, group
from meshwright.fields.job import MONEY_AND_POWER, PLAN_HELP, JobFields
from meshwright.fields.kinds import FieldKind, Whole
from meshwright.fields.request import Reading, Request, with_plan_first
from meshwright.fields.script import ScriptFields

FRAMEWORKS = ("megatron", "torchtitan", "module")


@dataclass(frozen=True, slots=True, kw_only=True)
class XrayRequest(Request):
    """Run one rank with the framework's own code, without a GPU. Compares it with the estimate.

    Tensors are fake and nothing is sent: operators, collectives and live bytes are those of the framework.
    """

    examples: ClassVar = (
        "xray train.sh --gpus 16xH100",
        "xray llama-3.1-70b --plan tp8.pp4.z1.mbs1 --gpus 64xH100 --stage 3",
    )
    returns: ClassVar = "Operators, collectives and live bytes of the rank, ours beside them."
    positional: ClassVar = ("model", "source", "cluster")

    plan: Any = ask(PLAN_HELP, PLAN_KIND)
    job: JobFields = group(JobFields, without=("tokens", "failures", "price", *MONEY_AND_POWER))
    source: Any = ask(
        "Launch script, instead of --plan.",
        FieldKind(annotation="str | os.PathLike[str]"),
        metavar="FILE",
        argument=True,
    )
    framework: str | None = ask(
        "Code to run: Megatron-Core, torchtitan, or module (the model's class in Transformers).",
        FieldKind(metavar="|".join(FRAMEWORKS)),
        usual="that of the script, else megatron",
    )
    script: ScriptFields = group(ScriptFields)
    stage: int | None = ask("Pipeline stage whose first rank is run.", Whole(low=0), usual="0")
    rank: int | None = ask("Global rank to run, instead of --stage.", Whole(low=0))
    micro_batches: int | None = ask("Micro-batches to run.", Whole(), usual="as many as fill the pipeline")
    python: str | None = ask(
        "Python interpreter with the framework installed.",
        FieldKind(metavar="PATH"),
        usual="this one",
        option="--python",
    )

    @classmethod
    def meant(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A launch script alone stands where the model would: its options describe it."""
        from meshwright.app.requests.check import script_alone  # whoever asks for help reads no file

        return script_alone(with_plan_first(cls, values))

    def rules(self, reading: Reading) -> None:
        """One of a plan and a script; a stage or a rank."""
        planned, scripted = "plan" in self.given, "source" in self.given
        if not planned and not scripted:
            reading.missing("plan", "--plan tp2.pp2.z1.mbs1, a plan file, `xray MODEL FILE`, or `xray FILE`")
        if planned and scripted:
            what = f"both {reading.called('plan')} and {reading.called('source')} are given"
            reading.problem(what, "one plan runs", "keep one")
        if not scripted:
            reading.refuse(("arguments", "environment", "job"), "is given without a script", "it is started with it")
        self.script.rules(reading)
        if self.stage is not None and self.rank is not None:
            reading.problem("both --stage and --rank are given", "one rank runs", "keep one")
        if self.framework is not None and self.framework not in FRAMEWORKS:
            what = f"--framework is {self.framework[:40]!r}"
            reading.problem(what, f"must be one of {', '.join(FRAMEWORKS)}", "write --framework megatron")
