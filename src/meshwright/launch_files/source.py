"""A launch file with what is around it: the files beside it, the arguments and environment of its run, its edits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwright.errors import InputError, Problem
from meshwright.fields.script import ScriptFields
from meshwright.formats.files import read_text
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.described import describes
from meshwright.formats.megatron.records import RECORDS, YAML, nemo_of, script_of
from meshwright.formats.megatron.script import trains
from meshwright.formats.script_edit import written_at
from meshwright.formats.shell import Launch, Script, ScriptLine, launches, read_script, seen_from
from meshwright.formats.shell.values import known_text, literal, unknown_of
from meshwright.launch_files.argument_files import with_argument_files
from meshwright.launch_files.engine_options import ARGUMENTS, LAUNCHER
from meshwright.launch_files.named_files import NamedFiles
from meshwright.launch_files.nemo_launcher import launcher_config
from meshwright.launch_files.own_options import spelled_otherwise
from meshwright.launch_files.script_files import BARE, read_through, started_with, with_settings
from meshwright.launch_files.script_jobs import as_one_job, set_by_arguments
from meshwright.launch_files.trainer_record import SWIFT, TRAINER, command_recorded, engine_open
from meshwright.targets import TRAINERS, Target, overrides, reader_named
from meshwright.targets.keys import keys_of

SCRIPT_RECORDS = {**dict.fromkeys(RECORDS, "megatron"), TRAINER: "accelerate", SWIFT: "swift"}
"""Other forms of a script by name, with the target whose script it is."""
SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash", ".job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What part of a script's run its text does not say."""

    arguments: tuple[str, ...] | None = None
    """Values of `$1` and on; None where nobody said them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, by name."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Options or keys of the file that stand over what it says, by name."""
    job: str = ""
    """Which of several jobs of a script is meant, by number or name."""


NOTHING_OUTSIDE = Outside()


def outside_of(script: ScriptFields, settings: Mapping[str, str] | None = None) -> Outside:
    """What a request says of a script's run.

    Args:
        script: fields of the request.
        settings: options or keys that stand over the file's.
    """
    return Outside(
        arguments=script.arguments or None,
        environment=script.variables,
        settings=settings or {},
        job=script.job or "",
    )


_DEEPSPEED = "megatron-deepspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSource:
    """A launch file with what is around it: what is needed to read it, and to read it again once it is edited."""

    files: Mapping[str, str]
    """The file itself first, then those beside it that say more of a plan."""
    near: NamedFiles
    """Files around it, by the paths that it names."""
    target: Target
    devices: int | None
    """Devices of the job; None where neither the script nor the cluster says."""
    outside: Outside
    record: str = ""
    """Where options are kept in another form than a script: a name of RECORDS, or `yaml`."""
    script: LaunchSource | None = None
    """The script that starts a program with these files; None where they are what the user starts."""
    options: frozenset[str] = frozenset()
    """Names of the files that are options in the script."""

    @classmethod
    def of(
        cls, source: str | os.PathLike[str], source_format: str, devices: int | None, outside: Outside
    ) -> LaunchSource:
        """A file, or text of several lines, with what is around it.

        Args:
            source: path, or text.
            source_format: a target that has a reader, or another form of its script.
            devices: the number of devices of the job; None where no cluster is named.
            outside: what the text does not say.

        Raises:
            InputError: the file cannot be read.
        """
        target = reader_named(SCRIPT_RECORDS.get(source_format, source_format))
        near = NamedFiles(None if isinstance(source, str) and "\n" in source else Path(source).parent)
        return cls(
            files=_files(source, target, near),
            near=near,
            target=target,
            devices=devices,
            outside=outside,
            record=_record(source, source_format),
        )

    @property
    def name(self) -> str:
        """Name of the file; empty for text that is in no file."""
        return next(iter(self.files))

    @property
    def text(self) -> str:
        """Text of the file."""
        return self.files[self.name]

    @property
    def by_options(self) -> bool:
        """Whether it is a script whose options say the plan."""
        return self.is_bash and self.target.script is not None and not self._keyed

    @property
    def editable(self) -> LaunchSource | None:
        """The files that another plan would change; None where the plan is in none of them, or they are not written."""
        if self.record:
            return None
        if self.target.name in TRAINERS:
            return replace(self, files=self._with_settings(self.files))
        if not self.is_bash or self.target.script is not None:
            return self
        script, _ = as_one_job(self._script(self.text), self._read_script)
        found = started_with(script, self.target, self.near)
        names = sorted(found.files, key=lambda name: name in self.target.beside)
        if not names or found.questions or not found.written.isdisjoint((LAUNCHER, BARE)):
            return None
        options = frozenset(names) & {ARGUMENTS, overrides.FILE}
        files = {name: found.files[name] for name in names}
        return replace(self, files=files, outside=Outside(), script=self, options=options)

    def commands(self, text: str) -> frozenset[int]:
        """Lines of a script's trainings, where it starts several.

        Args:
            text: the text in the place of the file's own.
        """
        trainings = self.trainings(text)
        words = (word for launch in trainings for word in launch.words) if len(trainings) > 1 else ()
        places = (word.place for word in words)
        return frozenset(one.line for one in places if one is not None and one.file == (self.name or "script"))

    def trainings(self, text: str) -> list[Launch]:
        """Starts of the last program that trains in a script, in their order; none in a file that is no script.

        Args:
            text: the text in the place of the file's own.
        """
        found = [one for one in launches(self._script(text).commands) if trains(one)] if self.is_bash else []
        return [one for one in found if one.program == found[-1].program]

    @property
    def _keyed(self) -> bool:
        return self.target.edited(self.name, self.text) is not None

    @property
    def is_bash(self) -> bool:
        """Whether it is a script."""
        suffix = Path(self.name).suffix
        named = suffix in SCRIPTS or (self.text.startswith("#!") and suffix != ".py")
        return named or (not self.name and self.target.script is not None)

    def read(self, text: str | None = None) -> LaunchFile:
        """The file as its target reads it, a bash script as bash means it.

        Args:
            text: the text in the place of the file's own.
        """
        text = self.text if text is None else text
        if self.record == TRAINER:
            over = self.outside.settings
            command = command_recorded(text, over, name=self.name)
            engine = reader_named("deepspeed")
            # The engine's own file says what is sharded, where one is there.
            by_engine = started_with(self._script(command), engine, self.near).files
            read = (replace(self, target=engine) if by_engine else self)._as_script(command)
            asked = engine_open(text, over)
            return replace(read, row=None, questions=(*read.questions, *asked)) if asked else read
        if self.record == SWIFT:
            return self._as_script(command_recorded(text, self.outside.settings, SWIFT, self.name))
        if self.record == "hydra" and self.is_bash:
            return self._of_launcher(text)
        if self.record:
            made, nemo = script_of(text, self.record), nemo_of(text, self.record)
            of_deepspeed = self.target.name == "megatron" and re.search(r" --deepspeed(?: |$)", made, re.MULTILINE)
            read = (replace(self, target=reader_named(_DEEPSPEED)) if of_deepspeed else self)._as_script(made)
            if nemo is None:
                return read
            workload = {**read.workload, **({} if read.questions else nemo.workload)}
            return replace(read, problems=(*read.problems, *nemo.problems), workload=workload)
        if self.is_bash:
            return self._as_script(text)
        return self.reading(self._with_settings({**self.files, self.name: text}))

    def _of_launcher(self, text: str) -> LaunchFile:
        """What the config says that a script starts NeMo's launcher with."""
        found = launcher_config(self._script(text), self.near)
        if found is None or found.problems:
            wrong = InputError(what="the script does not start NeMo's launcher", why="no main.py has stages=[...]")
            problems = found.problems if found is not None else wrong.problems
            return LaunchFile(row=None, layout=None, problems=tuple(problems))
        # One line: what its values are written on is in two files.
        launched = replace(self, files={f"{self.name}.json": json.dumps(found.keys)}).read()
        said, unpriced = (
            tuple(replace(one, place="") for one in values) for values in (launched.said, launched.unpriced)
        )
        return replace(launched, said=said, unpriced=unpriced)

    def _as_script(self, text: str) -> LaunchFile:
        _, launched = as_one_job(self._script(text), self._read_script)
        if names := set_by_arguments(text, launched):
            unset = {**dict.fromkeys(names, ""), **self.outside.environment}
            without = replace(self, outside=replace(self.outside, environment=unset))._as_script(text)
            if not without.questions and (describes(without.model) or "name" in without.model):
                note = f"without arguments {', '.join(names)} is not set, which the script itself sets from them"
                return replace(without, notes=(*without.notes, note))
        return self._with_places(launched)

    def _read_script(self, script: Script) -> LaunchFile:
        if self.target.name == "bridge":
            from meshwright.targets.bridge.programs import read_programs  # few scripts start such

            if (own := read_programs(script, self.near, self.devices)) is not None:
                return own
        if self.target.script is not None:
            return self.target.script(script, self.devices)
        return read_through(script, self.target, self.devices, self.near)

    def _with_places(self, launched: LaunchFile) -> LaunchFile:
        """What was read, with a note of each file it was read from that lies elsewhere than its path says."""
        names = {one.place.rpartition(":")[0] for one in (*launched.said, *launched.unpriced)}
        return replace(launched, notes=(*launched.notes, *self.near.notes(names)))

    def _with_settings(self, files: Mapping[str, str]) -> Mapping[str, str]:
        """Files with the keys that stand over them: the target's own, and those of its trainer."""
        if not self.outside.settings:
            return files
        stated = {key: overrides.parsed_word(value) for key, value in self.outside.settings.items()}
        own = stated if ARGUMENTS not in self.target.beside else keys_of(self.target.name, stated)
        rest = {key: value for key, value in stated.items() if key not in own}
        held = json.loads(files.get(ARGUMENTS, "{}")) if rest else {}
        over = {overrides.FILE: json.dumps(own)} if own else {}
        return {**files, **over, **({ARGUMENTS: json.dumps({**held, **rest})} if rest else {})}

    def _as_bash_means(self, text: str) -> Script:
        return read_script(
            text,
            name=self.name or "script",
            arguments=self.outside.arguments,
            environment=self.outside.environment,
            read=self.near,
            folder=self.near.start,
        )

    def _script(self, text: str) -> Script:
        script = self._as_bash_means(text)
        script = with_argument_files(replace(script, job=self.outside.job), self.near)
        script = with_settings(script, self.target, self.outside.settings)
        if not self.target.beside:
            return script
        # Configurations that it names and that lie beside it say more; those that it writes itself come first.
        others = {name: literal(text, ScriptLine(name, 1)) for name, text in self._named(script).items()}
        return replace(script, files={**others, **script.files})

    def _named(self, script: Script) -> dict[str, str]:
        """Text, by name, of the configurations in JSON that commands of a script name, where they lie beside it."""
        words = ((one.folder, word.text.rpartition("=")[2]) for one in script.commands for word in one.words)
        paths = [(folder, path) for folder, path in words if path.endswith((".json", ".hjson"))]
        texts = {path: self.files.get(Path(path).name) or seen_from(folder, path, self.near) for folder, path in paths}
        return {Path(path).name: text for path, text in texts.items() if text is not None}

    def configurations(self, text: str) -> dict[str, str]:
        """Text, by name, of the configurations that a script names and does not write itself.

        Args:
            text: the text of the script.
        """
        script = self._as_bash_means(text)
        return {name: held for name, held in self._named(script).items() if name not in script.files}

    def written(self, text: str) -> dict[str, str]:
        """Text, by name, of the configurations that a script writes itself, line by line.

        Args:
            text: the text of the script.
        """
        files = self._as_bash_means(text).files
        known = {name: known_text(held) for name, held in files.items() if unknown_of(held) is None}
        return {name: held for name, held in known.items() if written_at(text, held) is not None}

    def reading(self, files: Mapping[str, str]) -> LaunchFile:
        """Files of this source, edited, as its target reads them."""
        if self.is_bash:
            return self.read(files[self.name])
        if self.outside.arguments is not None or self.outside.environment:
            why = f"{self.name or 'the text'} is no bash script"
            raise InputError(Problem(what="--arg or --env is given", why=why, fix="leave it out", field="environment"))
        if self.outside.job:
            why = f"{self.name or 'the text'} is no bash script, and says one job"
            raise InputError(Problem(what="--job is given", why=why, fix="leave it out", field="job"))
        assert self.target.read is not None
        launched = self.target.read(files, self.devices)
        spelled = tuple(spelled_otherwise(launched, self.target.title)) if self.target.name in _TRAINERS_KEYS else ()
        return self._with_places(replace(launched, problems=(*launched.problems, *spelled)))


_TRAINERS_KEYS = ("llamafactory", "axolotl")
"""Targets whose keys are those of a trainer, which other programs spell in other ways."""


def _record(source: str | os.PathLike[str], source_format: str) -> str:
    if source_format in SCRIPT_RECORDS:
        return source_format
    yaml = source_format == "megatron" and "\n" not in str(source) and Path(source).suffix in YAML
    return "yaml" if yaml else ""


def _files(source: str | os.PathLike[str], target: Target, near: NamedFiles) -> dict[str, str]:
    """A file, or text of several lines, with the files of its folder that say more of a plan."""
    if isinstance(source, str) and "\n" in source:
        return {"": source}
    path = Path(source)
    found = {path.name: read_text(path, "launch script")}
    for name in target.beside:
        if (path.parent / name).is_file() and name not in found:
            found[name] = read_text(path.parent / name, "launch file")
    texts = {Path(name).name: near(name) for name in target.named(found[path.name])}
    return found | {name: text for name, text in texts.items() if text is not None}
