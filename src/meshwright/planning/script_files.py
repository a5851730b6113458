"""The configuration files that a bash script starts a program with, for targets whose plans are in files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.shell import Launch, Script, launches
from meshwright.formats.shell.values import known_text, unknown_of
from meshwright.targets import Target

ARGUMENTS = "training_args.json"
"""What trainers take as options: the same names as in this file."""
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
_OF_TRAINERS = (*_BATCH, "gradient_checkpointing", "optim", "bf16", "fp16")
MODEL_NAMES = ("model_name_or_path", "pretrained_model_name_or_path", "model_id", "base_model")
LENGTHS = ("max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "block_size", "seq_length", "max_length")
"""What training programs around the trainer of transformers call the length of a sequence."""
ADAPTERS = ("use_peft", "use_lora", "use_dora", "lora_r", "lora_target_modules", "load_in_4bit", "load_in_8bit")
_CONFIG = re.compile(r"[^=\s]+\.(?:json|ya?ml|toml)$")


def read_through(script: Script, target: Target, devices: int | None, read: Callable[[str], str | None]) -> LaunchFile:
    """What a script starts, as the target reads the files that it is started with.

    Args:
        script: as bash means it.
        target: whose configuration it is.
        devices: of the job.
        read: the text of a file beside the script, None where there is none.
    """
    assert target.read is not None
    found = started_with(script, target, read)
    if found.problems or found.questions:
        return LaunchFile(row=None, layout=None, problems=found.problems, questions=found.questions)
    launched = target.read(found.files, devices)
    said, unpriced = (
        tuple(replace(one, place=found.place) if one.place.startswith(ARGUMENTS) else one for one in values)
        for values in (launched.said, launched.unpriced)
    )
    more = [Said(option=name, value=str(value), place=found.place) for name, value in found.job.items()]
    more += [Said(option=name, value=value, place=found.place) for name, value in found.adapters.items()]
    model, workload = dict(launched.model), dict(launched.workload)
    if (adapters := lora(found.adapters)) is not None:
        workload["lora"] = adapters
    for name, value in found.job.items():
        if name in MODEL_NAMES:
            model["name"] = value
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            workload["seq_len"] = value
    return replace(
        launched,
        model=model,
        workload=workload,
        said=(*said, *more),
        unpriced=unpriced,
        notes=(*launched.notes, *_not_read(found), *_assumed(script)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """The configuration of a program that a script starts."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The target's own first; options of its trainer as the file they could stand in."""
    written: frozenset[str] = frozenset()
    """Those that the script writes itself."""
    job: Mapping[str, object] = field(default_factory=dict)
    """Options of the program that say its model or the length of its sequences."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Those that say adapters."""
    rest: tuple[str, ...] = ()
    """Its other options."""
    place: str = ""
    """Where the program is started, and its options stand."""
    questions: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()


def started_with(script: Script, target: Target, read: Callable[[str], str | None]) -> StartedWith:
    """The configuration files of a target that a script starts its program with.

    Args:
        script: as bash means it.
        target: whose files they are.
        read: the text of a file beside the script, None where there is none.
    """
    found: list[tuple[Launch, dict[str, str]]] = []
    questions: list[Problem] = []
    for launch in launches(script.commands):
        files, asked = _files(launch, script, target, read)
        if files:
            found.append((launch, files))
            questions = asked
    problems = [
        Problem(what=f"{place} cannot be read", why=why, fix="correct the script there", field="source")
        for why, place in script.broken[:4]
    ]
    if not found:
        why = f"no program is started with a configuration of {target.title} that is here"
        fix = "name the configuration file itself, or put it beside the script"
        problem = Problem(what="there is no configuration", why=why, fix=fix, field="source")
        return StartedWith(problems=(*problems, problem))
    if len({json.dumps(files, sort_keys=True) for _, files in found}) > 1:
        where = ", ".join(dict.fromkeys(str(launch.place) for launch, _ in found[:6]))
        why = f"their configurations differ, at {where}"
        fix = "say what selects one, with --env or --arg, or leave one in the script"
        questions = [Problem(what="the script starts several different jobs", why=why, fix=fix, field="source")]
    files = found[-1][1]
    return StartedWith(
        files=files,
        written=frozenset(files) & frozenset(script.files),
        job=_options(found[-1][0], (*MODEL_NAMES, *LENGTHS))[0],
        adapters=_adapters(found[-1][0]),
        rest=tuple(_rest(found[-1][0])),
        place=str(found[-1][0].place),
        questions=tuple(questions),
        problems=tuple(problems),
    )


def _adapters(launch: Launch) -> dict[str, str]:
    """Options of adapters by name, the words of a list with commas between them; empty for a bare flag."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in launch.words:
        if word.text.startswith("--"):
            flag, equals, value = word.text.partition("=")
            name = flag[2:].replace("-", "_")
            if name in ADAPTERS:
                found[name] = [value] if equals else []
        elif name in found and word.unknown is None:
            found[name].append(word.text)
    return {name: ",".join(words) for name, words in found.items()}


def lora(adapters: Mapping[str, str]) -> str | None:
    """Options of TRL's trainers as `--lora` takes them; None where there are no adapters.

    Source: ModelConfig of trl 0.24 (2025-10): rank 16, all linear layers where no target is named.
    """
    on = {name for name, value in adapters.items() if value.lower() in ("", "true", "1")}
    if not on & {"use_peft", "use_lora"}:
        return None
    targets = adapters.get("lora_target_modules", "")
    parts = [f"r={adapters.get('lora_r', '16')}"]
    parts += [f"targets={targets}"] if targets and targets != "all-linear" else []
    parts += ["base=nf4"] if "load_in_4bit" in on else ["base=int8"] if "load_in_8bit" in on else []
    return ",".join([*parts, *(["dora"] if "use_dora" in on else [])])


def _rest(launch: Launch) -> Iterator[str]:
    """Options of the program that nobody here knows."""
    known = {*_OF_TRAINERS, *MODEL_NAMES, *LENGTHS, *ADAPTERS}
    for word in launch.words:
        flag, _, value = word.text.partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_") not in known and not _CONFIG.fullmatch(value):
            yield flag


def _not_read(found: StartedWith) -> Iterator[str]:
    rest = [flag for flag in found.rest if flag.removeprefix("--") not in ("deepspeed", "config", "config_file")]
    if rest:
        more = f" and {len(rest) - 16} more" if len(rest) > 16 else ""
        yield f"options of the program itself, not read: {', '.join(rest[:16])}{more}"


def _assumed(script: Script) -> Iterator[str]:
    names = [f"{name} ({place})" for name, place in script.assumed.items() if not name.isdigit() and name != "@"]
    if names:
        yield f"taken as not set in the environment: {', '.join(names[:12])}; --env NAME=VALUE sets one"


def _files(
    launch: Launch, script: Script, target: Target, read: Callable[[str], str | None]
) -> tuple[dict[str, str], list[Problem]]:
    """The target's configuration, and the trainer's options as the file they could stand in."""
    files: dict[str, str] = {}
    questions: list[Problem] = []
    for word in (*launch.launcher, *launch.words):
        path = word.text.rpartition("=")[2]
        if not _CONFIG.fullmatch(path):
            continue
        name = path.rpartition("/")[2]
        written = script.files.get(name)
        text = read(path) if written is None else known_text(written)
        if text is None or not target.recognised(name, text):
            continue
        unknown = None if written is None else unknown_of(written)
        if unknown is not None:
            names = [f"--env {one}=VALUE" for one in unknown.names] or ["the value in the script"]
            why = f"{unknown.why} ({unknown.place})"
            questions.append(
                Problem(what=f"{name} is not known", why=why, fix=f"give {' or '.join(names)}", field=name)
            )
        files[name] = text
    if files and ARGUMENTS in target.beside:
        values, asked = _options(launch, _OF_TRAINERS)
        if values:
            files[ARGUMENTS] = json.dumps(values)
        questions += asked
    return files, questions


def _options(launch: Launch, wanted: tuple[str, ...]) -> tuple[Mapping[str, object], list[Problem]]:
    """`--name value` of the program by name, as trainers read them, and what of them is not known."""
    values: dict[str, object] = {}
    questions: list[Problem] = []
    words = list(launch.words)
    for at, word in enumerate(words):
        flag, equals, attached = word.text.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in wanted:
            continue
        following = words[at + 1] if at + 1 < len(words) and not words[at + 1].text.startswith("--") else None
        held = word if equals else following
        if held is not None and held.unknown is not None:
            names = [f"--env {one}=VALUE" for one in held.unknown.names] or ["the value in the script"]
            why = f"{held.unknown.why} ({held.unknown.place})"
            questions.append(
                Problem(what=f"{flag} is not known", why=why, fix=f"give {' or '.join(names)}", field=flag)
            )
            continue
        text = attached if equals else following.text if following is not None else "true"
        values[name] = int(text) if text.isdigit() else text.lower() == "true" if text.lower() in _BOOLEAN else text
    return values, questions


_BOOLEAN = ("true", "false")
