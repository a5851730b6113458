"""What a shell reads into variables: lines of its input, and options of the positional parameters."""

from __future__ import annotations

import re

from meshwright.formats.shell.assignments import NAME
from meshwright.formats.shell.interpreter import Interpreter
from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.values import (
    Fragment,
    ScriptLine,
    Unknown,
    Value,
    Variable,
    is_whole,
    known_text,
    literal,
    unknown_of,
)


def run_read(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """`read`, from a here-string at most: else what comes in is unknown."""
    names, array, mark, at = [], False, "\n", 1
    while at < len(words):
        text = known_text(words[at])
        if text.startswith("-") and len(text) > 1:
            array = array or "a" in text
            if text[-1] == "d" and at + 1 < len(words):
                mark = known_text(words[at + 1])[:1]
            at += 2 if text[-1] in "dnNptu" else 1
            continue
        names.append(text)
        at += 1
    names = [name for name in names if NAME.fullmatch(name)] or ["REPLY"]
    given = shell.stdin
    if given is None or unknown_of(given) is not None:
        unknown = unknown_of(given) if given is not None else None
        why = unknown.why if unknown is not None else "what is read"
        for name in names:
            cause = Unknown(why=why, place=place, names=unknown.names if unknown is not None else ())
            shell.variables[name] = Variable(entries={"0": (Fragment("", place, cause),)})
        shell.status = Unknown(why=why, place=place)
        return
    whole = known_text(given)
    if not whole:
        shell.status = False
        for name in names:
            shell.assign(name, ())
        return
    line, found, rest = whole.partition(mark) if mark else (whole.strip(), "", "")
    shell.stdin = literal(rest, place)
    shell.status = bool(found)
    marks = known_text(shell.value("IFS", place)) or " \t"
    parts = [part for part in re.split(f"[{re.escape(marks)}]", line) if part or marks.strip()]
    if array:
        shell.assign_array(names[0], [(None, literal(part, place)) for part in parts], append=False)
        return
    if len(parts) > len(names):
        # The last name takes the rest of the line as it is.
        pattern = f"[{re.escape(marks)}]" if marks.strip() else r"[ \t]+"
        whole = line if marks.strip() else line.strip()
        parts = re.split(pattern, whole, maxsplit=len(names) - 1) if len(names) > 1 else [whole]
    for number, name in enumerate(names):
        shell.assign(name, literal(parts[number] if number < len(parts) else "", place))


def mapfile(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """`mapfile`: the lines that come in become an array."""
    name = known_text(words[-1])
    name = name if NAME.fullmatch(name) and len(words) > 1 else "MAPFILE"
    given = shell.stdin
    if given is None or unknown_of(given) is not None:
        hidden = Unknown(why="what is read", place=place, names=(name,))
        shell.variables[name] = Variable(array=True, hidden=hidden)
        return
    lines = known_text(given).splitlines()
    shell.assign_array(name, [(None, literal(line, place)) for line in lines], append=False)


def getopt(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """The program `getopt`: options of the words behind `--`, sorted and quoted for `eval set --`."""
    at = next((at for at, word in enumerate(words) if known_text(word) == "--"), len(words))
    unknown = next((unknown_of(word) for word in words if unknown_of(word) is not None), None)
    sorted_ = (
        None if unknown is not None else _sorted(*_accepted(words[1:at]), [known_text(w) for w in words[at + 1 :]])
    )
    value = literal(f"{sorted_}\n", place)
    if sorted_ is None:
        cause = unknown or Unknown(why="what getopt prints", place=place, names=("@",))
        value = (Fragment("", place, cause),)
    if shell.output is not None:
        shell.output.append(value)


def _accepted(words: list[Value]) -> tuple[str, dict[str, bool]]:
    """Short options, and long ones with whether each takes a value."""
    short, long = "", dict[str, bool]()
    texts = [known_text(word) for word in words]
    for number, text in enumerate(texts):
        option, equals, value = text.partition("=")
        value = value if equals else texts[number + 1] if number + 1 < len(texts) else ""
        if option in ("-o", "--options", "--option"):
            short = value
        elif option in ("-l", "--long", "--longoptions"):
            long |= {one.rstrip(":"): one.endswith(":") for one in value.split(",") if not one.endswith("::")}
    return short, long


def _sorted(short: str, long: dict[str, bool], words: list[str]) -> str | None:
    """Options with their values, `--`, and the other words; None where one is not accepted."""
    found: list[str] = []
    others: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            others += words
            break
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            near = [one for one in long if one == name[2:]] or [one for one in long if one.startswith(name[2:])]
            if len(near) != 1 or (long[near[0]] and not equals and not words):
                return None
            found.append(f"--{near[0]}")
            found += [_in_quotes(value if equals else words.pop(0))] if long[near[0]] else []
        elif len(word) > 1 and word[0] == "-":
            if word[1] not in short.replace(":", ""):
                return None
            found.append(word[:2])
            takes = short[short.index(word[1]) + 1 :].startswith(":")
            if takes and not word[2:] and not words:
                return None
            found += [_in_quotes(word[2:] or words.pop(0))] if takes else []
            words[:0] = [f"-{word[2:]}"] if not takes and word[2:] else []
        else:
            others.append(word)
    return " " + " ".join((*found, "--", *map(_in_quotes, others)))


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def getopts(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> None:
    """Short options of the positional parameters, one a call."""
    if len(words) < 3 or not NAME.fullmatch(name := known_text(words[2])):
        shell.status = False  # bash says how it is used, or that this is no name
        return
    letters = known_text(words[1]).lstrip(":")
    held = known_text(shell.value("OPTIND", place)) or "1"
    at = int(held) if is_whole(held) else 1
    word = known_text(shell.positional[at - 1]) if at <= len(shell.positional) else ""
    if not re.fullmatch(r"-[A-Za-z].*", word) or word == "--":
        if shell.open_ended and not shell.positional:
            shell.record.assumed.setdefault("@", place)
        shell.status = False
        return
    letter, argument = word[1], word[2:]
    known = letter in letters
    shell.assign(name, literal(letter if known else "?", place))
    at += 1
    if known and letters[letters.index(letter) + 1 : letters.index(letter) + 2] == ":":
        if not argument and at <= len(shell.positional):
            shell.assign("OPTARG", shell.positional[at - 1])
            at += 1
        else:
            shell.assign("OPTARG", literal(argument, place))
    shell.assign("OPTIND", literal(str(at), place))
