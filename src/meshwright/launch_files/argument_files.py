"""Programs that are started with a file of their options: `train.py args.json`, `sft.py --config recipe.yaml`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.formats.megatron.records import key_line
from meshwright.formats.shell import Script, ScriptLine, launches
from meshwright.formats.shell.state import ScriptCommand
from meshwright.formats.shell.values import Value, known_text, literal, word
from meshwright.launch_files.trainer_record import SUFFIXES, engine_inside, trainer_keys, words_of

_COMMANDS = ("llamafactory-cli", "axolotl", "automodel")
"""Programs whose files their own targets read."""


def with_argument_files(script: Script, read: Callable[[str], str | None]) -> Script:
    """A script whose programs have, in the place of a file of a trainer's options, these options.

    They come first, so that words of the command stand over them, as HfArgumentParser and TrlParser have it.

    Args:
        script: the script as bash means it.
        read: the text of a file beside the script, None where there is none.
    """
    files = dict(script.files)
    commands = tuple(_filled(command, files, read) for command in script.commands)
    return script if commands == script.commands else replace(script, commands=commands, files=files)


def _filled(command: ScriptCommand, files: dict[str, Value], read: Callable[[str], str | None]) -> ScriptCommand:
    started = launches((command,))
    if not started or started[-1].program.rpartition("/")[2] in _COMMANDS:
        return command
    words = list(command.words)
    first = len(words) - len(started[-1].words)
    for at in range(first, len(words)):
        path = words[at].text.rpartition("=")[2]
        if words[at].unknown is not None or not path.endswith(SUFFIXES):
            continue
        name = path.rpartition("/")[2]
        written = files.get(name)
        text = read(path) if written is None else known_text(written)
        keys = None if text is None else trainer_keys(name, text)
        if text is None or keys is None:
            continue
        lines = text.split("\n")
        own = [
            word(said, ScriptLine(name, key_line(lines, key) + 1))
            for key, options in words_of(keys, name)
            for said in options
        ]
        if (engine := engine_inside(keys, name)) is not None:
            files[engine[0]] = literal(engine[1], ScriptLine(name, key_line(lines, "deepspeed") + 1))
        # What stands before names it: `--config recipe.yaml`.
        named = at > first and words[at - 1].text.startswith("--") and "=" not in words[at - 1].text
        before = words[first : at - named]
        verbs = next((n for n, one in enumerate(before) if one.text.startswith("-")), len(before))
        kept = (*words[: first + verbs], *own, *before[verbs:], *words[at + 1 :])
        return replace(command, words=kept)
    return command
