"""A launch script as a plan to check, with what is wrong in its options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.fields.job import JobFields
from meshwright.formats.files import parsed, read_text
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron import model_facts
from meshwright.formats.megatron.read import DEVICES
from meshwright.formats.megatron.records import RECORDS, YAML, nemo_of, record_of, script_of
from meshwright.formats.shell import Script, ScriptLine, read_script
from meshwright.formats.shell.values import literal
from meshwright.library import models
from meshwright.library.calibration import calibration as calibration_of
from meshwright.planning.job_inputs import job_inputs, resolve_cluster, resolve_model
from meshwright.planning.launch_model import model_trained
from meshwright.planning.nemo_launcher import launcher_config
from meshwright.planning.plan_source import PlanQuestion, with_row
from meshwright.planning.script_files import ARGUMENTS, LAUNCHER, read_through, started_with, with_settings
from meshwright.planning.trainer_record import command_recorded, engine_open, recorded
from meshwright.planning.tuned import with_targets_there
from meshwright.planning.violation import Violation
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.precision import Precision
from meshwright.targets import TARGETS, TRAINERS, Target, overrides, reader_named, readers, target_of_file
from meshwright.targets.keys import keys_of

_LANGUAGES = {".json": "JSON", ".yaml": "YAML", ".yml": "YAML"}
TRAINER = "trl"
"""The record of a trainer's options."""
_RECORDS = {**dict.fromkeys(RECORDS, "megatron"), TRAINER: "accelerate"}
"""Other forms of a script by name, with the target whose script it is."""
SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash", ".job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What of a script's run its text does not say."""

    arguments: tuple[str, ...] | None = None
    """Its `$1` and on; None where nobody said them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, by name."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Options or keys of the file that stand over what it says, by name."""


def format_of(source: str | os.PathLike[str], outside: Outside = Outside()) -> str:
    """The target whose file this is, by its name and text; Megatron-LM's for text that is in no file.

    Args:
        source: path, or text of several lines.
        outside: what the text does not say, which may name the file that decides it.

    Raises:
        InputError: none of the targets, or several, say it is theirs; or the file cannot be read.
    """
    if isinstance(source, str) and "\n" in source:
        return "megatron"
    path = Path(source)
    text = read_text(path, "launch script")
    if "stages=" in text and _starts_launcher(path, text, outside):
        return "hydra"
    found = target_of_file(path.name, text) or record_of(path.name, text)
    found = found or (TRAINER if recorded(path.name, text) else None)
    if found is None and (path.suffix in SCRIPTS or (text.startswith("#!") and path.suffix != ".py")):
        found = _started_by(path, text, outside) or "megatron"
    if found is None and path.suffix in _LANGUAGES:
        parsed(text, _LANGUAGES[path.suffix], "launch file")
    if found is None:
        from meshwright.planning.other_programs import of_another  # few files are such

        if (other := of_another(path.name, text)) is not None:
            raise InputError(other)
        why = "its text names none of the supported frameworks, or several"
        fix = f"add --from with one of {', '.join((*readers(), *TRAINERS, *_RECORDS))}"
        raise InputError(
            Problem(what=f"the framework of {path.name!r} is not recognised", why=why, fix=fix, field="source")
        )
    return found


_OF_MEGATRON = ("--tensor-model-parallel-size", "--micro-batch-size", "--num-layers")


def _starts_launcher(path: Path, text: str, outside: Outside) -> bool:
    """Whether a script starts NeMo's launcher, whose words look like those of other programs."""
    read = partial(_beside, folder=path.parent)
    said, known = outside.arguments, outside.environment
    script = read_script(text, name=path.name, arguments=said, environment=known, read=read)
    return launcher_config(script, read) is not None


def _started_by(path: Path, text: str, outside: Outside) -> str | None:
    """The target with whose configuration, in a file beside it, a script starts its program."""
    if any(option in text for option in _OF_MEGATRON):
        return None
    read = partial(_beside, folder=path.parent)
    said, known = outside.arguments, outside.environment
    script = read_script(text, name=path.name, arguments=said, environment=known, read=read)
    with_files = [name for name in (*readers(), *TRAINERS) if reader_named(name).script is None]
    found = [name for name in with_files if started_with(script, reader_named(name), read).files]
    if LAUNCHER in started_with(script, TARGETS["accelerate"], read).files:
        found = [name for name in found if name != "accelerate"] or ["accelerate"]
    return found[0] if len(found) == 1 else None


def script_question(
    source: str | os.PathLike[str], source_format: str, asked: JobFields, outside: Outside = Outside()
) -> tuple[PlanQuestion | None, list[Violation], LaunchFile, LaunchSource]:
    """A launch script as a question, with what is wrong in its options, what was read, and from what.

    Args:
        source: path, or text of several lines.
        source_format: a target that has a reader.
        asked: model, cluster and workload, before the script's own.
        outside: what the script's text does not say.

    Returns:
        The question is None where model or cluster are asked for: then the questions of what was read say so.

    Raises:
        InputError: the script says nothing that can be used.
        UnsupportedError: a format nobody reads.
    """
    source_format = TRAINERS.canonical(TARGETS.canonical(source_format))
    if source_format not in (*readers(), *TRAINERS, *_RECORDS):
        known = (*readers(), *TRAINERS, *_RECORDS)
        raise UnsupportedError(unknown_name("source", str(source_format)[:60], known), code="MW406")
    target = reader_named(_RECORDS.get(source_format, source_format))
    model, cluster = _nouns(asked)
    launch = LaunchSource(
        files=_files(source, target),
        folder=None if isinstance(source, str) and "\n" in source else Path(source).parent,
        target=target,
        devices=None if cluster is None else cluster.devices,
        outside=outside,
        record=_record(source, source_format),
    )
    flags = launch.read()
    which = None
    if cluster is None:
        flags, which = _for_devices(launch, flags)
    if flags.row is None and not flags.said and not flags.workload and not flags.questions and flags.problems:
        raise InputError(flags.problems, code="MW231")
    asks = [*flags.questions, *([which] if which is not None else [])]
    if model is None:
        model, open_model = model_trained(flags, f"model of {Path(launch.name).name or 'the script'}")
        known_open = any(one.field == "model" for one in asks)
        asks += [open_model] if open_model is not None and not known_open else []
    if model is None or cluster is None:
        flags = replace(flags, questions=tuple(dict.fromkeys(asks)))
        violations = [Violation.of("OPTIONS", problem) for problem in flags.problems]
        violations += [Violation.of("ASK", problem) for problem in flags.questions]
        return None, violations, flags, launch
    if asked.model is None:
        how = f"the model is {model.name}" if "name" in flags.model else "no model is named: the options describe one"
        said = f"{how} of {model.parameters:,} parameters"
        flags = replace(flags, notes=(*flags.notes, said, *model.notes))
    own: dict[str, Any] = {key: flags.workload.get(key) for key in _OF_WORKLOADS}
    own["dtype"] = _states_of(flags)
    if own["lora"] is not None and not model.streams:
        own["lora"], absent = with_targets_there(model, own["lora"])
        if absent:
            note = f"{model.name} has no {', '.join(absent)}, which adapters are meant for"
            flags = replace(flags, notes=(*flags.notes, note))
    own["software"] = flags.workload.get("software", target.software)
    if asked.global_batch is None and asked.tokens_per_step is None:
        own["global_batch"] = flags.workload.get("global_batch")
    own = {name: value for name, value in own.items() if getattr(asked, name) is None}
    inputs = job_inputs(replace(asked, **own, model=model, cluster=cluster, gpus=None))
    if asked.seq_len is None and own.get("seq_len") is None and not asked.lengths and not inputs.model.pooled:
        note = f"the file states no sequence length: {inputs.workload.seq_len:,} tokens are assumed; --seq sets another"
        flags = replace(flags, notes=(*flags.notes, note))
    violations = [Violation.of("ASK", problem) for problem in flags.questions]
    violations += [Violation.of("OPTIONS", problem) for problem in flags.problems]
    if asked.model is not None or "name" in flags.model:  # else the options describe it themselves
        violations += _shape_differs(inputs.model, flags.model)
    violations += _name_differs(inputs.model, flags.model.get("name"))
    if flags.row is None:
        question = PlanQuestion(inputs=inputs, row=None, plan=flags.plan, warnings=flags.notes)
        return question, violations, flags, launch
    batch = inputs.workload.global_batch
    if inputs.batch_given and batch != flags.row.gbs:
        what = f"the script runs {flags.row.gbs} sequences per step, {batch} are asked for"
        violations.append(Violation(code="OPTIONS", what=what, why="a step has one batch", field="--global-batch-size"))
    row = flags.row
    flags, undealt = _with_stages(flags, inputs.model)
    layout, violations = flags.layout, violations + undealt
    if layout is not None and len(set(layout)) > 1:
        flags = replace(flags, notes=(*flags.notes, f"layers of the pipeline's stages: {_listed(layout)}"))
    question = with_row(row, inputs, flags.notes)
    if question.plan is None or layout is None:
        return question, violations, flags, launch
    if sum(layout) == inputs.model.num_layers:
        return replace(question, plan=plan_of(row, layout)), violations, flags, launch
    what = f"the pipeline stages of the file hold {sum(layout)} layers"
    why = f"{inputs.model.name} has {inputs.model.num_layers}"
    violations.append(Violation(code="MODEL", what=what, why=why, fix="name the model that it trains", field="pp"))
    return question, violations, flags, launch


def _listed(counts: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, counts[:24]))
    return shown if len(counts) <= 24 else f"{shown}, ... {counts[-1]}"


def _with_stages(flags: LaunchFile, model: ModelSpec) -> tuple[LaunchFile, list[Violation]]:
    """A file with the layers of its stages for a model, and why the framework deals it none."""
    if flags.layout is not None or flags.dealt is None:
        return flags, []
    try:
        return replace(flags, layout=flags.dealt(model.num_layers)), []
    except InputError as error:
        return flags, [Violation.of("OPTIONS", problem) for problem in error.problems]


_OF_WORKLOADS = (
    *("seq_len", "optimizer", "attention_kernel", "loss_tiles", "mlp_tiles", "bf16_first", "bf16_last", "lora"),
)


def _states_of(flags: LaunchFile) -> Precision | None:
    """Number formats of a file, without that of moments where its optimizer has one of its own."""
    precision, optimizer = flags.workload.get("precision"), flags.workload.get("optimizer")
    if precision is None or optimizer is None or not optimizer_named(optimizer).own_formats:
        return precision
    return replace(precision, moments="fp32")


def _nouns(asked: JobFields) -> tuple[ModelSpec | None, ClusterSpec | None]:
    """The model and the cluster, each None where nobody names it.

    Raises:
        InputError, UnsupportedError: of either, together.
    """
    named = asked.cluster is not None or asked.gpus is not None
    if asked.model is not None and named:
        given = JobFields(model=asked.model, cluster=asked.cluster, gpus=asked.gpus, calibration=asked.calibration)
        where = job_inputs(given)
        return where.model, where.cluster
    fitted = None if asked.calibration is None else calibration_of(asked.calibration)
    cluster = resolve_cluster(asked.cluster, asked.gpus, fitted) if named else None
    return (None if asked.model is None else resolve_model(asked.model)), cluster


_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 4, 2, 1)
"""Devices for which a file is read that does not say how many there are, until one goes with its degrees."""


def _for_devices(launch: LaunchSource, flags: LaunchFile) -> tuple[LaunchFile, Problem]:
    """A file without its cluster, read for as many devices as go with its degrees, and the question for them."""

    def others(read: LaunchFile) -> tuple[Problem, ...]:
        return tuple(problem for problem in read.problems if problem.field != DEVICES)

    row = flags.row
    count = row.devices if row is not None and row.devices > 1 else flags.started
    best = flags
    if (count is None or row is None or others(flags)) and not flags.questions:
        for devices in _COUNTS:
            read = replace(launch, devices=devices).read()
            if (read.row is not None and best.row is None) or len(read.problems) < len(best.problems):
                best, count = read, devices
            if best.row is not None and not others(best):
                break
    own = flags.started if row is None else row.devices
    says = f"the file starts {count} processes" if count is not None and count == own else ""
    why = f"a plan is made for one cluster: {says or 'the file does not say how many devices run it, or which'}"
    fix = f"say --gpus {count or 8}xH100, or how many of which there are; or --cluster FILE"
    question = Problem(what="no cluster is given", why=why, fix=fix, field="cluster")
    return replace(best, problems=others(best)), question


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSource:
    """A launch file with what is around it: what is needed to read it, and to read it again once it is edited."""

    files: Mapping[str, str]
    """The file itself first, then those beside it that say more of a plan."""
    folder: Path | None
    target: Target
    devices: int | None
    """Devices of the job; None where neither the script nor the cluster says."""
    outside: Outside
    record: str = ""
    """Where options are kept in another form than a script: a name of RECORDS, or `yaml`."""
    options: tuple[str, frozenset[str]] = ("", frozenset())
    """A script, and the files of this source that are options in it."""

    @property
    def name(self) -> str:
        """Of the file; empty for text that is in no file."""
        return next(iter(self.files))

    @property
    def text(self) -> str:
        """Of the file."""
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
        read = partial(_beside, folder=self.folder)
        found = started_with(self._script(self.text), self.target, read)
        names = sorted(found.files, key=lambda name: name in self.target.beside)
        if not names or found.written or found.questions:
            return None
        options = frozenset(names) & {ARGUMENTS, overrides.FILE}
        files = {name: found.files[name] for name in names}
        return replace(self, files=files, outside=Outside(), options=(self.name, options))

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
            text: in the place of the file's own.
        """
        text = self.text if text is None else text
        if self.record == TRAINER:
            over = self.outside.settings
            read = self._as_script(command_recorded(text, over))
            asked = engine_open(text, over)
            return read if asked is None else replace(read, row=None, questions=(*read.questions, asked))
        if self.record == "hydra" and self.is_bash:
            return self._of_launcher(text)
        if self.record:
            read, nemo = self._as_script(script_of(text, self.record)), nemo_of(text, self.record)
            if nemo is None:
                return read
            workload = {**read.workload, **({} if read.questions else nemo.workload)}
            return replace(read, problems=(*read.problems, *nemo.problems), workload=workload)
        if self.is_bash:
            return self._as_script(text)
        return self.reading(self._with_settings({**self.files, self.name: text}))

    def _of_launcher(self, text: str) -> LaunchFile:
        """What the config says that a script starts NeMo's launcher with."""
        script, read = self._script(text), partial(_beside, folder=self.folder)
        found = launcher_config(script, read)
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
        script = self._script(text)
        if self.target.script is not None:
            return self.target.script(script, self.devices)
        return read_through(script, self.target, self.devices, partial(_beside, folder=self.folder))

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

    def _script(self, text: str) -> Script:
        script = read_script(
            text,
            name=self.name or "script",
            arguments=self.outside.arguments,
            environment=self.outside.environment,
            read=partial(_beside, folder=self.folder),
        )
        script = with_settings(script, self.target, self.outside.settings)
        if not self.target.beside:
            return script
        # Configurations that it names and that lie beside it say more; those that it writes itself come first.
        words = (word.text.rpartition("=")[2] for command in script.commands for word in command.words)
        paths = [path for path in words if path.endswith(".json")]
        texts = {path: self.files.get(Path(path).name) or _beside(path, folder=self.folder) for path in paths}
        named = {Path(path).name: text for path, text in texts.items() if text is not None}
        others = {name: literal(text, ScriptLine(name, 1)) for name, text in named.items()}
        return replace(script, files={**others, **script.files})

    def reading(self, files: Mapping[str, str]) -> LaunchFile:
        """Files of this source, edited, as its target reads them."""
        if self.is_bash:
            return self.read(files[self.name])
        if self.outside.arguments is not None or self.outside.environment:
            why = f"{self.name or 'the text'} is no bash script"
            raise InputError(Problem(what="--arg or --env is given", why=why, fix="leave it out", field="environment"))
        assert self.target.read is not None
        return self.target.read(files, self.devices)


def _record(source: str | os.PathLike[str], source_format: str) -> str:
    if source_format in _RECORDS:
        return source_format
    yaml = source_format == "megatron" and "\n" not in str(source) and Path(source).suffix in YAML
    return "yaml" if yaml else ""


_ABOVE = 6
"""Folders above a file that are looked through for a path it names."""


def _beside(path: str, folder: Path | None) -> str | None:
    """The text of a file that another one names, by its path or its name beside that one; None if there is none."""
    if folder is None or not path.strip():
        return None
    # Paths start where the job does: beside the file, or in a folder above it, as the root of its repository is.
    above = [parent / path.lstrip("./") for parent in list(folder.absolute().parents)[:_ABOVE]] if "/" in path else []
    ways = [folder / path.lstrip("./"), folder / Path(path).name, *above]
    ways = [Path(path), *ways] if path.startswith("/") else ways
    for way in ways:
        try:
            if way.is_file():
                return read_text(way, "sourced script")
        except (OSError, ValueError, InputError):
            continue
    return None


def _files(source: str | os.PathLike[str], target: Target) -> dict[str, str]:
    """A file, or text of several lines, with the files of its folder that say more of a plan."""
    if isinstance(source, str) and "\n" in source:
        return {"": source}
    path = Path(source)
    found = {path.name: read_text(path, "launch script")}
    for name in target.beside:
        if (path.parent / name).is_file() and name not in found:
            found[name] = read_text(path.parent / name, "launch file")
    texts = {Path(name).name: _beside(name, path.parent) for name in target.named(found[path.name])}
    return found | {name: text for name, text in texts.items() if text is not None}


def _shape_differs(model: ModelSpec, said: dict[str, Any]) -> Iterator[Violation]:
    """Options that describe another model than the one named."""
    facts = model_facts(model)
    for name, value in said.items():
        if name in facts and facts[name] != value and value is not None:
            yield Violation(
                code="MODEL",
                what=f"the script's {name.replace('_', ' ')} is {value}",
                why=f"{model.name} has {facts[name]}",
                fix="name the model that the script trains, or correct the option",
                field=name,
            )


def _name_differs(model: ModelSpec, said: object) -> Iterator[Violation]:
    """A script that names another model of the library than the one to be checked."""
    known = models.find_name(said) if isinstance(said, str) and said else None
    if known is not None and models.spec(known).runs != model.runs and model.name != known:
        yield Violation(
            code="MODEL",
            what=f"the script's model is {str(said)[:80]}",
            why=f"{model.name}, the model to check, has other layers",
            fix="name the model that the script trains, or none",
            field="model",
        )
