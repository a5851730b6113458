"""A bash script as the programs it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.errors import Problem
from meshwright.formats.files import path_end
from meshwright.formats.shell.calls import slurm_variables
from meshwright.formats.shell.evaluate import Evaluator
from meshwright.formats.shell.launch import launches
from meshwright.formats.shell.leaving import Left
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import ScriptCommand, ScriptState, Shell, TooMuch
from meshwright.formats.shell.values import ScriptLine, Value, Word, known_text, literal, unknown_of

MAX_TEXT = 2_000_000
"""Letters of a script; launch scripts have thousands."""
_OPTION = re.compile(r"--[a-z][\w-]*")
_SHOWN = 12
"""Names that one note has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script starts."""

    commands: tuple[ScriptCommand, ...]
    assumed: Mapping[str, ScriptLine]
    """Names taken as not set, with where they are first used; `@` stands for the script's arguments."""
    missing: tuple[tuple[str, ScriptLine], ...]
    """Scripts it sources or calls that are not here."""
    broken: tuple[tuple[str, ScriptLine], ...]
    """What could not be read, and where."""
    wrappers: frozenset[str] = frozenset()
    """Scripts that are not here and are handed a Python program."""
    files: Mapping[str, Value]
    """What it writes to files, by the last part of their path."""
    left_at: ScriptLine | None = None
    """Where it exits before its end."""
    failed: bool = False
    """Whether it exits with an error there."""
    job: str = ""
    """Which of its jobs is asked for, by number or name; empty where nobody says."""

    def with_own(self, read: Callable[[str], str | None]) -> Callable[[str], str | None]:
        """The text of a file that it writes, where all of that is known; else of one beside it."""

        def text(path: str) -> str | None:
            written = self.files.get(path.rpartition("/")[2])
            return read(path) if written is None or unknown_of(written) is not None else known_text(written)

        return text

    def notes(self, of_the_run: Collection[str] = ()) -> Iterator[str]:
        """What was taken for granted as it was read, and options that bash takes for a command.

        Args:
            of_the_run: names that only the run itself sets, which nobody misses.
        """
        yield from self.torn_options()
        names = [name for name in self.assumed if not name.isdigit() and name not in ("@", *of_the_run)]
        if names:
            shown = ", ".join(f"{name} ({self.assumed[name]})" for name in names[:_SHOWN])
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"environment variables taken as unset: {shown}{more}; set one with --env NAME=VALUE"
        for path, place in self.missing[:4]:
            yield f"{path_end(path)}, used at {place}, was not found; it is assumed not to change what the script sets"
        if any(name.isdigit() or name == "@" for name in self.assumed):
            yield "the script is assumed to be started without arguments; give them with --arg VALUE"

    def torn_options(self) -> Iterator[str]:
        """Says of options that begin a command of their own, behind a program, that the line before has no end."""
        torn = [one for one in self.commands if one.words and _OPTION.match(one.words[0].text)]
        for one in torn[:2] if launches(self.commands) else ():
            named = f"{one.words[0].text.partition('=')[0]} and what follows it at {one.place}"
            yield f"{named} belong to no program: the line before does not end in \\"

    def stopped(self) -> Problem | None:
        """The problem that the script exits before it starts a program; None where it does not."""
        if self.left_at is None or launches(self.commands):
            return None
        if not self.failed and (self.commands or not self.assumed):
            return None  # it does what it was written for
        how = "with an error, and has started no program" if self.failed else "and has started nothing"
        why = f"it exits there {how}"
        fix = "set what it asks for above that line, in the script or with --env NAME=VALUE and --arg"
        return Problem(what=f"the script stops at {self.left_at}", why=why, fix=fix, field="source")


def read_script(
    text: str,
    *,
    name: str = "script",
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    read: Callable[[str], str | None] = lambda path: None,
    folder: str = "",
) -> Script:
    """The programs that a script starts.

    Args:
        text: the text of the script; text that is none gives no commands, never an exception.
        name: shown in places, and `$0`.
        arguments: `$1` and on; None where nobody said them.
        environment: what is known of the environment; every other name is not set.
        read: the text of a file that the script sources or calls, by its path; None where it is not here.
        folder: whole path of the folder that it is started in; empty where nobody knows it.
    """
    record = ScriptState()
    shown = name.replace("\\", "/").rpartition("/")[2] or "script"
    start, left_at, failed = ScriptLine(shown, 1), None, False
    if len(text) > MAX_TEXT:
        record.break_off(f"it has {len(text):,} letters; at most {MAX_TEXT:,} are read", start)
    else:
        shell = Shell(
            record=record,
            given=dict(environment or {}),
            positional=tuple(literal(word, ScriptLine("--arg", 1)) for word in arguments or ()),
            open_ended=arguments is None,
            start=folder,
            name=literal(name if "/" in name else f"./{name}", start),
        )
        source = Source.of_file(_filled_in(text.replace("\r\n", "\n")), shown)
        slurm_variables(source, shell)
        try:
            Evaluator(record, read).script(source, shell)
        except Left as leaving:
            left_at, failed = leaving.at, leaving.failed
        except TooMuch as error:
            record.break_off(str(error), start)
        except RecursionError:
            record.break_off("it is nested too deeply", start)
    return Script(
        commands=tuple(_with_own_files(record.commands, record.files)),
        assumed=dict(record.assumed),
        missing=tuple(dict.fromkeys(record.missing)),
        wrappers=frozenset(record.wrappers),
        broken=tuple(record.broken),
        files=dict(record.files),
        left_at=left_at,
        failed=failed,
    )


def _with_own_files(commands: Sequence[ScriptCommand], files: Mapping[str, Value]) -> Iterator[ScriptCommand]:
    """Commands that name files which the script writes by these names alone, where nobody knows their folders."""
    for command in commands:
        words = tuple(_own_file(word, files) for word in command.words)
        yield command if words == command.words else replace(command, words=words)


def _own_file(word: Word, files: Mapping[str, Value]) -> Word:
    if word.unknown is None or word.last_part not in files:
        return word
    flag, equals, _ = word.text.partition("=")
    option = f"{flag}=" if equals and flag.startswith("-") else ""
    return Word(literal(option + word.last_part, word.place or ScriptLine("", 0)))


_TO_FILL_IN = re.compile(
    r"^([ \t]*(?:export[ \t]+)?\w+=)(<[A-Za-z][^<>|&;$`\n]*>)(?=\S*[ \t]*(?:[ \t]#.*)?$)", re.MULTILINE
)


_OLD_ARITHMETIC = re.compile(r"\$\[([\w\s+*/%(){}$<>=!&|-]*)\]")
"""`$[...]`, which bash still takes for `$((...))`."""


def _filled_in(text: str) -> str:
    """A template with a word in each place that it leaves to its reader: bash takes no `DATA_PATH=<Specify path>`.

    Old arithmetic becomes today's, which the parser knows.
    """
    while (new := _OLD_ARITHMETIC.sub(r"$((\1))", text)) != text:
        text = new
    return _TO_FILL_IN.sub(lambda match: match[1] + re.sub(r"\W", "_", match[2]), text)
