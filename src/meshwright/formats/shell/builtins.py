"""What a shell does itself, and the programs whose output follows from their words: echo, seq, basename, tr, ..."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwright.formats.shell import conditions, filters, reading, streams
from meshwright.formats.shell.interpreter import Interpreter
from meshwright.formats.shell.leaving import Left
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.values import (
    Fragment,
    ScriptLine,
    Unknown,
    Value,
    is_whole,
    known_text,
    literal,
    unknown_of,
)

_PROBES = frozenset(
    [
        "grep",
        "egrep",
        "command",
        "which",
        "type",
        "nvidia-smi",
        "ls",
        "diff",
        "cmp",
        "pgrep",
        "pkill",
        "ping",
        "hash",
        "rocm-smi",
        "lspci",
        "curl",
        "wget",
    ]
)
"""Programs that people start to learn something: whether they succeed is not known."""
_HARMLESS = re.compile(
    r"(activate|\.bashrc|\.bash_profile|\.profile|/etc/.*|conda\.sh|modules?\.sh|setvars\.sh|init\.sh|set_env\.sh|"
    r"lmod.*|/init/bash|hpcx-init.*|modulefiles.*|\.venv/.*)$"
)


def exit_status(words: list[Value], place: ScriptLine) -> bool | Unknown:
    """The status a program leaves: jobs go on, so success, except where a program is asked a question."""
    name = known_text(words[0]).rpartition("/")[2]
    if name in _PROBES:
        return Unknown(why=f"whether {name} succeeds", place=place)
    return True


def run_builtin(evaluator: Interpreter, name: str, words: list[Value], place: ScriptLine, shell: Shell) -> bool:
    """Run a command that the shell does itself; whether it is one."""
    found = _BUILTINS.get(name)
    if found is None:
        return False
    shell.status = True
    found(evaluator, words, place, shell)
    return True


def _say(shell: Shell, value: Value) -> None:
    if shell.output is not None:
        shell.output.append(value)


def _echo(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    rest = words[1:]
    newline, escapes = True, False
    while rest and re.fullmatch(r"-[neE]+", known_text(rest[0])):
        newline = newline and "n" not in known_text(rest[0])
        escapes = escapes or "e" in known_text(rest[0])
        rest = rest[1:]
    pieces: list[Fragment] = []
    for number, word in enumerate(rest):
        if number:
            pieces.append(Fragment(" ", place))
        pieces += word
    if escapes:
        pieces = [replace(piece, text=piece.text.replace("\\n", "\n").replace("\\t", "\t")) for piece in pieces]
    _say(shell, (*pieces, *((Fragment("\n", place),) if newline else ())))


def _printf(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    rest, target = words[1:], ""
    if rest and known_text(rest[0]) == "-v" and len(rest) > 1:
        target, rest = known_text(rest[1]), rest[2:]
    rest = rest[1:] if rest and known_text(rest[0]) == "--" else rest
    unknown = next((unknown_of(word) for word in rest if unknown_of(word) is not None), None)
    value: Value
    if unknown is not None:
        value = (Fragment("", place, unknown),)
    else:
        value = literal(
            filters.printf(known_text(rest[0]) if rest else "", [known_text(word) for word in rest[1:]]), place
        )
    if target:
        shell.assign(target, value)
    else:
        _say(shell, value)


_FILE_BEHIND = {"cat": 0, "sed": 1, "grep": 1, "awk": 1, "head": 0, "tail": 0, "cut": 0, "sort": 0, "uniq": 0, "tac": 0}
"""Programs that read the file behind their words, and how many words that are no options come before it."""


def _pure(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """Programs whose output is a function of their words and what they read."""
    unknown = next((unknown_of(word) for word in words if unknown_of(word) is not None), None)
    name = known_text(words[0])
    given = shell.stdin
    operands = [word for word in words[1:] if not known_text(word).startswith("-") or unknown_of(word) is not None]
    if name in _FILE_BEHIND and len(operands) > _FILE_BEHIND[name] and known_text(words[-1]) != "-":
        read = streams.held_in(evaluator, words[-1], place, shell)
        given = read if read is not None or name == "cat" else given
        words = words if read is None else words[:-1]
    if name == "cat" and given is not None:
        _say(shell, given)
        return
    if unknown is None and given is not None and name in filters.READ:
        unknown = unknown_of(given)
    text = (
        None
        if unknown is not None
        else filters.output(
            name, [known_text(word) for word in words[1:]], None if given is None else known_text(given)
        )
    )
    if text is None:
        why = f"what {name} prints" if unknown is None else unknown.why
        names = () if unknown is None else unknown.names
        _say(shell, (Fragment("", place, Unknown(why=why, place=place, names=names)),))
        if name in _PROBES:
            shell.status = Unknown(why=f"whether {name} succeeds", place=place)
        elif shell.output is None:
            shell.status = True
        return
    if name in _PROBES:
        shell.status = bool(text)
    if name == "tee":
        appends = any(known_text(word) in ("-a", "--append") for word in words)
        for word in operands:
            streams.write_stream(evaluator, word, literal(text, place), appends)
    if not filters.quiet(name, [known_text(word) for word in words[1:]]):
        _say(shell, literal(text, place))


def _xargs(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """What comes in as words of a command: of `echo`, or of a program that is started."""
    texts = [known_text(word) for word in words[1:]]
    given = shell.stdin
    if texts in ([], ["echo"]):
        _pure(evaluator, words[:1], place, shell)
    elif texts[0].startswith("-") or given is None or unknown_of(given) is not None:
        evaluator.program(words, place, shell)
    else:
        evaluator.call(
            [*words[1:], *(literal(word, place) for word in known_text(given).split())],
            [],
            place,
            Source("", [0], [place]),
            shell,
        )


def _cd(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    targets = [word for word in words[1:] if known_text(word) not in _CD_SWITCHES or unknown_of(word) is not None]
    target = targets[0] if targets else None
    held = shell.directory
    if known_text(words[0]) == "pushd":
        shell.folders = (held, *shell.folders)
    if target is not None and known_text(target) == "-" and unknown_of(target) is None:
        shell.directory, shell.left = shell.left, held
        return
    shell.left, shell.entered = held, ""
    if target is None or unknown_of(target) is not None:
        shell.directory, shell.entered = None, _known_end(target) if target is not None else ""
    elif known_text(target).startswith("/") or shell.directory is None:
        shell.directory = (
            literal(known_text(target), place) if known_text(target)[:1] in ("/",) else _beside(target, shell)
        )
    else:
        shell.directory = literal(filters.join(known_text(shell.directory), known_text(target)), place)


def _known_end(path: Value) -> str:
    """The end of a path behind what is not known of it."""
    last = max((at for at, piece in enumerate(path) if piece.unknown is not None), default=-1)
    return "".join(piece.text for piece in path[last + 1 :]).strip("/")


_CD_SWITCHES = ("--", "-P", "-L", "-e", "-@")


def _popd(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    shell.status = bool(shell.folders)
    if shell.folders:
        shell.left, shell.directory, shell.folders = shell.directory, shell.folders[0], shell.folders[1:]


def _beside(target: Value, shell: Shell) -> Value | None:
    """A folder seen from the script's own, which is known by its name alone where nobody says where that lies."""
    if shell.start:
        return literal(shell.whole(known_text(target)), target[0].place) if known_text(target) else None
    return target if known_text(target) == (known_text(shell.name).rpartition("/")[0] or ".") else None


def _real(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """`realpath` and `readlink -f`: the whole path of a file."""
    if len(words) > 1 and known_text(words[-1]) and unknown_of(words[-1]) is None:
        words = [*words[:-1], literal(shell.whole(known_text(words[-1])), place)]
    _pure(evaluator, words, place, shell)


def _pwd(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    if shell.directory is not None:
        _say(shell, (*shell.directory, Fragment("\n", place)))
    else:
        _say(shell, (Fragment("", place, shell.unset("PWD", place)),))


def _shift(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    count = known_text(words[1]) if len(words) > 1 else "1"
    number = int(count) if is_whole(count) and len(count) < 6 else 1
    if number > len(shell.positional):
        shell.status = False
        return
    shell.positional = shell.positional[number:]


_NAMES_NEXT = re.compile(r"[-+][a-zA-Z]*o[a-zA-Z]*")
"""Switches behind which the name of one stands: `-euo pipefail`, `-eox pipefail`."""


def _set(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    for at, word in enumerate(words[1:], 1):
        text = known_text(word)
        if text == "--":
            shell.positional, shell.open_ended = tuple(words[at + 1 :]), False
            return
        if re.fullmatch(r"[-+][a-zA-Z]+", text):
            if "a" in text[1:]:
                shell.export_all = text[0] == "-"
        elif text and not text.startswith("-") and not _NAMES_NEXT.fullmatch(known_text(words[at - 1])):
            shell.positional, shell.open_ended = tuple(words[at:]), False
            return


def _leave(kind: str) -> Callable[[Any, list[Value], ScriptLine, Shell], None]:
    def leave(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:

        count = known_text(words[1]) if len(words) > 1 else ""
        if kind in ("return", "exit"):
            shell.status = count in ("", "0") if len(words) < 2 or unknown_of(words[1]) is None else True
            raise Left(kind, at=place, failed=shell.status is not True)
        raise Left(kind, int(count) if is_whole(count) and 0 < int(count) < 100 else 1)

    return leave


def _test(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    inner = words[1:]
    if known_text(words[0]) == "[" and inner and known_text(inner[-1]) == "]":
        inner = inner[:-1]
    shell.status = conditions.single(inner, shell, place)


def _let(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    for word in words[1:]:
        source = Source.of_value(word, place)
        expander = evaluator.expander(source, shell)
        shell.status = expander.condition(0, len(source.text))


def _eval(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    pieces: list[Fragment] = []
    for number, word in enumerate(words[1:]):
        if number:
            pieces.append(Fragment(" ", place))
        pieces += word
    evaluator.script(Source.of_value(tuple(pieces), place), shell)


def _source(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:

    if len(words) < 2:
        return
    path = known_text(words[1]) or "a file of unknown name"
    source = evaluator.file(words[1], place, shell)
    if source is None:
        if not _HARMLESS.search(path):
            evaluator.record.missing.append((path, place))
            evaluator.record.unsourced = evaluator.record.unsourced or path
        return
    held = shell.positional, shell.open_ended
    if len(words) > 2:
        shell.positional, shell.open_ended = tuple(words[2:]), False
    outer, shell.sourced = shell.sourced, words[1]
    try:
        evaluator.script(source, shell)
    except Left as leaving:
        if leaving.kind != "return":
            raise
    finally:
        shell.sourced = outer
    if len(words) > 2:
        shell.positional, shell.open_ended = held


def _prefix(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """`exec`, `command`, `time`, `builtin`: what follows is run."""
    rest = words[1:]
    if known_text(words[0]) == "command" and rest and known_text(rest[0]) in ("-v", "-V"):
        shell.status = Unknown(
            why=f"whether {known_text(rest[1])[:40] if len(rest) > 1 else ''} is installed", place=place
        )
        why = f"where {known_text(rest[1])[:40] if len(rest) > 1 else 'it'} is installed"
        _say(shell, (Fragment("", place, Unknown(why=why, place=place)),))
        return
    while rest and known_text(rest[0]).startswith("-"):
        rest = rest[1:]
    if rest:
        evaluator.call(rest, [], place, Source("", [0], [place]), shell)
    if known_text(words[0]) == "exec" and rest:
        raise Left("exit")


def _true(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    shell.status = True


def _false(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    shell.status = False


_BUILTINS: dict[str, Callable[[Any, list[Value], ScriptLine, Shell], None]] = {
    "echo": _echo,
    "printf": _printf,
    "cd": _cd,
    "pushd": _cd,
    "popd": _popd,
    "pwd": _pwd,
    "shift": _shift,
    "set": _set,
    "break": _leave("break"),
    "continue": _leave("continue"),
    "return": _leave("return"),
    "exit": _leave("exit"),
    "test": _test,
    "[": _test,
    "let": _let,
    "eval": _eval,
    "source": _source,
    ".": _source,
    "read": reading.run_read,
    "mapfile": reading.mapfile,
    "readarray": reading.mapfile,
    "exec": _prefix,
    "command": _prefix,
    "builtin": _prefix,
    "time": _prefix,
    "getopts": reading.getopts,
    "getopt": reading.getopt,
    "false": _false,
    **dict.fromkeys(filters.PURE, _pure),
    "xargs": _xargs,
    "realpath": _real,
    "readlink": _real,
    **dict.fromkeys(
        (
            ":",
            "true",
            "trap",
            "ulimit",
            "umask",
            "wait",
            "sleep",
            "module",
            "ml",
            "alias",
            "shopt",
            "mkdir",
            "hash",
            "sync",
            "disown",
            "jobs",
            "rm",
            "touch",
            "chmod",
            "cp",
            "mv",
            "ln",
        ),
        _true,
    ),
}
