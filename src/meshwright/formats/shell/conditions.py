"""`[ ... ]`, `test` and `[[ ... ]]`: true, false, or not known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.formats.shell import patterns
from meshwright.formats.shell.closing import closing, closing_brace, closing_quote
from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.values import (
    ScriptLine,
    Truth,
    Unknown,
    Value,
    Variable,
    known_text,
    literal,
    only_unset,
    unknown_of,
)
from meshwright.formats.shell.words import Expander

_FILES = [
    "-e",
    "-f",
    "-d",
    "-s",
    "-r",
    "-w",
    "-x",
    "-L",
    "-h",
    "-p",
    "-b",
    "-c",
    "-S",
    "-a",
    "-N",
    "-O",
    "-G",
    "-u",
    "-g",
    "-k",
    "-t",
]
_OF_FILES = ("-e", "-f", "-r", "-s")
"""What holds of a file that is here; of one that is not, nobody knows where the script will run."""
_WHOLE = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-lt": lambda a, b: a < b,
    "-ge": lambda a, b: a >= b,
    "-le": lambda a, b: a <= b,
}
MAX_REGEX = 200


@dataclass(frozen=True, slots=True)
class ConditionWord:
    """A word of a condition, with its glob where it stands on the right of `==`."""

    value: Value
    glob: str
    """Glob of the word, with quoted letters taken as they are."""
    bare: str
    """The word as written, for operators and brackets; empty where it is quoted."""


class _Grammar:
    """`!`, `-a`/`&&`, `-o`/`||` and brackets over tests of one or two words."""

    def __init__(self, operands: list[ConditionWord], shell: Shell, place: ScriptLine, *, double: bool) -> None:
        self.operands, self.shell, self.place, self.double, self.at = operands, shell, place, double, 0

    def bare(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.operands[at].bare if at < len(self.operands) else ""

    def either(self) -> Truth:
        return self.joined(self.both, "||" if self.double else "-o", either)

    def both(self) -> Truth:
        return self.joined(self.one, "&&" if self.double else "-a", both)

    def joined(self, part: Callable[[], Truth], operator: str, join: Callable[[Truth, Truth], Truth]) -> Truth:
        found = part()
        while self.bare() == operator:
            self.at += 1
            found = join(found, part())
        return found

    def one(self) -> Truth:
        if self.bare() == "!" and len(self.operands) > self.at + 1:
            self.at += 1
            return negated(self.one())
        if self.bare() in ("(", r"\(") and len(self.operands) > self.at + 2:
            self.at += 1
            found = self.either()
            self.at += 1
            return found
        left = len(self.operands) - self.at
        if left >= 3 and (
            self.bare(1) in _WHOLE or self.bare(1) in ("=", "==", "!=", "=~", "<", ">", "-ef", "-nt", "-ot")
        ):
            self.at += 3
            return self.two(self.operands[self.at - 3], self.operands[self.at - 2].bare, self.operands[self.at - 1])
        if left >= 2 and re.fullmatch(r"-[a-zA-Z]", self.bare()):
            self.at += 2
            return self.unary(self.operands[self.at - 2].bare, self.operands[self.at - 1])
        if left < 1:
            return False
        self.at += 1
        return self.filled(self.operands[self.at - 1].value)

    def filled(self, value: Value) -> Truth:
        """Whether a value has letters; names nobody set are taken as not set."""
        if known_text(value):
            return True
        unknown = unknown_of(value)
        if unknown is None:
            return False
        if only_unset(value):
            self.shell.assume_unset(value)
            return False
        return True if unknown.single else unknown

    def unary(self, mark: str, operand: ConditionWord) -> Truth:
        if mark == "-n":
            return self.filled(operand.value)
        if mark == "-z":
            return negated(self.filled(operand.value))
        unknown = unknown_of(operand.value)
        if mark == "-v" and unknown is None:
            name = known_text(operand.value)
            if self.shell.variable(name) is not None:
                return True
            found = self.shell.unset(name, self.place)
            if found.unset:
                self.shell.record.assumed.setdefault(name, self.place)
                return False
            return True
        if mark in _OF_FILES and unknown is None and self.shell.record.there(known_text(operand.value)):
            return True
        if mark in _FILES:
            shown = known_text(operand.value)[-60:]
            names = unknown.names if unknown is not None else ()
            return Unknown(why=f"whether {shown or 'a file'} is there", place=self.place, names=names)
        return Unknown(why=f"what {mark} says", place=self.place)

    def searched(self, regex: str, text: str) -> bool:
        """Whether an expression is found; BASH_REMATCH holds it and its groups."""
        match = _searched(regex, text)
        groups = () if match is None else (match[0], *(group or "" for group in match.groups()))
        entries = [(None, literal(group, self.place)) for group in groups]
        self.shell.assign_array("BASH_REMATCH", entries, append=False)
        return match is not None

    def two(self, left: ConditionWord, mark: str, right: ConditionWord) -> Truth:
        unknown = unknown_of(left.value) or unknown_of(right.value)
        whole = (*left.value, *right.value)
        if unknown is not None and mark in ("=", "==", "!=") and only_unset(whole) and not (left.value and right.value):
            # [ "$NAME" = "" ] asks whether it is set.
            return self.filled(whole) if mark == "!=" else negated(self.filled(whole))
        if unknown is not None:
            if mark == "=~":
                self.shell.variables["BASH_REMATCH"] = Variable(array=True, hidden=unknown)
            return unknown
        one, other = known_text(left.value), known_text(right.value)
        if mark in _WHOLE:
            try:
                return bool(_WHOLE[mark](_whole(one), _whole(other)))
            except ValueError:
                return False
        if mark in ("=", "==", "!="):
            same = patterns.matches(right.glob, one) if self.double else one == other
            return same == (mark != "!=")
        if mark == "=~":
            return self.searched(right.glob if right.bare == "" else other, one)
        if mark in ("<", ">"):
            return one < other if mark == "<" else one > other
        return Unknown(why=f"what {mark} says of two files", place=self.place)


def _whole(text: str) -> int:
    if len(text) > 30:
        raise ValueError(text[:30])
    return int(text.strip() or "0")


def _searched(regex: str, text: str) -> re.Match[str] | None:
    """The first match of an expression.

    Raises:
        patterns.BadPattern: it is too long, or none.
    """
    if len(regex) > MAX_REGEX or len(text) > 1_000 or re.search(r"[*+}]\)[*+{]", regex):
        raise patterns.BadPattern("an expression is too long")
    for name, letters in (("digit", "0-9"), ("alpha", "a-zA-Z"), ("alnum", "a-zA-Z0-9"), ("space", r"\s")):
        regex = regex.replace(f"[:{name}:]", letters)
    try:
        return re.search(regex, text)
    except re.error as error:
        raise patterns.BadPattern(str(error)) from None


def negated(truth: Truth) -> Truth:
    """Logical not; what is not known stays so."""
    return not truth if isinstance(truth, bool) else truth


def both(one: Truth, other: Truth) -> Truth:
    """Logical and: false where either is, whatever the other."""
    if one is False or other is False:
        return False
    return other if one is True else one


def either(one: Truth, other: Truth) -> Truth:
    """Logical or: true where either is, whatever the other."""
    if one is True or other is True:
        return True
    return other if one is False else one


def single(words: list[Value], shell: Shell, place: ScriptLine) -> Truth:
    """What `[ words ]` or `test words` says."""
    operands = [ConditionWord(word, patterns.quoted(known_text(word)), known_text(word)) for word in words]
    return _decided(operands, shell, place, double=False)


def double(expander: Expander, start: int, end: int, place: ScriptLine) -> Truth:
    """What `[[ ... ]]` says of the text between its brackets."""
    operands = []
    text = expander.source.text
    regex = False
    for first, last in _spans(text, start, end):
        raw = text[first:last]
        bare = raw if not re.search(r"['\"\\$`]", raw) or raw in (r"\(", r"\)") else ""
        if regex:
            value, glob = expander.string(first, last), _regex(expander, first, last)
            operands.append(ConditionWord(value, glob, ""))
            regex = False
            continue
        glob, _ = expander.glob(first, last)
        operands.append(ConditionWord(expander.string(first, last), glob, bare))
        regex = raw == "=~"
    return _decided(operands, expander.shell, place, double=True)


def _regex(expander: Expander, first: int, last: int) -> str:
    """An expression, with quoted letters taken as they are."""
    out = []
    raw = expander.source.text[first:last]
    if "$" not in raw and '"' not in raw and "'" not in raw:
        return raw
    for part in expander.parts(first, last, pattern=True):
        out.append(re.escape(known_text(part.value)) if part.quoted else known_text(part.value))
    return "".join(out)


def _decided(operands: list[ConditionWord], shell: Shell, place: ScriptLine, *, double: bool) -> Truth:
    grammar = _Grammar(operands, shell, place, double=double)
    try:
        found = grammar.either()
    except patterns.BadPattern as error:
        return Unknown(why=f"a pattern cannot be read: {error}", place=place)
    except RecursionError:
        return Unknown(why="a condition is nested too deeply", place=place)
    if grammar.at < len(operands):
        if not double and all(unknown_of(operand.value) is None for operand in operands):
            return False  # `[ $EMPTY = full ]` is an error to bash, and an error is not true
        return Unknown(why="a condition cannot be read", place=place)
    return found


def _spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Words of a condition: blanks divide them, and `(`, `)`, `&&`, `||`, `!` stand alone except in an expression."""
    spans: list[tuple[int, int]] = []
    at = start
    regex = False
    while at < end:
        if text[at] in " \t\n" or text.startswith("\\\n", at):
            at += 1
            continue
        first = at
        if not regex and text[at : at + 2] in ("&&", "||"):
            at += 2
        elif not regex and text[at] in "()":
            at += 1
        else:
            depth = 0
            while at < end and (depth or text[at] not in " \t\n"):
                if not regex and (text[at] in "()" or text[at : at + 2] in ("&&", "||")):
                    break
                at = _behind(text, at, end)
                depth += (text[at - 1] == "(") - (text[at - 1] == ")") if regex and at - first else 0
        regex = text[first:at] == "=~"
        spans.append((first, at))
    return spans


def _behind(text: str, at: int, end: int) -> int:
    """Position behind the letter, quote or expansion at `at`."""
    skip: dict[str, Callable[[], int]] = {
        "'": lambda: max(text.find("'", at + 1, end), at) + 1,
        '"': lambda: closing_quote(text, at + 1, end) + 1,
        "\\": lambda: at + 2,
    }
    if text[at] in skip:
        return min(end, skip[text[at]]())
    if text.startswith("${", at):
        return min(end, closing_brace(text, at + 2, end) + 1)
    if text.startswith("$(", at):
        return min(end, closing(text, at + 2, end) + 1)
    return at + 1
