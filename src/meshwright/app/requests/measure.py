"""What may be asked of verbs that take measurements: `validate`, `calibrate` and `profile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.app.requests.estimate import PLAN_KIND
from meshwright.fields.field import ask, group
from meshwright.fields.job import FRAMEWORK_HELP, MONEY_AND_POWER, NAME, PLAN_HELP, JobFields
from meshwright.fields.kinds import Duration, FieldKind, Flag, Number, Texts
from meshwright.fields.request import Reading, Request

MEASURED = "MEASURED.csv"
PATH = FieldKind(metavar="FILE", annotation="str | os.PathLike[str]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest(Request):
    """Predict every measured run and score the predictions."""

    examples: ClassVar = (
        "validate measured.csv -o predictions.csv",
        "validate measured.csv --fail-above 15",
    )
    returns: ClassVar = "A prediction for every row, and scores of the predictions."
    positional: ClassVar = ("measured", "output")

    measured: Any = ask(
        "CSV of measured runs, one per row.",
        PATH,
        metavar=MEASURED,
        argument=True,
        required="name a file of measured runs",
    )
    output: Any = ask("CSV of predictions to write.", PATH, short="-o")
    fail_above: float | None = ask(
        "Exit 5 if the median error in percent is above this.", Number(metavar="PCT", zero=True, high=1e6)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest(Request):
    """Fit the numbers behind predictions to measured runs. Or adjust them to a measured step of your own.

    Fitted numbers are written only if they predict held-out sources better than the numbers before. A file
    calibration.json in the folder MESHWRIGHT_LIBRARY is used by default; --calibration names another for one command.
    """

    examples: ClassVar = (
        "calibrate measured.csv -o calibration.json",
        "calibrate --from-log train.log --model llama-3.1-8b --plan tp2.mbs1 --gpus 8xH100 -o run.json",
    )
    returns: ClassVar = "The numbers, and how well they predict."
    positional: ClassVar = ("measured", "output")

    measured: tuple[Any, ...] = ask(
        "CSV of measured runs, one per row.",
        Texts(annotation="str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"),
        metavar=f"{MEASURED}...",
        argument=True,
        words=True,
    )
    output: Any = ask("Calibration file (JSON) to write.", PATH, short="-o")
    from_log: Any = ask("Training log, or CSV of steps, of a run of --plan.", PATH)
    plan: Any = ask(PLAN_HELP, PLAN_KIND)
    framework: str | None = ask(FRAMEWORK_HELP, NAME, usual="recognised by its lines")
    ranked: bool = ask(
        "With --from-log: skip planning the job under both the old and the new calibration.",
        Flag(),
        default=True,
        option="--no-ranking",
    )
    job: JobFields = group(
        JobFields,
        without=(
            "tokens_per_step",
            "lengths",
            "packing",
            "dynamic_cp",
            "optimizer",
            "attention_kernel",
            "loss_tiles",
            "mlp_tiles",
            "expert_load",
            "tokens",
            "failures",
            "price",
            *MONEY_AND_POWER,
            "software",
        ),
        model={"argument": False, "help": "With --from-log: model of the run."},
    )

    def rules(self, reading: Reading) -> None:
        """Runs, or one log and its plan."""
        if "from_log" not in self.given:
            if not self.measured:
                reading.problem(
                    f"{MEASURED} is missing", "the verb needs it", "name a file of measured runs", "measured"
                )
            return
        if self.measured:
            what = f"both {MEASURED} and {reading.called('from_log')} are given"
            reading.problem(what, "many runs are fitted, or one log moves the numbers", "keep one of them")
        if "plan" not in self.given:
            ran = next((name for name in map(str, self.measured) if not name.endswith(".csv")), "")
            reading.missing("plan", f"say the plan that ran: --plan {ran or 'tp8.pp4.mbs1.z1, or a plan file'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest(Request):
    """Measure this machine's own device, as curves. Matrix products, attention, memory, launches and links.

    Needs meshwright[jax]. `meshwright gpus add` takes the file.
    """

    examples: ClassVar = ("profile -o mine.toml --name mine", "gpus add mine.toml")
    returns: ClassVar = "The device, with its curves."
    positional: ClassVar = ("output",)

    output: Any = ask("Device file to write.", PATH, short="-o")
    name: str | None = ask("Name of the device.", NAME, usual="derived from its kind")
    seconds: float = ask("Shortest measuring time: 60, 2min.", Duration(), default=60.0, usual="60")
