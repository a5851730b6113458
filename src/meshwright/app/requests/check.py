"""What may be asked of `check`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from meshwright.app.requests.estimate import PLAN_KIND
from meshwright.errors import InputError, MeshwrightError
from meshwright.fields.field import ask, group
from meshwright.fields.job import PLAN_HELP, WHAT_AND_WHERE, JobFields
from meshwright.fields.kinds import PAIRS, FieldKind, Flag, Texts
from meshwright.fields.limits import LimitFields
from meshwright.fields.request import Reading, Request, with_plan_first
from meshwright.fields.script import ScriptFields


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest(Request):
    """Whether a plan or script is legal, fits and is the fastest.

    Names the smallest change that repairs it. Exit 5 on violations.

    What is not given comes from the plan file or the launch script, else by default.
    """

    examples: ClassVar = (
        "check llama-3.1-70b --plan tp8.pp4.mbs1.z1 --gpus 64xH100",
        "check train.sh --gpus 64xH100",
        "check llama-3.1-70b train.sh --gpus 64xH100",
        "check --plan plan.json",
    )
    returns: ClassVar = "Violations, warnings, repairs and a better plan."
    positional: ClassVar = ("model", "plan", "cluster")

    plan: Any = ask(PLAN_HELP, PLAN_KIND)
    job: JobFields = group(JobFields)
    source: Any = ask(
        "Launch script or configuration file; its framework is detected unless --from names it.",
        FieldKind(annotation="str | os.PathLike[str]"),
        metavar="FILE",
        argument=True,
    )
    source_format: str | None = ask(
        "Format of FILE: a target's name, args (what Megatron-LM prints at start), wandb or hydra.",
        FieldKind(metavar="megatron|args|wandb|hydra|..."),
        option="--from",
    )
    script: ScriptFields = group(ScriptFields)
    settings: tuple[str, ...] = ask(
        "Override an option or key of FILE, by its own name, such as micro-batch-size=2. Repeatable.",
        Texts(metavar="NAME=VALUE", annotation=PAIRS),
        option="--set",
    )
    fix: bool = ask("Write FILE to -o with the better plan, or the smallest repair, applied.", Flag())
    output: Any = ask(
        "Output file of --fix.", FieldKind(metavar="FILE", annotation="str | os.PathLike[str]"), short="-o"
    )
    report: str | None = ask(
        "Print the findings as SARIF, JUnit XML or annotations of GitHub, for CI.",
        FieldKind(metavar="sarif|junit|github"),
        python=False,
    )
    oom_log: Any = ask(
        "Log of a run that ran out of memory: explain which tensor did not fit, and why.",
        FieldKind(metavar="LOG", annotation="str | os.PathLike[str]"),
    )
    search: bool = ask("Also look for a better plan in the default space.", Flag(), default=True, cli=False)
    limits: LimitFields = group(LimitFields)

    @classmethod
    def meant(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A launch script alone stands where the model would: its options describe it."""
        return script_alone(with_plan_first(cls, values))

    def rules(self, reading: Reading) -> None:
        """Exactly one of a plan and a launch script."""
        from meshwright.planning.question.job_inputs import job_inputs

        scripted = bool({"source_format", "source"} & self.given)
        self._one_source(reading, scripted=scripted)
        self._outside(reading, scripted=scripted)
        self._written(reading, scripted=scripted)
        if self.report is not None and self.report not in ("sarif", "junit", "github"):
            what = f"--report is {self.report[:40]!r}"
            reading.problem(what, "must be sarif, junit or github", "write --report sarif")
        if scripted:
            from meshwright.launch_files.script import nouns

            reading.also(lambda: nouns(self.job), needs=WHAT_AND_WHERE)  # the file may say the rest
        else:
            reading.also(lambda: job_inputs(self.job), needs=WHAT_AND_WHERE)

    def _one_source(self, reading: Reading, *, scripted: bool) -> None:
        planned, framework = "plan" in self.given, "source_format" in self.given
        if not planned and not scripted:
            reading.missing("plan", "--plan tp8.pp4.mbs1.z1, a plan file, or a launch script")
        if planned and scripted:
            plan, script = (
                reading.called("plan"),
                reading.called("source_format" if reading.typed and framework else "source"),
            )
            reading.problem(f"both {plan} and {script} are given", "one plan is checked", "keep one")
        if framework and "source" not in self.given:
            reading.missing("source", "write `check MODEL --from megatron FILE`")

    def _written(self, reading: Reading, *, scripted: bool) -> None:
        """--fix and -o go together, and with a script."""
        if ("fix" in self.given) != ("output" in self.given):
            one, other = ("fix", "output") if "fix" in self.given else ("output", "fix")
            what = f"{reading.called(one)} is given without {reading.called(other)}"
            reading.problem(what, "--fix writes the file that -o names", "write --fix -o FILE")
        elif self.fix and not scripted:
            reading.problem("--fix is given", "it edits a launch script or configuration", "name its FILE")

    def _outside(self, reading: Reading, *, scripted: bool) -> None:
        """Arguments, variables and settings go with a script; each has a name and a value."""
        for name in ("arguments", "environment", "job", "settings"):
            if name in self.given and not scripted:
                reading.problem(f"{reading.called(name)} is given", "it goes with a launch script", "leave it out")
        self.script.rules(reading)
        for text in self.settings:
            name = str(text).partition("=")[0].removeprefix("--")
            if not _NAME.fullmatch(name):
                why = "it takes the name of an option or key, = and its value"
                reading.problem(
                    f"{reading.called('settings')} has {name[:40]!r}", why, "for example micro-batch-size=2"
                )

    @property
    def over(self) -> dict[str, str]:
        """Options and keys that stand over the file's, by name."""
        return {name.removeprefix("--"): value for name, _, value in (text.partition("=") for text in self.settings)}


_NAME = re.compile(r"[A-Za-z][\w.-]*")


def script_alone(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A launch script that is given without a model, or before it, as the file it is."""
    first, second = values.get("model"), values.get("source")
    if isinstance(second, (str, os.PathLike)) and (file := _file_meant(Path(second), values)):
        if file == _plan_in(file.parent):
            return {**values, "source": None, "plan": str(file)}
        values, second = {**values, "source": str(file)}, str(file)
    if not isinstance(first, (str, os.PathLike)) or values.get("plan"):
        return values
    if file := _file_meant(Path(first), values):
        if file == _plan_in(file.parent) and second is None:
            return {**values, "model": None, "plan": str(file)}
        first = file
    if not _is_script(Path(first), values):
        return values
    if second is None:
        return {**values, "model": None, "source": first}
    turned = isinstance(second, str) and "\n" not in second and not os.path.isfile(second) and os.path.isfile(first)
    return {**values, "model": second, "source": first} if turned else values


def _file_meant(path: Path, values: Mapping[str, Any]) -> Path | None:
    """The file to read where a path is a folder, or a file of an export that states no plan: its program, its keys.

    That is the launch file, or the plan file of an export that has none; None where the path is itself to be read.
    """
    from meshwright.launch_files.plan_beside import PlanBeside

    if os.path.isdir(path):
        return _launch_file(path, values) or _plan_in(path)
    if values.get("source_format"):
        return None  # whoever says what wrote a file means that file
    beside = PlanBeside.of(path) if os.path.isfile(path) and path != _plan_in(path.parent) else None
    if beside is None or _begins_as_script(path):
        return None
    found = _of_targets([path.parent / name for name in beside.names])
    return None if path in found else next(iter(found), beside.path)


def _plan_in(folder: Path) -> Path | None:
    """The plan file that `export` left in a folder."""
    from meshwright.fields.plan_file import is_one_plan
    from meshwright.targets.contract import PLAN_FILE

    return folder / PLAN_FILE if is_one_plan(folder / PLAN_FILE) else None


def _is_script(path: Path, values: Mapping[str, Any]) -> bool:
    """Whether a path names a launch script or configuration rather than a model."""
    from meshwright.launch_files.source import SCRIPTS

    if path.suffix in (*SCRIPTS, ".yaml", ".yml", ".py", ".toml"):
        return True
    if path.suffix in (".json", ".txt", ".log", ".out"):
        return os.path.isfile(path) and (bool(values.get("source_format")) or _of_a_target(path))
    return os.path.isfile(path) and (bool(values.get("source_format")) or _begins_as_script(path))


def _begins_as_script(path: Path) -> bool:
    """Whether a file says in its first line what runs it, whatever its suffix: `train.sh.tmpl`."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _of_a_target(path: Path) -> bool:
    """Whether a file is the configuration of a target, or of options that a run recorded, and not that of a model."""
    from meshwright.formats.files import read_text
    from meshwright.formats.megatron.records import record_of
    from meshwright.launch_files.trainer_record import recorded

    try:
        if _target_of(path) is not None:
            return True
        text = read_text(path, "launch file")
        return recorded(path.name, text) is not None or record_of(path.name, text) is not None
    except (MeshwrightError, OSError):
        return False


def _target_of(path: Path) -> str | None:
    from meshwright.formats.files import read_text
    from meshwright.targets import target_of_file

    try:
        return target_of_file(path.name, read_text(path, "launch file"))
    except (MeshwrightError, OSError):
        return None


def _of_targets(paths: Iterable[Path]) -> dict[Path, str]:
    """Files of a folder with the target whose they are, without those of which another names its part.

    Programs stand last: those of an export take the plan from the file beside them.
    """
    from meshwright.formats.files import read_text
    from meshwright.targets import TARGETS

    files = sorted(paths, key=lambda path: (path.suffix == ".py", path.name))
    found = {path: target for path in files if path.is_file() and (target := _target_of(path)) is not None}
    named = {
        Path(name).name
        for path, target in found.items()
        for name in TARGETS[target].named(read_text(path, "launch file"))
    }
    return {path: target for path, target in found.items() if path.name not in named}


def _launch_file(folder: Path, values: Mapping[str, Any]) -> Path | None:
    """The file that states the plan in a folder as `export` writes it; None where it is no such folder.

    Raises:
        InputError: the folder has files of several targets, and no target is named; with each file and its target.
    """
    if not os.path.isdir(folder) or (folder / "config.json").exists():
        return None
    found = _of_targets(sorted(folder.iterdir())[:64])
    targets, asked = list(dict.fromkeys(found.values())), values.get("source_format")
    if asked in targets or len(targets) == 1:
        return next((path for path, target in found.items() if target == asked), next(iter(found)))
    if not targets:
        return None
    from meshwright.launch_files.plan_beside import PlanBeside

    whole = (path for path, target in found.items() if PlanBeside.of(path, (target,)) is not None)
    if asked is None and (path := next(whole, None)) is not None:
        return path  # others are parts of its export
    shown = ", ".join(f"{path.name} ({target})" for path, target in list(found.items())[:8])
    what, why = f"{str(folder)!r} has files of {len(targets)} targets", f"each may state a plan: {shown}"
    raise InputError(what=what, why=why, fix=f"name one of the files, or its target: --from {targets[0]}", code="MW201")
