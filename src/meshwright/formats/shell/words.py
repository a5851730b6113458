"""Words as bash expands them: quotes, variables, arithmetic, substitutions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from meshwright.formats.shell import patterns
from meshwright.formats.shell.arithmetic import NotArithmetic, evaluate
from meshwright.formats.shell.braces import braces
from meshwright.formats.shell.closing import closing, closing_brace, closing_quote
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import MAX_DEPTH, Shell, TooMuch
from meshwright.formats.shell.stretches import Part, divided
from meshwright.formats.shell.values import Fragment, ScriptLine, Unknown, Value, is_whole, known_text, unknown_of

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MARK = re.compile(r"[\\'\"$`<]")
"""Letters that may not stand for themselves."""
QUOTING = {"string": '"\\$`', "heredoc": "\\$`"}
"""Kinds of text in which quotes are letters, and what a backslash quotes there."""


_OF_NODE = "NODE_RANK"
"""The number of a node among those of the job, as torchrun counts them."""
_NODES = 256
"""Nodes for which a choice by that number is made."""


class _Undecided(Exception):
    """A name in arithmetic whose value nobody knows."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__()
        self.unknown = unknown


class Expander:
    """Expands stretches of one source with the variables of one shell.

    Args:
        shell: gives and takes variables.
        source: the text that positions refer to.
        substitute: what `$(...)` prints, given its text, where it starts, and how it is shown.
        parameter: what `${...}` gives, from one position to another.
    """

    def __init__(
        self,
        shell: Shell,
        source: Source,
        substitute: Callable[[Source, ScriptLine, str], Value],
        parameter: Callable[[Expander, int, int], tuple[list[Value], bool]],
    ) -> None:
        self.shell, self.source, self.substitute, self.parameter = shell, source, substitute, parameter

    def of(self, source: Source) -> Expander:
        """The same for another text."""
        return Expander(self.shell, source, self.substitute, self.parameter)

    @property
    def marks(self) -> str | None:
        """Letters of IFS, where the script sets it."""
        found = self.shell.variables.get("IFS")
        return None if found is None or unknown_of(found.scalar) is not None else known_text(found.scalar)

    def fields(self, start: int, end: int) -> list[Value]:
        """Words of an unquoted stretch, divided at blanks; braces are opened first."""
        text = self.source.text[start:end]
        if "{" in text and (ways := list(braces(text))) != [text]:
            found: list[Value] = []
            for way in ways:
                inner = self.of(self.source.part(way, start))
                found += divided(inner.parts(0, len(way)), self.marks)
            return found
        return divided(self.parts(start, end), self.marks)

    def string(self, start: int, end: int) -> Value:
        """One string, as on the right of an assignment: nothing is divided."""
        found: list[Fragment] = []
        for part in self.parts(start, end):
            found += _joined(part.words) if part.words is not None else part.value
        return tuple(found)

    def heredoc(self, start: int, end: int) -> Value:
        """Text between the marks of a heredoc: variables are filled in, quotes are letters."""
        found: list[Fragment] = []
        for part in self.scan(start, end, "heredoc"):
            found += _joined(part.words) if part.words is not None else part.value
        return tuple(found)

    def glob(self, start: int, end: int) -> tuple[str, Unknown | None]:
        """A pattern, with quoted letters taken as they are."""
        out: list[str] = []
        unknown = None
        for part in self.parts(start, end, pattern=True):
            value = _joined(part.words) if part.words is not None else part.value
            unknown = unknown or unknown_of(value)
            out.append(patterns.quoted(known_text(value)) if part.quoted else known_text(value))
        return "".join(out), unknown

    def parts(self, start: int, end: int, *, pattern: bool = False) -> Iterator[Part]:
        """Stretches of an unquoted text."""
        return self.scan(start, end, "pattern" if pattern else "word")

    def scan(self, start: int, end: int, mode: str) -> Iterator[Part]:
        """Stretches of a text; `mode` is word, pattern, string (inside double quotes) or heredoc."""
        text, at, plain_from = self.source.text, start, start
        if mode == "word" and text.startswith("~", start) and (end == start + 1 or text[start + 1] in "/:"):
            yield Part((Fragment("", self.source.place(at), self.shell.unset("HOME", self.source.place(at))),), True)
            at = plain_from = start + 1
        while mark := _MARK.search(text, at, end):
            at = mark.start()
            found = self._stretch(at, end, mode)
            if found is None:
                at += 1
                continue
            yield from self._plain(plain_from, at, mode)
            parts, at = found
            yield from parts
            plain_from = at
        yield from self._plain(plain_from, end, mode)

    def _plain(self, start: int, end: int, mode: str) -> list[Part]:
        """Letters that stand for themselves."""
        if end <= start:
            return []
        return [Part(self.source.pieces(self.source.text[start:end], start), mode in QUOTING)]

    def _stretch(self, at: int, end: int, mode: str) -> tuple[Sequence[Part], int] | None:
        """Parts of the escape, quote or expansion at a position, and what follows; None of a letter like any other."""
        char, following = self.source.text[at], self.source.text[at + 1 : at + 2]
        if char == "\\":
            return self._escaped(at, end, mode)
        if mode not in QUOTING:
            if char == "'":
                return self._quoted(at, end)
            if char == '"':
                close = closing_quote(self.source.text, at + 1, end)
                return list(self.scan(at + 1, close, "string")) or [Part((), True)], close + 1
            if char == "$" and following == "'":
                close = _ansi_end(self.source.text, at + 2, end)
                letters = _ansi(self.source.text[at + 2 : close])
                return [Part(self.source.pieces(letters, at + 2), True)], close + 1
            if char == "$" and following == '"':
                return [], at + 1
        if char in "$`" or (char == "<" and following == "(" and mode == "word"):
            return self._expanded(at, end, mode)
        return None

    def _escaped(self, at: int, end: int, mode: str) -> tuple[Sequence[Part], int]:
        """A backslash and what it quotes; inside quotes it is a letter in front of most others."""
        following = self.source.text[at + 1 : min(at + 2, end)]
        if following == "\n":
            return [], at + 2
        kept = mode in QUOTING and following not in QUOTING[mode]
        letters = "\\" + following if kept else following or "\\"
        return [Part(self.source.pieces(letters, at), True)], at + 2

    def _quoted(self, at: int, end: int) -> tuple[Sequence[Part], int]:
        """What stands between single quotes."""
        text = self.source.text
        close = text.find("'", at + 1, end)
        close = end if close < 0 else close
        return [Part(self.source.pieces(text[at + 1 : close], at + 1), True)], close + 1

    def _expanded(self, at: int, end: int, mode: str) -> tuple[Sequence[Part], int] | None:
        """What an expansion gives."""
        found, behind = self.expansion(at, end)
        if found is None:
            return None
        values, many = found
        if many and mode != "word":
            return [Part((), mode in QUOTING, words=tuple(values))], behind
        return [Part(_joined(values), mode in QUOTING, split=mode == "word")], behind

    def expansion(self, at: int, end: int) -> tuple[tuple[list[Value], bool] | None, int]:
        """Values of the `$...` or backtick at a position, whether they are the words of an array, and what follows."""
        text = self.source.text
        if self.shell.depth > MAX_DEPTH:
            raise TooMuch("it is nested too deeply")
        self.shell.record.step()
        place = self.source.place(at)
        if text[at] == "`":
            close = at + 1
            while close < end and text[close] != "`":
                close += 1 + (text[close] == "\\")
            inner = re.sub(r"\\([`\\$])", r"\1", text[at + 1 : close])
            return ([self.run(inner, place, at, text[at : close + 1])], False), close + 1
        following = text[at + 1 : at + 2]
        if text[at] == "<":
            close = closing(text, at + 2, end)
            return ([self.printed_file(place, text[at : close + 1])], False), close + 1
        if text.startswith("((", at + 1):
            close = closing(text, at + 3, end)
            if text[close : close + 2] == "))":
                return ([self.arithmetic(at + 3, close, place)], False), close + 2
        if following == "(":
            close = closing(text, at + 2, end)
            return ([self.run(text[at + 2 : close], place, at + 2, text[at : close + 1])], False), close + 1
        if following == "[":
            close = text.find("]", at, end)
            if close > 0:
                return ([self.arithmetic(at + 2, close, place)], False), close + 1
        if following == "{":
            close = closing_brace(text, at + 2, end)
            self.shell.depth += 1
            try:
                return self.parameter(self, at + 2, close), close + 1
            finally:
                self.shell.depth -= 1
        if match := NAME.match(text, at + 1, end):
            return ([self.shell.value(match[0], place)], False), match.end()
        if following and following in "@*#?$!-0123456789":
            return self.special(following, place), at + 2
        return None, at + 1

    def special(self, name: str, place: ScriptLine) -> tuple[list[Value], bool]:
        """Positional and special parameters."""
        shell = self.shell
        if name in "@*":
            if shell.open_ended and not shell.positional:
                shell.record.assumed.setdefault("@", place)
            return self.together(shell.positional) if name == "*" else list(shell.positional), name == "@"
        if name == "#":
            if shell.open_ended and not shell.positional:
                shell.record.assumed.setdefault("@", place)
            return [(Fragment(str(len(shell.positional)), place),)], False
        if name == "0":
            return [shell.name], False
        if is_whole(name):
            return [self.positional(int(name), place)], False
        if name == "?":
            if isinstance(shell.status, bool):
                return [(Fragment("0" if shell.status else "1", place),)], False
            return [(Fragment("", place, shell.status),)], False
        if name == "-":
            return [(Fragment("hB", place),)], False
        return [(Fragment("", place, Unknown(why=f"${name} is a process number", place=place, single=True)),)], False

    def together(self, values: tuple[Value, ...] | list[Value]) -> list[Value]:
        """Values of `$*` and `${name[*]}`: one, with the first letter of IFS between, where the script sets it."""
        return list(values) if self.marks is None else [_joined(values, self.marks[:1])]

    def positional(self, number: int, place: ScriptLine) -> Value:
        """`$1` and on; one that is not there is empty, or unknown where nobody said the arguments."""
        if number == 0:
            return self.shell.name
        if number <= len(self.shell.positional):
            return self.shell.positional[number - 1]
        if self.shell.open_ended:
            return (Fragment("", place, self.shell.unset(str(number), place)),)
        return ()

    def run(self, inner: str, place: ScriptLine, at: int, shown: str) -> Value:
        """What a substitution prints, where that is known without running anything but the shell itself."""
        pieces = self.source.pieces(inner, at)
        return self.substitute(Source.of_value(pieces, place), place, shown)

    def printed_file(self, place: ScriptLine, shown: str) -> Value:
        """What `<(...)` gives: the name of a file of what it prints."""
        why = f"{' '.join(shown.split())[:60]} is a file of what a command prints, which is not run"
        return (Fragment("", place, Unknown(why=why, place=place, single=True)),)

    def arithmetic(self, start: int, end: int, place: ScriptLine) -> Value:
        """The value of `$((...))`."""
        if (each := self._by_node(start, end)) and len(set(each)) > 1:
            unknown = Unknown(
                why="it differs from node to node", place=place, names=(_OF_NODE,), single=True, by_node=each
            )
            return (Fragment("", place, unknown),)
        try:
            return (Fragment(str(self.number(start, end)), place),)
        except _Undecided as undecided:
            found = undecided.unknown
            return (Fragment("", place, Unknown(why=found.why, place=found.place, names=found.names, single=True)),)
        except (NotArithmetic, ValueError, patterns.BadPattern) as error:
            why = f"`{self.source.text[start:end].strip()[:40]}` has no value: {error}"
            return (Fragment("", place, Unknown(why=why, place=place, single=True)),)

    def _by_node(self, start: int, end: int) -> tuple[int, ...]:
        """The value of a choice by the node's number, on each node; nothing of other arithmetic."""
        text = self.source.text[start:end]
        if _OF_NODE not in text or "?" not in text or _OF_NODE in self.shell.variables:
            return ()  # a script that numbers its node itself means that one
        try:
            return tuple(self.number(start, end, node) for node in range(_NODES))
        except (_Undecided, ValueError, patterns.BadPattern):
            return ()

    def number(self, start: int, end: int, node: int | None = None) -> int:
        """The value of arithmetic.

        Args:
            start: the start of the expression in the source.
            end: the end of it.
            node: what NODE_RANK is; as the shell has it by default.

        Raises:
            NotArithmetic: it has none.
        """
        filled = self.heredoc(start, end)
        unknown = unknown_of(filled)
        if unknown is not None:
            raise _Undecided(unknown)
        place = self.source.place(start)
        depth = 0

        def value_of(name: str) -> int:
            nonlocal depth
            depth += 1
            if depth > MAX_DEPTH:
                raise NotArithmetic(f"{name} is defined by itself")
            if name == _OF_NODE and node is not None:
                depth -= 1
                return node
            value = self.shell.value(name, place)
            found = unknown_of(value)
            if found is not None:
                raise _Undecided(found)
            number = evaluate(known_text(value), value_of)
            depth -= 1
            return number

        def assign(name: str, value: int) -> None:
            self.shell.assign(name, (Fragment(str(value), place),))

        return evaluate(known_text(filled).replace('"', ""), value_of, assign)

    def condition(self, start: int, end: int) -> bool | Unknown:
        """Whether `((...))` is not 0."""
        try:
            return self.number(start, end) != 0
        except _Undecided as undecided:
            return undecided.unknown
        except NotArithmetic as error:
            place = self.source.place(start)
            return Unknown(why=f"`{self.source.text[start:end].strip()[:40]}` has no value: {error}", place=place)


def _joined(values: tuple[Value, ...] | list[Value], mark: str = " ") -> Value:
    """Words with a blank, or another mark, between them."""
    if len(values) == 1:
        return values[0]
    found: list[Fragment] = []
    for number, value in enumerate(values):
        if number:
            found.append(Fragment(mark, value[0].place if value else ScriptLine("", 0)))
        found += value
    return tuple(found)


def _ansi_end(text: str, at: int, end: int) -> int:
    while at < end and text[at] != "'":
        at += 1 + (text[at] == "\\")
    return min(at, end)


def _ansi(text: str) -> str:
    known = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\x1b", "a": "\a", "0": "\0"}
    return re.sub(r"\\(.)", lambda match: known.get(match[1], match[0]), text)
