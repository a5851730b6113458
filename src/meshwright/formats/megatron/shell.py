"""Words of a bash script, as far as launch scripts go: quotes, comments, continuations, variables and arrays.

Nothing is run. Variables the script sets itself are filled in, `${NAME:-value}` gives its value, whole-number
arithmetic is done; what only the shell would know is left out of the word and its name reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_WORDS = 100_000
MAX_LETTERS = 1_000_000
_DECLARING = (["export"], ["local"], ["declare"], ["readonly"])
_KEYWORDS = (["if"], ["then"], ["else"], ["elif"], ["fi"], ["do"], ["done"], ["while"], ["for"], ["{"], ["}"])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_EXPANSION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[@*#?0-9])(\[[@*]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)
_DONE_BY_THE_SHELL = ("@", "*", "#", "?", "0")
"""Parameters of the script itself; empty here and not worth a report."""


@dataclass(slots=True)
class Script:
    """Commands of a script as lists of words."""

    commands: list[list[str]] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    """Names of variables and substitutions nobody but the shell knows, in order."""
    broken: str = ""
    """Why the text could not be read to its end."""


class _Unreadable(Exception):
    """A quote or bracket is still open where the text ends, or variables grow without end."""


def read_script(text: str) -> Script:
    """Commands of a script; text that is none gives words nobody understands, never an exception."""
    reader = _ScriptReader(text.replace("\r\n", "\n"))
    try:
        reader.run()
    except (_Unreadable, RecursionError) as error:
        reader.script.broken = str(error) if isinstance(error, _Unreadable) else "it is nested too deeply"
        reader.end_command()
    return reader.script


class _ScriptReader:
    """One pass over the text, keeping the variables set so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.script = Script()
        self.variables: dict[str, list[str]] = {}
        self.command: list[str] = []
        self.count = 0

    def run(self) -> None:
        while self.at < len(self.text) and self.count < MAX_WORDS:
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] == "\n":
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                self.skip_comment()
            elif char in "\n;&|()<>":
                self.at += 1
                self.end_command()
            elif (not self.command or self.command in _DECLARING) and (match := _ASSIGNMENT.match(self.text, self.at)):
                self.at = match.end()
                self.assign(match[1], append=bool(match[2]))
            else:
                known = len(self.script.unresolved)
                words = self.word()
                if words and words[-1].endswith(".py"):
                    # Where the program lies is no option.
                    del self.script.unresolved[known:]
                self.command += words
                self.count += len(words)
                if self.command in _KEYWORDS:
                    self.command = []
        self.end_command()

    def end_command(self) -> None:
        if self.command:
            self.script.commands.append(self.command)
        self.command = []

    def skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def assign(self, name: str, *, append: bool) -> None:
        if self.text[self.at : self.at + 1] == "(":
            self.at += 1
            value = self.array()
        elif self.at >= len(self.text) or self.text[self.at] in " \t\n;&|":
            value = [""]
        else:
            value = [" ".join(self.word())]
        if append and name in self.variables:
            held = self.variables[name]
            joined = len(value) == 1 and len(held) == 1
            value = [held[0] + value[0]] if joined else held + value
        if sum(map(len, value)) > MAX_LETTERS:
            raise _Unreadable(f"{name} grows without end")
        self.variables[name] = value

    def array(self) -> list[str]:
        """Words up to the closing bracket of `NAME=( ... )`."""
        words: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return words
            if char == "#":
                self.skip_comment()
            elif char in " \t\n":
                self.at += 1
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] == "\n":
                self.at += 2
            elif char in ";&|(<>":
                self.at += 1
            else:
                words += self.word()
                self.count += 1
        raise _Unreadable("an array's ( is not closed")

    def word(self) -> list[str]:
        """The word that starts here; more than one, or none, where an expansion is split."""
        words: list[str] = []
        current = ""
        started = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|()<>":
                if char in "<>" and current.isdecimal() and not words:
                    return []  # the stream's number in 2>&1
                break
            if char == "'":
                end = self.closing("'", self.at + 1)
                current += self.text[self.at + 1 : end]
                self.at, started = end + 1, True
            elif char == '"':
                parts = self.double_quoted()
                started = started or bool(parts)
                current += parts[0] if parts else ""
                for part in parts[1:]:
                    words.append(current)
                    current = part
            elif char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                current += "" if following == "\n" else following
                self.at += 2
                started = started or following != "\n"
            elif char in "$`":
                parts = " ".join(self.expansion()).split()
                started = started or bool(parts)
                current += parts[0] if parts else ""
                for part in parts[1:]:
                    words.append(current)
                    current = part
            else:
                current += char
                self.at, started = self.at + 1, True
        return [*words, current] if started else words

    def closing(self, mark: str, start: int) -> int:
        end = self.text.find(mark, start)
        if end < 0:
            raise _Unreadable(f"a {mark} is not closed")
        return end

    def double_quoted(self) -> list[str]:
        """Words between double quotes: one, unless a whole array stands alone."""
        self.at += 1
        parts = [""]
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return parts
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                parts[-1] += "" if following == "\n" else following if following in '"\\$`' else char + following
                self.at += 2
            elif char in "$`":
                whole = self.text.startswith('"', self.at - 1) and re.match(
                    r"\$(\{[A-Za-z_][A-Za-z0-9_]*\[@\]\}|@)\"", self.text[self.at : self.at + 80]
                )
                values = self.expansion()
                if whole:
                    self.at += 1
                    return list(values)
                parts[-1] += " ".join(values)
            else:
                parts[-1] += char
                self.at += 1
        raise _Unreadable('a " is not closed')

    def expansion(self) -> list[str]:
        """Values of the `$...` or backtick that starts here."""
        text, start = self.text, self.at
        if text[start] == "`":
            self.at = self.closing("`", start + 1) + 1
            return self.unknown(text[start : self.at])
        following = text[start + 1 : start + 2]
        if following == "{":
            self.at = self.balanced(start + 1, "{", "}")
            return self.parameter(text[start + 2 : self.at - 1])
        if text.startswith("((", start + 1):
            self.at = self.balanced(start + 1, "(", ")")
            return self.arithmetic(text[start + 3 : self.at - 2])
        if following == "(":
            self.at = self.balanced(start + 1, "(", ")")
            return self.unknown(text[start : self.at])
        if match := _NAME.match(text, start + 1):
            self.at = match.end()
            return self.parameter(match[0])
        self.at = start + 2 if following and following in "@*#?0123456789$!-" else start + 1
        return [] if self.at == start + 2 else ["$"]

    def balanced(self, start: int, opening: str, closing: str) -> int:
        """Position after the bracket that closes the one at `start`."""
        depth = 0
        for at in range(start, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                return at + 1
        raise _Unreadable(f"a {opening} is not closed")

    def parameter(self, inside: str) -> list[str]:
        match = _EXPANSION.fullmatch(inside)
        if not match:
            return self.unknown("${" + inside + "}")
        name, _, operator, alternative = match.groups()
        if name in self.variables and operator not in ("+", ":+"):
            return self.variables[name]
        if operator in ("-", ":-", "=", ":="):
            return self.words_of(alternative)
        if operator in ("+", ":+"):
            return self.words_of(alternative) if name in self.variables else []
        return [] if name in _DONE_BY_THE_SHELL else self.unknown(name)

    def arithmetic(self, expression: str) -> list[str]:
        """The value of whole-number arithmetic, parsed by hand: + - * / % and brackets."""
        filled = _NAME.sub(lambda m: " ".join(self.variables.get(m[0], [m[0]])), expression.replace("$", ""))
        tokens = re.findall(r"\d+|[-+*/%()]", filled)
        if "".join(tokens) != re.sub(r"\s+", "", filled) or len(tokens) > 200:
            return self.unknown(f"$(({expression}))")
        try:
            rest = iter([*tokens, ""])
            value, _ = _sum(rest, next(rest))
        except (ValueError, ZeroDivisionError, StopIteration, RecursionError):
            return self.unknown(f"$(({expression}))")
        return [str(value)]

    def words_of(self, text: str) -> list[str]:
        """Words of the alternative in `${NAME:-alternative}`, its own expansions filled in."""
        inner = _ScriptReader(text)
        inner.variables = self.variables
        inner.script.unresolved = self.script.unresolved
        inner.run()
        return [word for command in inner.script.commands for word in command]

    def unknown(self, name: str) -> list[str]:
        if name not in self.script.unresolved:
            self.script.unresolved.append(name)
        return []


def _sum(tokens: Iterator[str], token: str) -> tuple[int, str]:
    value, token = _product(tokens, token)
    while token in ("+", "-"):
        other, after = _product(tokens, next(tokens))
        value, token = (value + other if token == "+" else value - other), after
    return value, token


def _product(tokens: Iterator[str], token: str) -> tuple[int, str]:
    value, token = _atom(tokens, token)
    while token in ("*", "/", "%"):
        other, after = _atom(tokens, next(tokens))
        value = value * other if token == "*" else value // other if token == "/" else value % other
        token = after
    return value, token


def _atom(tokens: Iterator[str], token: str) -> tuple[int, str]:
    if token == "(":
        value, token = _sum(tokens, next(tokens))
        if token != ")":
            raise ValueError("a bracket is not closed")
        return value, next(tokens)
    if token == "-":
        value, token = _atom(tokens, next(tokens))
        return -value, token
    return int(token), next(tokens)
