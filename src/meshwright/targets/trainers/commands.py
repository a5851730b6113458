"""Commands of trainers that take all of a plan as options or as KEY=VALUE words, from the scripts that start them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.shell import Launch, Script, Word, job_at, launches, word
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.targets import overrides
from meshwright.targets.overrides import parsed_word

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".job")
"""Endings of bash scripts."""


def is_bash(name: str, text: str) -> bool:
    """Whether a file is a bash script, by its suffix or its first line."""
    return PurePath(name).suffix in SUFFIXES or text.startswith("#!")


def bash_with(pattern: re.Pattern[str]) -> Callable[[str, str], bool]:
    """Recognises bash scripts whose text has a match of a pattern."""
    return lambda name, text: is_bash(name, text) and pattern.search(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One start of a trainer."""

    launch: Launch
    options: Mapping[str, tuple[Word, ...]]
    """Words by the name of the option, or of the key."""

    def text(self, name: str) -> str | None:
        """The first word of an option as far as it is known; None where that is no name."""
        words = self.options.get(name)
        text = words[0].text if words else ""
        return text if text and not text.endswith("/") else None

    def keys(self) -> dict[str, Any]:
        """Options as keys: a switch for none, a list for several."""
        found: dict[str, Any] = {}
        for name, words in self.options.items():
            values = [parsed_word(one.text) for one in words]
            found[name] = True if not values else values[0] if len(values) == 1 else values
        return found

    def placed(self, said: Said) -> Said:
        """A value with the place of its words."""
        words = self.options.get(said.option)
        place = next((one.place for one in words or () if one.place is not None), self.launch.place)
        return replace(said, place=str(place))

    def questions(self, needed: re.Pattern[str], model: str) -> tuple[Problem, ...]:
        """Asks for options of a plan whose values nobody can know.

        Args:
            needed: names of such options.
            model: the option that names the model, of which the end of a path is enough.
        """
        found = []
        for name, words in self.options.items():
            unknown = next((one.unknown for one in words if one.unknown is not None), None)
            if unknown is not None and needed.search(name) and not (name == model and self.text(name)):
                found.append(Open(what=name, unknown=unknown, place=words[0].place, field=name))
        return tuple(questions_for(found))


C = TypeVar("C", bound=Command)


def options_by_name(words: Iterable[Word]) -> dict[str, tuple[Word, ...]]:
    """Options by name, `_` for `-`, with the words behind each; the last of a name stands."""
    found: dict[str, tuple[Word, ...]] = {}
    name = ""
    for one in words:
        if one.text.startswith("--"):
            name, equals, value = one.text.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found[name] = (word(value, one.place),) if equals else ()
        elif name:
            found[name] = (*found[name], one)
    return found


def by_keys(words: Iterable[Word]) -> dict[str, tuple[Word, ...]]:
    """Keys of `KEY=VALUE` words, the last of each."""
    return {key: (value,) for key, value in overrides.by_equals(words).items()}


def not_read(problems: Iterable[Problem], questions: Iterable[Problem] = (), model: str | None = None) -> LaunchFile:
    """A script of which no plan was read, and why."""
    named = {"name": model} if model else {}
    return LaunchFile(row=None, layout=None, model=named, problems=tuple(problems), questions=tuple(questions))


def unread(script: Script) -> list[Problem]:
    """What part of a script could not be read."""
    return [
        Problem(what=f"{place} cannot be read", why=why, fix="correct the script there", field="source")
        for why, place in script.broken[:4]
    ]


def nothing_started(title: str, script: Script, fix: str) -> Problem:
    """Why a script whose text names a trainer starts none of its programs: it stops before, or starts others.

    Args:
        title: name of the trainer.
        script: commands of the script, as bash means it.
        fix: what to check instead.
    """
    started = launches(script.commands)
    started = [one for one in started if one.distributed] or started
    names = dict.fromkeys(one.program.rpartition("/")[2] for one in started)
    why = f"it starts {', '.join(list(names)[:3])}, whose own options are not read" if names else "it starts no program"
    problem = Problem(what=f"no program of {title} is started", why=why, fix=fix, field="source")
    return script.stopped() or problem


def start_in(script: Script, of: Callable[[Launch], Command | None], title: str, fix: str) -> Command | LaunchFile:
    """The start of a trainer that is meant by a script; or the script as one of which no plan is read, and why.

    Args:
        script: commands of the script, as bash means it.
        of: the start that a command is; None for other programs.
        title: name of the trainer.
        fix: what to check instead.
    """
    found = [one for launch in launches(script.commands) if (one := of(launch)) is not None]
    if not found:
        return not_read((*unread(script), nothing_started(title, script, fix)))
    last = chosen(found, script)
    return not_read(unread(script), (last,)) if isinstance(last, Problem) else last


def chosen(found: Sequence[C], script: Script) -> C | Problem:
    """The start that is meant, the last of its job; or the question which one it is.

    Args:
        found: starts of a trainer, at least one.
        script: the script, which may say the job.
    """
    at = job_at([one.launch for one in found], script.job)
    return at if isinstance(at, Problem) else found[at]


def renamed(said: Said, option: str) -> Said:
    """A value under the name that the script has for it."""
    return replace(said, option=option)


def with_places(launched: LaunchFile, one: Command, said: Iterable[Said], unpriced: Iterable[Said]) -> LaunchFile:
    """What was read, every value at the words that say it; values that are defaults are left out.

    Args:
        launched: the launch as read from keys.
        one: the command.
        said: values that were read.
        unpriced: values that change no price.
    """
    return replace(
        launched,
        said=tuple(one.placed(value) for value in said if value.option in one.options),
        unpriced=tuple(one.placed(value) for value in unpriced if value.option in one.options),
    )
