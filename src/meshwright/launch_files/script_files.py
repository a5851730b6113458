"""The configuration files that a bash script starts a program with, for targets whose plans are in files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.megatron.script import no_training, trains
from meshwright.formats.shell import Launch, Script, ScriptLine, job_at, launches, processes
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.formats.shell.values import Unknown, Word, known_text, literal, unknown_of
from meshwright.launch_files.engine_options import (
    ARGUMENTS,
    LAUNCHER,
    OF_ACCELERATE,
    by_options,
    engine_files,
    engine_notes,
    engine_of_its_own,
    is_trainer,
    missing_engine,
    unknown_engine,
)
from meshwright.launch_files.own_options import OWN_MODELS
from meshwright.launch_files.program_words import (
    CONFIG_NAME,
    adapters_path,
    missing_configs,
    missing_file,
    not_here,
    of_other_heads,
    of_several_models,
    of_towers,
    unknown_configuration,
    unknown_file,
)
from meshwright.launch_files.trainer_around import engine_of, processes_of
from meshwright.launch_files.trainer_option_names import MODELS
from meshwright.launch_files.trainer_options import TrainerOptions, read_trainer_options
from meshwright.specs.precision import PRECISIONS
from meshwright.targets import Target, fsdp, overrides
from meshwright.targets.adapters import CONFIG

_OPTIONS = (ARGUMENTS, LAUNCHER, overrides.FILE)
"""Files that stand for words of the command."""
BARE = "defaults.yml"
"""Stands for the configuration of a target's own program that is started without one, or with the one it comes with."""


def read_through(script: Script, target: Target, devices: int | None, read: Callable[[str], str | None]) -> LaunchFile:
    """What a script starts, as the target reads the files that it is started with.

    Args:
        script: the script as bash means it.
        target: the target whose configuration it is.
        devices: the number of devices of the job.
        read: the text of a file beside the script, None where there is none.
    """
    assert target.read is not None
    found = started_with(script, target, read)
    if found.problems or found.questions:
        named = {"name": found.options.model} if found.options.model else {}
        open_ = LaunchFile(row=None, layout=None, model=named, problems=found.problems, questions=found.questions)
        return replace(open_, started=found.started)
    read_for = devices or found.started
    launched = target.read(found.files, read_for)
    if asked := tuple(_unknown(launched, found)):
        return LaunchFile(row=None, layout=None, questions=asked, started=found.started)
    said, unpriced = (tuple(found.placed(one) for one in values) for values in (launched.said, launched.unpriced))
    options = found.options
    lora = None if CONFIG in found.files else options.lora
    beside: dict[str, Any] = {"lora": lora, "seq_len": options.seq_len, "attention_kernel": options.attention}
    if launched.spec is not None and launched.workload.get("seq_len") is not None:
        beside["seq_len"] = None  # who reads the whole model of options knows which length is taken
    if lora is not None and launched.workload.get("precision") is fsdp.ALL_IN_16_BITS:
        beside["precision"] = PRECISIONS["bf16"]  # adapters are in fp32 beside weights that are frozen
    started = launched.started if found.started is None else found.started
    return replace(
        launched,
        started=started,
        model={**launched.model, **({"name": options.model} if options.model else {})},
        workload={**launched.workload, **{name: value for name, value in beside.items() if value is not None}},
        said=(*said, *(one for one in options.said(found.place) if one.option not in {own.option for own in said})),
        unpriced=unpriced,
        spelled=options.spelled,
        problems=(*launched.problems, *(options.problems() if target.overrides is None else ())),
        notes=(
            *launched.notes,
            *_others_started(found, launched, devices),
            *_no_engine(target, found),
            *_of_a_copy(target, found),
            *found.notes,
            *(options.notes() if target.overrides is None else ()),
            *script.notes(),
        ),
    )


def _others_started(found: StartedWith, launched: LaunchFile, devices: int | None) -> Iterator[str]:
    """Says where the launcher starts other than the processes that the plan is read for."""
    # One process may be a launcher's own default, where a scheduler starts it many times.
    said = any("processes, the plan is read for" in note for note in launched.notes)
    if not said and devices is not None and found.started not in (None, 1, devices):
        yield f"the script starts {found.started} processes, the plan is read for {devices} devices"


def _of_a_copy(target: Target, found: StartedWith) -> Iterator[str]:
    """Says that another program than the target's own is given its file."""
    if target.programs and found.program and not re.search(target.programs, found.program):
        name = found.program.rpartition("/")[2]
        yield f"{name} is not {target.title}'s own program: how it lays out devices by these keys is not read"


def _no_engine(target: Target, found: StartedWith) -> Iterator[str]:
    """Says what was taken where options alone start a trainer, and none of them shards."""
    launcher = found.files.get(LAUNCHER, "") if LAUNCHER in found.written else ""
    if target.name == "accelerate" and '"MULTI_GPU"' in launcher:
        yield "no option names what shards: every device holds a whole copy, unless the program shards by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """The configuration of a program that a script starts."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The target's own first; options of its trainer as the file they could stand in."""
    written: frozenset[str] = frozenset()
    """Files that the script writes itself."""
    options: TrainerOptions = field(default_factory=TrainerOptions)
    """Options of the program."""
    unknown: Mapping[str, Unknown] = field(default_factory=dict)
    """Why values of keys on the command line are not known."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where values of keys on the command line are written."""
    program: str = ""
    """What is started."""
    place: str = ""
    """Where it is, and its options stand."""
    started: int | None = None
    """Processes that its launcher starts, where its words say so."""
    notes: tuple[str, ...] = ()
    """What was taken of the engine."""
    questions: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()

    def placed(self, one: Said) -> Said:
        """A value that stands in a word of the command, at the place of that."""
        if not one.place.startswith(_OPTIONS):
            return one
        return replace(one, place=self.places.get(one.option) or self.options.places.get(one.option, self.place))


def started_with(script: Script, target: Target, read: Callable[[str], str | None]) -> StartedWith:
    """The configuration files of a target that a script starts its program with.

    Args:
        script: the script as bash means it.
        target: the target whose files they are.
        read: the text of a file beside the script, None where there is none.
    """
    found: list[_Start] = []
    others: list[Launch] = []
    for launch in launches(script.commands):
        files, asked = _files(launch, script, target, launch.reading(read))
        if not files and not asked:
            continue
        if trains(launch):
            found.append(_Start(launch, files, tuple(asked)))
        else:
            others.append(launch)
    problems = [
        Problem(what=f"{place} cannot be read", why=why, fix="correct the script there", field="source")
        for why, place in script.broken[:4]
    ]
    if not found and target.name == "accelerate":
        found = [
            _by_options(launch, launch.reading(script.with_own(read)))
            for launch in launches(script.commands)
            if is_trainer(launch)
        ]
    if not found and others:
        return StartedWith(files={BARE: "{}"}, problems=(*problems, no_training(others[-1])))
    if not found:
        why = f"no program is started with a configuration of {target.title} that is here"
        fix = "name the configuration file itself, or put it beside the script"
        problem = Problem(what="there is no configuration", why=why, fix=fix, field="source")
        return StartedWith(problems=(*problems, script.stopped() or problem))
    at = job_at([one.launch for one in found], script.job, lambda at: _as_read(target, found, at))
    start = found[-1 if isinstance(at, Problem) else at]
    launch, files = start.launch, start.files
    questions = [at] if isinstance(at, Problem) else [*start.questions]
    problems += start.problems
    if target.overrides is not None:
        questions += _unknown_keys(launch)
    if target.name in _ENGINES_ALONE:
        questions += unknown_file(launch)
        problems += missing_file(launch, script, launch.reading(read))
    of_others = [*of_towers(launch), *of_other_heads(launch), *of_several_models(launch)]
    if of_others and not isinstance(at, Problem):
        questions = []  # no answer would make it a plan
    return StartedWith(
        files=files,
        written=frozenset(files) & {LAUNCHER, BARE, *script.files},
        options=read_trainer_options(launch),
        unknown=_unknown_words(target, launch),
        places={key: str(word.place) for key, word in _overrides(target, launch).items() if word.place},
        program=launch.program,
        place=str(launch.place),
        started=processes_of(launch, target, launch.reading(read)),
        notes=tuple(engine_notes(launch)) if LAUNCHER in files else (),
        questions=tuple(questions),
        problems=(*problems, *of_others),
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """A training among those of a script."""

    launch: Launch
    files: dict[str, str]
    questions: tuple[Problem, ...]
    problems: tuple[Problem, ...] = ()


def _by_options(launch: Launch, read: Callable[[str], str | None]) -> _Start:
    """A training whose options alone say what shards."""
    asked = (*read_trainer_options(launch).questions, *unknown_engine(launch))
    return _Start(launch, by_options(launch, read), asked, (*missing_engine(launch, read), *engine_of_its_own(launch)))


def _as_read(target: Target, found: Sequence[_Start], at: int) -> str:
    """What agrees where two starts are one job: files, options beside them and processes."""
    launch = found[at].launch
    job = _job(target, launch, _trained_before([one.launch for one in found[:at]]))
    return json.dumps([launch.program, found[at].files, job, processes(launch.launcher)[0]], sort_keys=True)


def _trained_before(started: Sequence[Launch]) -> dict[str, str]:
    """The model that each of some runs, in their order, begins with, by where it is saved."""
    saved: dict[str, str] = {}
    for launch in started:
        model = read_trainer_options(launch).model
        for path in _saved_to(launch) if model else ():
            saved[path] = _begun_with(model or "", saved)
    return saved


def _begun_with(model: str, saved: Mapping[str, str]) -> str:
    """A model, or the one that it was trained from by a run before."""
    return next((first for path, first in saved.items() if path and model.startswith(path)), model)


def _saved_to(launch: Launch) -> Iterator[str]:
    """Where a run leaves its model."""
    for before, after in pairwise([*launch.words, None]):
        assert before is not None
        name, equals, value = before.text.partition("=")
        if name.replace("-", "_") == "__output_dir":
            yield value if equals or after is None else after.text


def _job(target: Target, launch: Launch, saved: Mapping[str, str]) -> Mapping[str, object]:
    """What options say beside the files: length, adapters, how the program itself splits the job, and the model.

    A model that a run before has saved is the one that it began with: such runs train one model further.
    """
    if target.name not in _ENGINES_ALONE:
        return {}
    options = read_trainer_options(launch)
    job = {
        name: _begun_with(str(value), saved) if name in (*MODELS, *OWN_MODELS) else value
        for name, value in options.job.items()
    }
    return {**job, **options.split, **options.changes}


def with_settings(script: Script, target: Target, settings: Mapping[str, str]) -> Script:
    """A script whose programs are started with options behind their own, which stand over them.

    Args:
        script: the script as bash means it.
        target: the target whose form the options have.
        settings: value by name; an empty value is a switch.
    """
    if not settings:
        return script
    place = ScriptLine("--set", 1)
    added = tuple(Word(literal(text, place)) for name, value in settings.items() for text in target.option(name, value))
    commands = [replace(one, words=(*one.words, *added)) if launches((one,)) else one for one in script.commands]
    if not launches(script.commands):  # a text of options alone
        commands = [replace(one, words=(*one.words, *added)) for one in script.commands]
    return replace(script, commands=tuple(commands))


def _overrides(target: Target, launch: Launch) -> Mapping[str, Word]:
    return target.overrides(launch) if target.overrides is not None else {}


def _unknown_words(target: Target, launch: Launch) -> dict[str, Unknown]:
    return {key: one.unknown for key, one in _overrides(target, launch).items() if one.unknown is not None}


def _unknown_keys(launch: Launch) -> Iterator[Problem]:
    """Asks for words of which nobody knows how many keys they set; a variable that nobody set holds none."""
    for one in launch.words:
        unknown = one.unknown
        if unknown is not None and not one.text and not (unknown.unset or unknown.single or unknown.flags is not None):
            yield from questions_for(
                [Open(what="which keys are set here", unknown=unknown, place=one.place, field="source")]
            )
            return


def _unknown(launched: LaunchFile, found: StartedWith) -> Iterator[Problem]:
    """Keys that the plan needs and whose values on the command line nobody can know."""
    words = json.loads(found.files.get(overrides.FILE, "{}"))
    opened: list[Open] = []
    used = {said.option for said in launched.said} | {problem.field for problem in launched.problems}
    for key in (key for key, value in words.items() if value == overrides.UNKNOWN and key in used):
        unknown = found.unknown.get(key)
        if unknown is None:
            fix = "write the value into the script"
            yield Problem(what=f"{key} is not known", why="nothing says it", fix=fix, field=key)
        else:
            opened.append(Open(what=key, unknown=unknown, place=None, field=key))
    yield from questions_for(opened)


_ENGINES_ALONE = ("accelerate", "deepspeed")
"""Targets whose files say the engine: the trainer's own file, where it has one, says the rest."""


def _overridden(
    launch: Launch, target: Target, words: Mapping[str, Word], read: Callable[[str], str | None]
) -> dict[str, str]:
    """What a command sets over its configuration as a file, and the engine's file that it names."""
    around = engine_of(launch, target, read)
    over = {**(around.keys if around else {}), **json.loads(overrides.as_file(words))}
    named = str(over.get("deepspeed")) if around else ""
    engine = read(named) if named.endswith(".json") else None
    files = {overrides.FILE: json.dumps(over)} if over else {}
    return files | ({named.rpartition("/")[2]: engine} if engine is not None else {})


def _files(
    launch: Launch, script: Script, target: Target, read: Callable[[str], str | None]
) -> tuple[dict[str, str], list[Problem]]:
    """The target's configuration, and the trainer's options as the file they could stand in."""
    files: dict[str, str] = {}
    questions: list[Problem] = []
    engines = {path: name for name, path in engine_files(launch)}
    for word in (*launch.launcher, *launch.words):
        path = word.text.rpartition("=")[2]
        if (not CONFIG_NAME.fullmatch(path) and path not in engines) or engines.get(path) == OF_ACCELERATE:
            continue
        name = path.rpartition("/")[2]
        written = script.files.get(name)
        text = read(path) if written is None else known_text(written)
        if text is not None and not CONFIG_NAME.fullmatch(path):
            name += ".json" if text.lstrip().startswith("{") else ".yaml"
        if text is None or not target.recognised(name, text):
            continue
        unknown = None if written is None else unknown_of(written)
        if unknown is not None:
            questions += questions_for([Open(what=name, unknown=unknown, place=None, field=name)])
        files[name] = text
        beside = {one.rpartition("/")[2]: read(one) for one in target.named(text)}
        files |= {one: text for one, text in beside.items() if text is not None}
    own = target.configs(launch)
    if target.overrides is not None and (files or own is not None):
        if not files:
            there = ((path, read(path)) for path in own or ())
            files = next(({path.rpartition("/")[2]: text} for path, text in there if text is not None), {})
        if not files:
            missing = [*missing_configs(launch), *(own or ())[:1]]
            questions += [not_here(path, launch) for path in missing]
            questions += [] if missing or own is None else unknown_configuration(launch)
            files[BARE] = "{}"
        files |= _overridden(launch, target, target.overrides(launch), read)
    if files and ARGUMENTS in target.beside:
        options = read_trainer_options(launch)
        if options.arguments:
            files[ARGUMENTS] = json.dumps(options.arguments)
        if target.name in _ENGINES_ALONE and (path := adapters_path(launch)):
            text = read(f"{path}/{CONFIG}") or read(path)
            files |= {CONFIG: text} if text is not None else {}
            questions += [] if text is not None else [not_here(path, launch)]
        questions += options.questions if target.overrides is None else ()
    return files, questions
