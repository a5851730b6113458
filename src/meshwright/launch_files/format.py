"""Whose file a launch file is: the framework that its name, its text or its command tells."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from meshwright.errors import InputError, Problem
from meshwright.formats.files import parsed, read_text
from meshwright.formats.megatron.records import record_of
from meshwright.formats.shell import Script, launches, read_script
from meshwright.launch_files import trainer_around
from meshwright.launch_files.argument_files import with_argument_files
from meshwright.launch_files.engine_options import LAUNCHER
from meshwright.launch_files.named_files import NamedFiles
from meshwright.launch_files.nemo_launcher import launcher_config
from meshwright.launch_files.program_words import missing_configuration
from meshwright.launch_files.script_files import started_with
from meshwright.launch_files.source import NOTHING_OUTSIDE, SCRIPT_RECORDS, SCRIPTS, Outside
from meshwright.launch_files.trainer_record import recorded
from meshwright.targets import TARGETS, TRAINERS, reader_named, readers, target_of_file

_LANGUAGES = {".json": "JSON", ".hjson": "HJSON", ".yaml": "YAML", ".yml": "YAML"}


def format_of(source: str | os.PathLike[str], outside: Outside = NOTHING_OUTSIDE) -> str:
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
    if path.suffix in (".yaml", ".yml") and any(mark in text for mark in ("jobs:", "runs:", "apiVersion:")):
        from meshwright.launch_files.other_programs import of_a_workflow  # few files are such

        if (workflow := of_a_workflow(path.name, text)) is not None:
            raise InputError(workflow)
    # A file of options may hold the engine's keys, too.
    found = recorded(path.name, text) if path.suffix == ".json" else None
    found = found or target_of_file(path.name, text) or record_of(path.name, text) or recorded(path.name, text)
    if found == "megatron-deepspeed" and path.suffix in SCRIPTS and _without_deepspeed(path, text, outside):
        return "megatron"
    if found == "megatron" and path.suffix in SCRIPTS and not any(option in text for option in _OF_MEGATRON):
        found = "bridge" if _starts_bridge(*_script(path, text, outside)) else found
    if found in ("hydra", "automodel", "torchtitan"):
        _refuse_other(path, text)  # its names may be those of a part of another program's file
    if found is None and (path.suffix in SCRIPTS or (text.startswith("#!") and path.suffix != ".py")):
        found = _started_by(path, text, outside) or "megatron"
    if found is None and path.suffix in _LANGUAGES:
        parsed(text, _LANGUAGES[path.suffix], "launch file")
    if found is None:
        _refuse_other(path, text)
        why = "its text names none of the supported frameworks, or several"
        fix = f"add --from with one of {', '.join((*readers(), *TRAINERS, *SCRIPT_RECORDS))}"
        raise InputError(
            Problem(what=f"the framework of {path.name!r} is not recognised", why=why, fix=fix, field="source")
        )
    return found


def _refuse_other(path: Path, text: str) -> None:
    """Raise where a file is that of a program which is known and not read."""
    from meshwright.launch_files.other_programs import of_another  # few files are such

    if (other := of_another(path.name, text)) is not None:
        raise InputError(other)


_OF_OTHERS = re.compile(r"(?:^|[\s./])axolotl(?:\.cli\.| )train\b", re.MULTILINE)
"""Programs whose options have names of Megatron-LM's."""
_OF_MEGATRON = ("--tensor-model-parallel-size", "--micro-batch-size", "--num-layers")


def _starts_launcher(path: Path, text: str, outside: Outside) -> bool:
    """Whether a script starts NeMo's launcher, whose words look like those of other programs."""
    return launcher_config(*_script(path, text, outside)) is not None


def _without_deepspeed(path: Path, text: str, outside: Outside) -> bool:
    """Whether programs are started, and none of them with the switch that the text has for another case."""
    words = [word for one in launches(_script(path, text, outside)[0].commands) for word in one.words]
    open_ones = (word.unknown is not None and not word.text for word in words)
    return bool(words) and not any(open_ones) and all(word.text != "--deepspeed" for word in words)


def _started_by(path: Path, text: str, outside: Outside) -> str | None:
    """The target with whose configuration, in a file beside it, a script starts its program."""
    if any(option in text for option in _OF_MEGATRON) and not _OF_OTHERS.search(text):
        return None
    script, read = _script(path, text, outside)
    if _starts_bridge(script, read):
        return "bridge"
    with_files = [name for name in (*readers(), *TRAINERS) if reader_named(name).script is None]
    found = [name for name in with_files if started_with(script, reader_named(name), read).files]
    if LAUNCHER in started_with(script, TARGETS["accelerate"], read).files:
        found = [name for name in found if name != "accelerate"] or ["accelerate"]
    if sorted(found) == ["accelerate", "deepspeed"]:
        found.remove("accelerate")  # the trainer's own `--deepspeed` stands over what is around it
    if len(found) == 2 and "accelerate" in found and {*found} & {*trainer_around.TRAINERS}:
        found.remove("accelerate")  # it stands around a trainer that has a file of its own
    if not found and (missing := missing_configuration(script, read)) is not None:
        raise InputError(missing)
    return found[0] if len(found) == 1 else None


def _starts_bridge(script: Script, read: Callable[[str], str | None]) -> bool:
    """Whether a program that it starts makes or takes a recipe of Megatron-Bridge."""
    from meshwright.targets.bridge.programs import started  # few scripts start such

    return bool(started(script, read))


def _script(path: Path, text: str, outside: Outside) -> tuple[Script, Callable[[str], str | None]]:
    """A script as bash means it, and what reads the files beside it."""
    read = NamedFiles(path.parent)
    said, known = outside.arguments, outside.environment
    script = read_script(text, name=path.name, arguments=said, environment=known, read=read, folder=read.start)
    return with_argument_files(replace(script, job=outside.job), read), read
