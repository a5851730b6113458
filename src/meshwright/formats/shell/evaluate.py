"""Reads a script as bash would run it, without running anything: which programs it starts, with which words.

The grammar is tree-sitter's, https://github.com/tree-sitter/tree-sitter-bash. Where a condition hangs on what only the
machine of the job knows, all ways are read, and what differs between them is unknown from there on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.formats.shell import assignments, builtins, control, streams
from meshwright.formats.shell.calls import inner_scripts
from meshwright.formats.shell.leaving import Left
from meshwright.formats.shell.parameters import parameter
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import LETTERS_A_STEP, MAX_DEPTH, ScriptCommand, ScriptState, Shell, TooMuch
from meshwright.formats.shell.syntax import (
    assigned,
    file_name,
    is_aside,
    leading_assignments,
    parse,
    text_at,
    torn_at,
)
from meshwright.formats.shell.values import (
    Fragment,
    ScriptLine,
    Truth,
    Unknown,
    Value,
    Variable,
    Word,
    known_text,
    only_unset,
    unknown_of,
)
from meshwright.formats.shell.words import Expander

if TYPE_CHECKING:
    from tree_sitter import Node


_FILE_ALONE = re.compile(r"\s*<\s*[^\s<>|&;()]+\s*")


class Evaluator:
    """Walks syntax trees.

    Args:
        record: takes what is found.
        read: the text of a script beside this one, or None where there is none.
    """

    def __init__(self, record: ScriptState, read: Callable[[str], str | None]) -> None:
        self.record, self.read = record, read
        record.read = read

    def script(self, source: Source, shell: Shell) -> None:
        """Run a whole text in a shell.

        Raises:
            Left: it ends with `exit`, or `return` where it is sourced.
        """
        if shell.depth > MAX_DEPTH:
            raise TooMuch("scripts call each other too deeply")
        self.record.step(len(source.text))
        root = parse(source.text)
        if root.has_error:
            self._errors(root, source)
        shell.depth += 1
        try:
            self.all(root, source, shell)
        finally:
            shell.depth -= 1

    def file(self, path: Value, place: ScriptLine, shell: Shell) -> Source | None:
        """A script that another one runs: written by it, or beside it."""
        name = known_text(path)
        if shell.directory is not None and shell.start and not name.startswith(("/", "~")):
            text = self.read(shell.whole(name))
            if text is not None and file_name(name) not in self.record.files:
                return Source.of_file(text, name.rpartition("/")[2])
        written = self.record.files.get(file_name(name))
        # Files are known by their names alone: one of which nobody knows what it holds may be a copy elsewhere.
        text = self.read(name) if written is None or unknown_of(written) is not None else None
        if written is not None and text is None:
            return Source.of_value(written, place)
        return None if text is None else Source.of_file(text, name.rpartition("/")[2])

    def _errors(self, root: Node, source: Source) -> None:
        stack = [root]
        while stack:
            node = stack.pop()
            if node.type == "ERROR" or node.is_missing:
                self.record.break_off("it is not understood as bash", source.place(node.start_byte))
            elif node.has_error:
                stack += node.children

    def expander(self, source: Source, shell: Shell) -> Expander:
        """Expands words with this shell's variables."""
        return Expander(shell, source, lambda inner, place, shown: self.printed(inner, shell, place, shown), parameter)

    def printed(self, source: Source, shell: Shell, place: ScriptLine, shown: str) -> Value:
        """What `$(...)` gives where the shell alone prints it."""
        twin = shell.fork(output=[], depth=shell.depth + 1)
        if _FILE_ALONE.fullmatch(source.text):  # `$(< FILE)` prints it
            source = Source.of_value(source.pieces(source.text.replace("<", "cat ", 1), 0), place)
        with suppress(Left):
            self.script(source, twin)
        shell.status = twin.status
        pieces = [piece for value in twin.output or () for piece in value]
        known = any(piece.unknown is None and piece.text.strip() for piece in pieces)
        if not known and any(piece.unknown is not None and not piece.unknown.unset for piece in pieces):
            names = tuple(dict.fromkeys(name for p in pieces if p.unknown for name in p.unknown.names))
            why = f"{' '.join(shown.split())[:60]} is not run"
            return (Fragment("", place, Unknown(why=why, place=place, names=names)),)
        while pieces and pieces[-1].unknown is None and not pieces[-1].text.rstrip("\n"):
            pieces.pop()
        if pieces:
            pieces[-1] = replace(pieces[-1], text=pieces[-1].text.rstrip("\n"))
        return tuple(pieces)

    def all(self, node: Node, source: Source, shell: Shell) -> None:
        """Run the statements below a node in their order."""
        for child in node.children:
            if child.is_named:
                self.run(child, source, shell)

    def run(self, node: Node, source: Source, shell: Shell) -> None:
        """Run one statement; its status is in the shell."""
        self.record.step()
        kind = node.type
        method = _STATEMENTS.get(kind)
        if method is not None:
            method(self, node, source, shell)
        elif kind not in ("comment", "heredoc_body", "heredoc_end", "ERROR", "file_redirect", "word"):
            self.record.break_off(f"{kind.replace('_', ' ')} is not understood", source.place(node.start_byte))

    def status(self, nodes: list[Node], source: Source, shell: Shell) -> Truth:
        """Run statements; the status of the last."""
        for node in nodes:
            self.run(node, source, shell)
        return shell.status

    def fork(self, shell: Shell, cause: Unknown, ways: Sequence[Callable[[Shell], object]]) -> None:
        """Take every way in a shell of its own, and go on with what they share.

        Raises:
            Left: every way leaves.
        """
        alive: list[Shell] = []
        left: Left | None = None
        loose = False
        for way in ways:
            twin = shell.fork(unsure=(*shell.unsure, cause))
            if shell.output is not None:
                twin.output = []
            try:
                way(twin)
            except Left as leaving:
                left = leaving
                if leaving.kind == "exit":
                    continue
                loose = True
            alive.append(twin)
            if twin.output:
                assert shell.output is not None
                shell.output.append((Fragment("", cause.place, cause),))
        if not alive:
            assert left is not None
            raise left
        shell.take(alive[0])
        for twin in alive[1:]:
            shell.join(twin, cause)
        if len(alive) > 1:
            shell.status = cause
        if loose:
            # The rest of the loop or function may not be reached.
            shell.unsure = (*shell.unsure, cause)

    def forget(self, node: Node, source: Source, shell: Shell, cause: Unknown) -> None:
        """Variables that statements below a node set are unknown."""
        for name in assigned(node, source):
            held = shell.variables.get(name)
            if held is not None and held.array:
                shell.variables[name] = replace(held, entries={}, hidden=replace(cause, flags=None))
            else:
                shell.variables[name] = Variable(entries={"0": (Fragment("", cause.place, cause),)})

    def define(self, node: Node, source: Source, shell: Shell) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            shell.functions[text_at(name, source)] = (body, source)
        shell.status = True

    def assignment(self, node: Node, source: Source, shell: Shell) -> None:
        assignments.assign(self.expander(source, shell), node, shell)
        if shell.status is not True:
            shell.status = True

    def assignments(self, node: Node, source: Source, shell: Shell) -> None:
        for child in node.children:
            if child.type == "variable_assignment":
                self.assignment(child, source, shell)

    def declaration(self, node: Node, source: Source, shell: Shell) -> None:
        assignments.declare(self.expander(source, shell), node, shell)

    def unset(self, node: Node, source: Source, shell: Shell) -> None:
        expander = self.expander(source, shell)
        words = [w for child in node.children[1:] for w in expander.fields(child.start_byte, child.end_byte)]
        assignments.unset(expander, [known_text(word) for word in words if unknown_of(word) is None], shell)
        shell.status = True

    def command(self, node: Node, source: Source, shell: Shell, redirects: list[Node] | None = None) -> None:
        """A simple command: a function, something of the shell itself, or a program."""
        torn = torn_at(node, source)
        if torn is not None:
            # The grammar joins lines that bash takes one by one.
            for first, last in ((node.start_byte, torn), (torn, node.end_byte)):
                pieces = source.pieces(source.text[first:last], first)
                self.script(Source.of_value(pieces, source.place(node.start_byte)), shell)
            return
        redirects = [*(redirects or ()), *(child for child in node.children if child.type.endswith("_redirect"))]
        words = self._words(node, redirects, source, shell)
        while words and not known_text(words[0]) and words[0] and only_unset(words[0]):
            shell.assume_unset(words[0])  # `$LAUNCHER python ...`
            words = words[1:]

        def called() -> None:
            self.call(words, leading_assignments(node), source.place(node.start_byte), source, shell)

        streams.redirected(self, redirects, source, shell, called)

    def _words(self, node: Node, redirects: list[Node], source: Source, shell: Shell) -> list[Value]:
        """Words of a command, with those behind a redirect's file or heredoc's mark, which the tree has below that."""
        leading, heredocs = leading_assignments(node), [one for one in redirects if one.type == "heredoc_redirect"]
        behind = (one.children_by_field_name("destination")[1:] for one in redirects if one.type == "file_redirect")
        parts = [
            *(child for child in node.children if child.is_named and child not in leading and not is_aside(child)),
            *(word for words in behind for word in words),
            *(argument for one in heredocs for argument in one.children_by_field_name("argument")),
        ]
        expander = self.expander(source, shell)
        return [word for part in parts for word in expander.fields(part.start_byte, part.end_byte)]

    def call(self, words: list[Value], prefix: list[Node], place: ScriptLine, source: Source, shell: Shell) -> None:
        """Run a command whose words are known."""
        if not words:
            for node in prefix:
                self.assignment(node, source, shell)
            return
        name = known_text(words[0]) if unknown_of(words[0]) is None else ""
        held = {}
        for node in prefix:
            child = node.child_by_field_name("name")
            key = text_at(child, source) if child is not None else ""
            held[key] = shell.variables.get(key)
            self.assignment(node, source, shell)
            if key in shell.variables:
                shell.variables[key] = replace(shell.variables[key], exported=True)
        try:
            if name in shell.functions:
                self.function(name, words[1:], shell)
            elif not builtins.run_builtin(self, name, words, place, shell):
                self.program(words, place, shell)
        finally:
            for key, variable in held.items():
                if variable is None:
                    shell.variables.pop(key, None)
                else:
                    shell.variables[key] = variable

    def function(self, name: str, arguments: list[Value], shell: Shell) -> None:
        """Call a function: its positional parameters, and `local` names, are its own."""
        body, source = shell.functions[name]
        if shell.depth > MAX_DEPTH:
            raise TooMuch(f"{name} calls itself without end")
        held = shell.positional, shell.open_ended, shell.local, shell.unsure
        shell.positional, shell.open_ended, shell.local = tuple(arguments), False, {}
        shell.depth += 1
        try:
            self.run(body, source, shell)
        except Left as leaving:
            if leaving.kind != "return":
                raise
        finally:
            shell.depth -= 1
            for local, variable in (shell.local or {}).items():
                if variable is None:
                    shell.variables.pop(local, None)
                else:
                    shell.variables[local] = variable
            if shell.unsure != held[3]:
                self.forget(body, source, shell, shell.unsure[-1])
            shell.positional, shell.open_ended, shell.local, shell.unsure = held

    def program(self, words: list[Value], place: ScriptLine, shell: Shell) -> None:
        """A program that is started: noted, and read in turn where it is a shell."""
        shell.status = builtins.exit_status(words, place)
        if shell.output is not None:
            why = f"{known_text(words[0])[:40]} is not run"
            shell.output.append((Fragment("", place, Unknown(why=why, place=place)),))
            if not isinstance(shell.status, Unknown):
                shell.status = True
        if inner_scripts(self, words, place, shell):
            return
        self.record.step(LETTERS_A_STEP * len(words))  # those who look for a training read every word again
        command = ScriptCommand(
            words=tuple(Word(word) for word in words),
            place=place,
            environment=shell.environment(),
            unsure=shell.unsure,
            folder=shell.folder,
        )
        self.record.commands.append(command)


_STATEMENTS: dict[str, Callable[[Evaluator, Any, Source, Shell], None]] = {
    "program": Evaluator.all,
    "list": control.run_list,
    "do_group": Evaluator.all,
    "else_clause": Evaluator.all,
    "negated_command": control.run_negated,
    "if_statement": control.conditional,
    "case_statement": control.case,
    "while_statement": control.loop,
    "for_statement": control.each,
    "c_style_for_statement": control.run_counted_loop,
    "function_definition": Evaluator.define,
    "subshell": control.subshell,
    "pipeline": control.pipeline,
    "compound_statement": control.compound,
    "test_command": control.test,
    "variable_assignment": Evaluator.assignment,
    "variable_assignments": Evaluator.assignments,
    "declaration_command": Evaluator.declaration,
    "unset_command": Evaluator.unset,
    "redirected_statement": streams.redirected_body,
    "command": Evaluator.command,
}
