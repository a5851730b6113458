"""What may be asked of Calculon's model: `calculon estimate`, `search`, `sweep` and `what-if`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from meshwright.app.requests.sweep import RAY_HELP
from meshwright.fields.field import ask, group
from meshwright.fields.job import NAME
from meshwright.fields.kinds import PAIRS, FieldKind, Flag, Number, Numbers, OutputFile, Texts, Whole
from meshwright.fields.limits import LimitFields
from meshwright.fields.request import Reading, Request

APP_HELP, SYSTEM_HELP = "Application: gpt3-175B, or a JSON file.", "System: a100_80g, or a JSON file."
OBJECT = FieldKind(annotation="Source")
NAMES = Texts(commas=True, repeated=False, annotation="str | Iterable[Any]")
SWEEP = "`meshwright calculon sweep --help` has examples"


def _fixed() -> Any:
    return ask("Correct the known errors of the original, which the manual lists.", Flag())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which executions of a design are looked at."""

    dtype: str | None = ask(
        "float8, float16, bfloat16 or float32.", NAME, usual="float16; all of the system with --space full"
    )
    space: str = ask(
        "optimal-execution (Calculon's own) or full.", NAME, default="optimal-execution", usual="optimal-execution"
    )
    tp_overlap: bool = ask(
        "Do not overlap tensor-parallel communication.", Flag(), default=True, option="--no-tp-overlap"
    )
    dp_overlap: bool = ask(
        "Do not overlap data-parallel communication.", Flag(), default=True, option="--no-dp-overlap"
    )
    pin: tuple[str, ...] = ask("Fix a key: tensor_par=4,8. Repeatable.", Texts(metavar="KEY=V", annotation=PAIRS))
    fixed: bool = _fixed()

    def check(self, reading: Reading, apps: tuple[Any, ...], systems: tuple[Any, ...]) -> None:
        """Where something is wrong already: what is wrong with the inputs and the space comes with it."""
        from meshwright.calculon.choice import check_inputs

        named_apps, named_systems = ([one for one in found if one] for found in (apps, systems))
        reading.also(lambda: check_inputs(named_apps, named_systems, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonSpace:
    """One design, and which of its executions are looked at."""

    app: Any = ask(APP_HELP, OBJECT, metavar="APP", argument=True, required="for example gpt3-175B")
    system: Any = ask(SYSTEM_HELP, OBJECT, metavar="SYS", argument=True, required="for example a100_80g")
    procs: int = ask("Processors.", Whole(), required="for example --procs 512")
    batch: int = ask("Largest batch, in samples.", Whole(metavar="B"), required="for example --batch 512")
    options: SpaceOptions = group(SpaceOptions)

    def check(self, reading: Reading) -> None:
        """Check the space, as `SpaceOptions.check`."""
        self.options.check(reading, (self.app,), (self.system,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How whole spaces are searched."""

    top: int = ask("Executions to list.", Whole(metavar="K", high=100_000), default=10, usual="10")
    stop_microbatch: bool = ask("Stop at the first micro-batch size that does not fit.", Flag(), short="-m")
    ray: str | None = ask(RAY_HELP, FieldKind(metavar="[ADDRESS]"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonEstimateRequest(Request):
    """One execution's 96 statistics, or those of a file of executions."""

    examples: ClassVar = (
        "calculon estimate gpt3-175B execution.json a100_80g --json",
        "calculon estimate --batch rows.jsonl",
    )
    positional: ClassVar = ("app", "execution", "system")

    app: Any = ask(APP_HELP, OBJECT, metavar="APP", argument=True)
    execution: Any = ask("Execution: a JSON file.", OBJECT, metavar="EXE", argument=True)
    system: Any = ask(SYSTEM_HELP, OBJECT, metavar="SYS", argument=True)
    batch: str | None = ask("JSON lines {app, system, execution}.", FieldKind(metavar="FILE"), python=False)
    layers: bool = ask("Also list the layers of a block (--json).", Flag(), short="-l")
    fixed: bool = _fixed()

    def rules(self, reading: Reading) -> None:
        """One execution, or a file of them."""
        if "batch" not in self.given:
            for name in ("app", "execution", "system"):
                if name not in self.given:
                    reading.missing(name, "meshwright calculon estimate APP EXE SYS")
        elif "app" in self.given:
            why = "every row of the file names its own application, system and execution"
            fix = "leave out APP, EXE and SYS, or --batch"
            reading.problem(f"{reading.called('batch')} is given beside APP", why, fix, "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonSearchRequest(Request):
    """The best executions of a space, their front, and the proof. The front is that of time and memory."""

    examples: ClassVar = (
        "calculon search gpt3-175B a100_80g --procs 512 --batch 512",
        "calculon search megatron-1T h100_80g_nvl8 --procs 4096 --batch 4096 --space full --json",
    )
    positional: ClassVar = ("app", "system")

    space: CalculonSpace = group(CalculonSpace)
    search: SearchOptions = group(SearchOptions)
    limits: LimitFields = group(LimitFields)

    def rules(self, reading: Reading) -> None:
        """What is wrong with the space comes with what is wrong elsewhere."""
        self.space.check(reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonSweepRequest(Request):
    """Search applications x systems x processors x batches. The best and the front of each are streamed to Parquet."""

    examples: ClassVar = (
        "calculon sweep gpt3-175B,megatron-1T a100_80g,h100_80g_nvl8 --procs 512,1024 --batch 1024 -o s.parquet",
        "calculon sweep gpt3-175B a100_80g --procs 512,1024 --batch 1024 -o s.parquet --resume --ray",
    )
    positional: ClassVar = ("apps", "systems")

    apps: tuple[Any, ...] = ask(
        "Applications: gpt3-175B,megatron-1T.",
        NAMES,
        metavar="APPS",
        argument=True,
        required=SWEEP,
    )
    systems: tuple[Any, ...] = ask(
        "Systems: a100_80g,h100_80g_nvl8.",
        NAMES,
        metavar="SYSTEMS",
        argument=True,
        required=SWEEP,
    )
    procs: tuple[int, ...] = ask("Processors: 512,1024.", Numbers(each=Whole()), required=SWEEP)
    batches: tuple[int, ...] = ask(
        "Largest batches: 512,3072.",
        Numbers(metavar="B,B", each=Whole()),
        option="--batch",
        required=SWEEP,
    )
    output: str = ask("The Parquet file.", FieldKind(metavar="FILE"), short="-o", required=SWEEP)
    options: SpaceOptions = group(SpaceOptions)
    search: SearchOptions = group(SearchOptions)
    every: bool = ask("Write all accepted executions, not only the best.", Flag(), option="--all")
    resume: bool = ask("Continue the existing file.", Flag())
    force: bool = ask("Overwrite the existing file.", Flag())

    def rules(self, reading: Reading) -> None:
        """What is wrong with the space and the file comes with what is wrong elsewhere."""
        from meshwright.formats.writing import check_file

        self.options.check(reading, self.apps, self.systems)
        if self.output:
            reading.also(lambda: check_file(Path(self.output)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonWhatIfRequest(Request):
    """How the best execution changes with the system's numbers. The space is searched again for every change."""

    examples: ClassVar = (
        "calculon what-if gpt3-175B a100_80g --procs 512 --batch 512 --svg tornado.svg",
        "calculon what-if gpt3-175B a100_80g --procs 512 --batch 512 --factors 0.9,1.1",
    )
    positional: ClassVar = ("app", "system")

    space: CalculonSpace = group(CalculonSpace)
    factors: tuple[float, ...] = ask(
        "Factors to change each number by.", Numbers(metavar="X,X", each=Number()), default=(0.5, 2.0), usual="0.5,2"
    )
    svg: str | None = ask("Also write the tornado plot as SVG.", OutputFile(), python=False)

    def rules(self, reading: Reading) -> None:
        """What is wrong with the space comes with what is wrong elsewhere."""
        self.space.check(reading)
